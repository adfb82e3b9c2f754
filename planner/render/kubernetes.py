"""Plain Kubernetes: Deployments (one node per replica), LeaderWorkerSets (several), Service, budgets, kustomization."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from planner.intent.platform import Platform
from planner.render.artefact import Artefact, Meta
from planner.render.facts import PoolFacts
from planner.render.files import refused
from planner.render.pod import (
    DRA_CLASSES,
    KUEUE_LABEL,
    LEADER_LABEL,
    Pod,
    engine_pod,
    labels,
    merged_labels,
    selector_labels,
    uses_dra,
)
from planner.render.text import annotation_key, comment, dns_name, object_name


@dataclass(frozen=True, slots=True)
class Workload:
    """One pool as a Deployment or a LeaderWorkerSet."""

    meta: Meta
    selector: dict[str, str]
    replicas: int | None
    """None where an autoscaler owns the number."""
    replicas_why: str
    strategy: dict[str, Any]
    strategy_why: str
    progress_s: int
    pod: Pod
    worker: Pod | None = None
    size: int = 1
    size_why: str = ""


@dataclass(frozen=True, slots=True)
class ServiceObject:
    """A Service."""

    meta: Meta
    selector: dict[str, str]
    ports: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget."""

    meta: Meta
    limit: dict[str, int]
    """maxUnavailable, or minAvailable where the pods' controller has no scale."""
    why: str
    selector: dict[str, str]


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaimTemplate."""

    meta: Meta
    device_class: str
    count: int


CRD_OF = {
    "leaderworkerset": "replicas over several nodes",
    "disaggregatedset": "a DisaggregatedSet",
    "keda": "autoscaling",
    "prometheus": "monitoring",
    "gateway": "an HTTPRoute",
    "kserve": "target kserve",
    "dynamo": "target dynamo",
    "inferencepool": "target llm-d",
}


def need_crd(platform: Platform, name: str) -> None:
    """Refuse what the cluster is said not to have."""
    if platform.crds is not None and name not in platform.crds:
        raise refused(
            "missing-crd",
            f"{CRD_OF[name]} needs {name}, which platform.crds does not list",
            f"install it and add {name} to crds, or choose another target",
        )


def meta(f: PoolFacts, name: str | None = None, *, extra: dict[str, str] | None = None, reasons: bool = False) -> Meta:
    """metadata of an object of one pool; with the plan's reasons as annotations where it is the workload."""
    annotations = dict(f.plan.platform.annotations)
    if reasons:
        annotations |= {annotation_key(k): comment(v) for k, v in f.pool.reasons.items()}
    return Meta(name or f.name, f.plan.platform.namespace, labels(f, extra=extra), dict(sorted(annotations.items())))


def service_meta(f: PoolFacts, name: str, component: str, *, extra: dict[str, str] | None = None) -> Meta:
    """metadata of an object that belongs to the whole service."""
    own = {
        "app.kubernetes.io/instance": f.service.name,
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/component": component,
    }
    platform = f.plan.platform
    return Meta(
        dns_name(name, "object"),
        platform.namespace,
        merged_labels(platform, own, extra),
        dict(sorted(platform.annotations.items())),
    )


def scaled(f: PoolFacts) -> bool:
    """Whether an autoscaler owns the number of replicas."""
    return f.plan.platform.autoscaling == "keda"


def kueue(f: PoolFacts) -> dict[str, str]:
    """The label by which Kueue admits a workload."""
    queue = f.plan.platform.kueue_queue
    return {} if queue is None else {KUEUE_LABEL: queue}


def replicas_why(f: PoolFacts) -> str:
    """Why so many replicas."""
    return f.why("replicas") or f"{f.pool.gpus} GPUs of {f.pool.fleet_pool}"


def rolling(f: PoolFacts) -> tuple[dict[str, Any], str]:
    """How a change rolls out: with a spare replica's GPUs first up, then down; without, the other way round."""
    if f.surge:
        return (
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            f"{f.spare_gpus} spare GPUs carry one more replica",
        )
    return (
        {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "no spare GPUs: a surge would wait for ever",
    )


def deployment(f: PoolFacts, **pod: Any) -> Workload:
    """A pool whose replicas fit on one node each."""
    strategy, why = rolling(f)
    return Workload(
        meta=meta(f, extra=kueue(f), reasons=True),
        selector=selector_labels(f),
        replicas=None if scaled(f) else f.pool.replicas,
        replicas_why=replicas_why(f),
        strategy=strategy,
        strategy_why=why,
        progress_s=f.start_s + f.grace_s,
        pod=engine_pod(f, **pod),
    )


def leader_worker_set(f: PoolFacts, **pod: Any) -> Workload:
    """A pool whose replicas take several nodes each."""
    need_crd(f.plan.platform, "leaderworkerset")
    strategy, why = rolling(f)
    update = {"maxSurge": strategy["rollingUpdate"]["maxSurge"], "maxUnavailable": 1 - f.surge}
    return Workload(
        meta=meta(f, extra=kueue(f), reasons=True),
        selector=selector_labels(f),
        replicas=None if scaled(f) else f.pool.replicas,
        replicas_why=replicas_why(f),
        strategy={"type": "RollingUpdate", "rollingUpdateConfiguration": update},
        strategy_why=why,
        progress_s=0,
        pod=engine_pod(f, **pod),
        worker=engine_pod(f, worker=True, **{k: v for k, v in pod.items() if k not in ("sidecars", "port")}),
        size=f.pods,
        size_why=f"{f.pods} nodes x {f.gpus_per_pod} GPUs = {f.pool.gpus_per_replica}",
    )


def budget(f: PoolFacts) -> Budget:
    """At most one pod of a pool away at a time."""
    why = "" if f.pool.replicas > 1 else "the only replica: a drain interrupts the service"
    return Budget(meta(f), {"maxUnavailable": 1}, why, selector_labels(f))


def workload_artefacts(folder: PurePosixPath, pools: list[PoolFacts], **pod: Any) -> list[Artefact]:
    """Deployments and LeaderWorkerSets of some pools, their budgets and claims."""
    single = [f for f in pools if not f.multi_node]
    multi = [f for f in pools if f.multi_node]
    found = []
    if single:
        context = {"workloads": [deployment(f, **pod) for f in single]}
        found.append(Artefact(folder / "deployment.yaml", "kubernetes/deployment.yaml.j2", context))
    if multi:
        context = {"workloads": [leader_worker_set(f, **pod) for f in multi]}
        found.append(Artefact(folder / "leaderworkerset.yaml", "kubernetes/leaderworkerset.yaml.j2", context))
    return [*found, *support_artefacts(folder, pools)]


def support_artefacts(folder: PurePosixPath, pools: list[PoolFacts]) -> list[Artefact]:
    """What every pool has beside its workload: a budget, and a claim template under DRA."""
    budgets = {"budgets": [budget(f) for f in pools]}
    found = [Artefact(folder / "pdb.yaml", "kubernetes/pdb.yaml.j2", budgets)]
    claims = [Claim(meta(f, f"{f.name}-gpu"), DRA_CLASSES[f.gpu.vendor], f.gpus_per_pod) for f in pools if uses_dra(f)]
    if claims:
        found.append(Artefact(folder / "resourceclaim.yaml", "kubernetes/resourceclaim.yaml.j2", {"claims": claims}))
    return found


def service_artefact(folder: PurePosixPath, pools: list[PoolFacts]) -> Artefact:
    """The Service that clients call: the engines of an aggregated service."""
    f = pools[0]
    selector = {"app.kubernetes.io/component": "aggregated", "app.kubernetes.io/instance": f.service.name}
    if any(p.multi_node for p in pools):
        if not all(p.multi_node for p in pools):
            raise refused("mixed-pools", f"service {f.service.name!r} mixes one-node and several-node pools")
        selector |= LEADER_LABEL
    service = ServiceObject(
        service_meta(f, object_name(f.service.name), "endpoint"),
        selector,
        [{"name": "http", "port": f.engine.port, "targetPort": "http", "protocol": "TCP"}],
    )
    return Artefact(folder / "service.yaml", "kubernetes/service.yaml.j2", {"service": service})


def kustomization(folder: PurePosixPath, artefacts: list[Artefact], platform: Platform) -> Artefact:
    """Names every manifest of a folder, so that users overlay instead of editing."""
    dashboard = next((a.context["dashboard"] for a in artefacts if a.path.name == "dashboard.json"), None)
    names = sorted(a.path.name for a in artefacts if a.path.suffix == ".yaml")
    context = {"namespace": platform.namespace, "resources": names, "dashboard": dashboard}
    return Artefact(folder / "kustomization.yaml", "kubernetes/kustomization.yaml.j2", context)
