"""What runs today, from whatever describes it: a plan, a folder with one, or manifests that nobody planned."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from planner.assess.baseline import as_baseline
from planner.assess.read import read_deployment
from planner.documents import load_yaml, shown_path
from planner.errors import UserError, Where
from planner.intent.document import Intent
from planner.intent.fleet import Fleet
from planner.plan.text import load
from planner.plan.today import Today, TodayPool, today_of


def read_today(path: Path, *, intent: Intent, fleet: Fleet) -> Today:
    """A plan.yaml (or its folder), else the deployments that the manifests describe."""
    name = shown_path(path)
    if not path.exists():
        raise UserError("no-such-file", f"baseline {name} does not exist", Where(name))
    if _is_plan(path):
        return today_of(load(path), name)
    pools = []
    for p in as_baseline(read_deployment([path]), intent=intent, fleet=fleet):
        place = p.key.split(" ", 1)[0]
        price = next((f.price.per_gpu_hour for f in fleet.pools if f.name == place and f.price is not None), 0.0)
        pools.append(
            TodayPool(p.service, p.key, p.replicas, p.gpus_per_replica, price * p.replicas * p.gpus_per_replica)
        )
    if not pools:
        raise UserError(
            "empty-baseline",
            f"nothing in {name} serves a service of the intent",
            Where(name),
            (),
            ("name a plan.yaml, or manifests whose workloads are called like the services or load their models",),
        )
    return Today(name, tuple(pools))


def _is_plan(path: Path) -> bool:
    if path.is_dir():
        return (path / "plan.yaml").is_file()
    if path.suffix not in (".yaml", ".yml"):
        return False
    try:
        data = load_yaml(path, what="baseline").data
    except UserError:
        return False  # several documents: manifests
    return isinstance(data, dict) and "planner_version" in data


def joined(all_of: Iterable[Today]) -> Today | None:
    """Several descriptions side by side (each service may name its own)."""
    found = list(all_of)
    if not found:
        return None
    return Today(" + ".join(dict.fromkeys(t.name for t in found)), tuple(p for t in found for p in t.pools))
