"""Prefill and decode pools on plain Kubernetes: a DisaggregatedSet where the cluster has it, paired pools otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from planner.render.artefact import Artefact, Meta
from planner.render.facts import PoolFacts
from planner.render.files import refused
from planner.render.kubernetes import (
    Workload,
    kueue,
    leader_worker_set,
    service_meta,
    support_artefacts,
    workload_artefacts,
)
from planner.render.pod import engine_pod
from planner.render.text import annotation_key, comment, object_name


@dataclass(frozen=True, slots=True)
class Role:
    """One role of a DisaggregatedSet."""

    role: str
    external: bool
    work: Workload


@dataclass(frozen=True, slots=True)
class DisaggregatedSet:
    """Prefill and decode as one object."""

    meta: Meta
    slices: int
    roles: tuple[Role, ...]


def check_pair(pools: list[PoolFacts]) -> None:
    """Refuse pools that could not hand KV over: the hand-shake compares what both sides run."""
    roles = sorted({f.pool.role for f in pools})
    if "aggregated" in roles or roles != ["decode", "prefill"]:
        raise refused(
            "plan-inconsistent", f"service {pools[0].service.name!r} has pools of {', '.join(roles)}", "plan it again"
        )
    if len({f.pool.kv_dtype for f in pools}) > 1:
        raise refused("pd-mismatch", "prefill and decode have different KV types; the hand-over would be refused")
    if pools[0].engine.engine == "sglang" and len({f.pool.block_size for f in pools}) > 1:
        raise refused("pd-mismatch", "prefill and decode have different page sizes")


def disaggregated_workloads(folder: PurePosixPath, pools: list[PoolFacts], **pod: Any) -> list[Artefact]:
    """The pools' workloads, budgets and claims."""
    check_pair(pools)
    crds = pools[0].plan.platform.crds
    if crds is None or "disaggregatedset" not in crds or len(pools) != 2:
        return workload_artefacts(folder, pools, **pod)
    f = pools[0]
    meta = service_meta(f, object_name(f.service.name), "engines", extra=kueue(f))
    reasons = {annotation_key(f"{p.pool.role}_{k}"): comment(v) for p in pools for k, v in p.pool.reasons.items()}
    meta = Meta(meta.name, meta.namespace, meta.labels, dict(sorted((meta.annotations | reasons).items())))
    roles = tuple(
        Role(p.pool.role, p.plan.platform.autoscaling == "keda", _lws(p, **pod))
        for p in sorted(pools, key=lambda p: p.pool.role, reverse=True)
    )
    context = {"set": DisaggregatedSet(meta, 1, roles)}
    return [
        Artefact(folder / "disaggregatedset.yaml", "kubernetes/disaggregatedset.yaml.j2", context),
        *support_artefacts(folder, pools),
    ]


def _lws(f: PoolFacts, **pod: Any) -> Workload:
    """A role's LeaderWorkerSet; a replica on one node is a group of one."""
    if f.plan.platform.autoscaling == "keda":
        raise refused(
            "not-supported",
            "autoscaling a DisaggregatedSet is not supported: its roles must keep their ratio",
            "leave disaggregatedset out of platform.crds to get pools that scale on their own",
        )
    work = leader_worker_set(f, **pod)
    assert work.worker is not None
    return work if f.multi_node else Workload(
        work.meta, work.selector, work.replicas, work.replicas_why, work.strategy, work.strategy_why,
        work.progress_s, work.pod, engine_pod(f, **pod), 1, f"{f.gpus_per_pod} GPUs on one node",
    )  # fmt: skip
