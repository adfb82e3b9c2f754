"""Autoscaling with KEDA: from the trough to the plan, at the concurrency the plan is made for.

Threshold: sequences in flight (running and waiting) per replica at the planned peak. In flight grows with the rate at a
given load per replica, so N replicas at the threshold carry N times what one carries at the planned load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from planner.render.artefact import Artefact, Meta
from planner.render.facts import PoolFacts
from planner.render.files import refused
from planner.render.kubernetes import meta, need_crd
from planner.render.text import dns_name, object_name, plain

POLLING_S = 15
COOLDOWN_S = 360
"""Longer than a start: scaling in and out within one load time pays for loading and serves nothing."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How one pool scales."""

    meta: Meta
    target: dict[str, str]
    least: int
    most: int
    threshold: int
    why: str
    trigger: dict[str, Any]
    fallback: int
    cooldown_s: int


def least_replicas(f: PoolFacts) -> int:
    """Replicas for the quietest hour: the trough's share of the plan, one more where a failure must be survived."""
    rates = [(c.rate, i.trough) for c in f.pool.classes for i in f.intent.traffic if i.name == c.name]
    total = sum(r for r, _ in rates)
    if total <= 0 or any(t is None for _, t in rates):
        return f.pool.replicas  # no trough known: scaling in would be a guess
    share = sum(r * t for r, t in rates if t is not None) / total
    spare = 0 if f.intent.survive == "none" else 1
    return min(f.pool.replicas, max(1, math.ceil(f.pool.replicas * share - 1e-9)) + spare)


def threshold(f: PoolFacts) -> int:
    """Sequences in flight per replica at the planned peak, rounded down: demand rounds up."""
    return max(1, math.floor(f.pool.running_mean))


def prometheus(f: PoolFacts) -> str:
    """Where KEDA reads metrics; refused when the platform does not say."""
    url = f.plan.platform.prometheus_url
    if url is None:
        raise refused("prometheus-url", "autoscaling needs a Prometheus to ask", "set prometheus_url in platform.yaml")
    url = plain(url, "prometheus_url")
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise refused("secret", "prometheus_url holds a user or password", "use a TriggerAuthentication in an overlay")
    if not url.startswith(("http://", "https://")):
        raise refused("prometheus-url", f"{url[:60]!r} is no http address", "write http://HOST:PORT")
    return url


def label_match(f: PoolFacts) -> str:
    """The labels by which a pool's metrics are found (PodMonitor copies them from the pods)."""
    return f'app_kubernetes_io_instance="{f.service.name}",app_kubernetes_io_name="{f.name}"'


def query(f: PoolFacts) -> str:
    """Sequences in flight over a pool."""
    m = f.engine.metrics
    return f"sum({m['running']}{{{label_match(f)}}}) + sum({m['waiting']}{{{label_match(f)}}})"


def trigger(f: PoolFacts, text: str, limit: int) -> dict[str, Any]:
    """A KEDA Prometheus trigger: the average per replica."""
    return {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {"serverAddress": prometheus(f), "query": text, "threshold": str(limit)},
    }


def scaling(f: PoolFacts, target: dict[str, str], *, text: str | None = None, limit: int | None = None) -> Scaling:
    """A pool's ScaledObject."""
    need_crd(f.plan.platform, "keda")
    limit = limit if limit is not None else threshold(f)
    least = least_replicas(f)
    return Scaling(
        meta=meta(f),
        target=target,
        least=least,
        most=f.pool.replicas,
        threshold=limit,
        why=f"{f.pool.running_mean:g} running per replica at the planned peak",
        trigger=trigger(f, text or query(f), limit),
        fallback=f.pool.replicas,
        cooldown_s=max(COOLDOWN_S, f.start_s),
    )


def workload_target(f: PoolFacts) -> dict[str, str]:
    """What a pool on plain Kubernetes is scaled by."""
    if f.multi_node:
        return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": f.name}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": f.name}


def scaling_artefacts(folder: PurePosixPath, pools: list[PoolFacts]) -> list[Artefact]:
    """scaledobject.yaml, where the platform autoscales."""
    if pools[0].plan.platform.autoscaling != "keda":
        return []
    objects = [scaling(f, workload_target(f)) for f in pools]
    return [Artefact(folder / "scaledobject.yaml", "kubernetes/scaledobject.yaml.j2", {"objects": objects})]


def dynamo_scaling(folder: PurePosixPath, pools: list[PoolFacts], components: dict[str, str]) -> list[Artefact]:
    """The same for Dynamo, whose scaling adapters are named after graph and component; the frontend counts requests."""
    if pools[0].plan.platform.autoscaling != "keda":
        return []
    objects = []
    for f in pools:
        total = sum(p.pool.running_mean * p.pool.replicas for p in pools)
        target = {
            "apiVersion": "nvidia.com/v1beta1",
            "kind": "DynamoGraphDeploymentScalingAdapter",
            "name": dns_name(f"{object_name(f.service.name)}-{components[f.name].lower()}", "scaling adapter"),
        }
        text = f'sum(dynamo_frontend_inflight_requests{{model="{promql(f.service.model.id)}"}})'
        objects.append(scaling(f, target, text=text, limit=max(1, math.floor(total / f.pool.replicas))))
    return [Artefact(folder / "scaledobject.yaml", "kubernetes/scaledobject.yaml.j2", {"objects": objects})]


def promql(value: str) -> str:
    """Text inside a PromQL string."""
    return plain(value, "label value").replace("\\", "\\\\").replace('"', '\\"')
