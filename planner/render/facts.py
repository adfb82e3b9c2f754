"""What every target needs to know of one pool, worked out once from the plan.

The constants are choices of this project with their reasons beside them; DECISIONS.md lists them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.catalog.engines import DYNAMO, DYNAMO_CARRIES, EngineVersion, find_engine
from planner.catalog.gpus import Gpu, find_gpu
from planner.errors import not_supported
from planner.intent.document import Service
from planner.intent.fleet import Pool, Toleration
from planner.plan.document import Plan, PoolDoc, ServiceDoc
from planner.render.files import refused
from planner.render.text import LABEL_VALUE, QUALIFIED_NAME, dns_name, object_name
from planner.units import show_bytes, show_time

GIB = 2**30
SHM_ONE_GPU = 2 * GIB
"""NCCL is not used; the engine's own processes still share memory (vLLM's documentation: 2Gi)."""
SHM_SEVERAL_GPUS = 16 * GIB
"""Deployments in public charts settle at 15-24Gi for tensor parallelism."""
SHM_SGLANG = 32 * GIB
"""SGLang's documentation."""
HOST_BASE = 16 * GIB
"""The engine's processes, tokenizer and page cache to stream weights through."""
HOST_PER_GPU = 8 * GIB
"""Pinned buffers and CUDA context of each worker."""
NODE_SHARE = 0.9
"""Part of a node that pods may ask for: the rest is the system's."""
START_BASE_S = 600.0
"""Compilation, graph capture and warm-up on top of loading weights (vLLM's own ready timeout is 600 s)."""
LOAD_SLACK = 2.0
"""Storage is slower than its figure when all replicas start at once."""
PRE_STOP_S = 15
"""Endpoints need this long to forget a pod that is going away."""
DRAIN_FALLBACK_S = 120
DRAIN_MOST_S = 900


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """One pool as files need it."""

    service: ServiceDoc
    intent: Service
    pool: PoolDoc
    plan: Plan
    engine: EngineVersion
    gpu: Gpu
    fleet_pool: Pool
    name: str
    """Name of the pool's objects."""
    gpus_per_node: int
    pods: int
    """Pods (nodes) of one replica."""
    gpus_per_pod: int
    shm_bytes: int
    memory_bytes: int
    cpus: int
    start_s: int
    """Longest start that the probes allow."""
    drain_s: int
    grace_s: int
    gpu_resource: str
    rdma_resource: str | None
    rdma: bool
    """The pool talks to other pods over RDMA: KV hand-over, several nodes. It then needs IPC_LOCK and the device."""
    node_selector: dict[str, str]
    tolerations: tuple[Toleration, ...]
    spare_gpus: int
    """GPUs of the fleet pool that no service uses."""
    surge: bool
    """A rollout can start a new replica before it stops an old one, wherever the others stand."""

    @property
    def multi_node(self) -> bool:
        return self.pods > 1

    @property
    def dp_local(self) -> int:
        """Data-parallel ranks on one node."""
        s = self.pool.shape
        return max(1, self.gpus_per_pod // (s.tp * s.pp))

    @property
    def transfer_why(self) -> str:
        """What the hand-over costs, as the plan counted it."""
        t = self.service.transfer
        said = "" if t is None else f"{show_bytes(t.prompt_kv)} a prompt in {show_time(t.time)} over {t.over}"
        return self.why("transfer") or said

    @property
    def speculation_why(self) -> str:
        """The acceptance that the plan counts on."""
        s = self.service.speculation
        said = "" if s is None else f"the plan counts on {s.acceptance:.0%} of drafts accepted"
        return self.why("speculation") or said

    def why(self, *decisions: str) -> str:
        """The plan's reasons for these decisions, as one line."""
        found = (self.pool.reasons.get(d) for d in decisions)
        return "; ".join(r for r in found if r)


def engine_of(service: ServiceDoc, plan: Plan) -> EngineVersion:
    """The engine version that runs: what the target's runtime carries, or what the service names."""
    if service.target != "dynamo":
        engine = find_engine(service.engine, service.engine_version)
        if engine.carried_by is not None:
            raise not_supported(
                f"{engine.label} with target {service.target}",
                helps=(f"that version is known as {engine.carried_by} carries it: plan with target dynamo",),
            )
        return engine
    if plan.platform.dynamo_version != DYNAMO:
        raise not_supported(
            f"Dynamo {plan.platform.dynamo_version}", helps=(f"set dynamo_version: {DYNAMO} in platform.yaml",)
        )
    if service.engine not in DYNAMO_CARRIES:
        raise not_supported(f"{service.engine} on Dynamo")
    return find_engine(service.engine, DYNAMO_CARRIES[service.engine])


def pool_facts(plan: Plan, service: ServiceDoc, pool: PoolDoc) -> PoolFacts:
    """Everything about one pool; refuses a plan that contradicts itself."""
    engine = engine_of(service, plan)
    if engine.predicts_only:
        raise not_supported(f"rendering for {engine.label}")
    intent = next((s for s in plan.intent.services if s.name == service.name), None)
    fleet_pool = next((p for p in plan.fleet.pools if p.name == pool.fleet_pool), None)
    if intent is None or fleet_pool is None:
        raise refused("plan-inconsistent", f"pool {pool.name!r} refers to what the plan does not hold")
    gpu = find_gpu(pool.gpu)
    per_node = fleet_pool.gpus_per_node or gpu.node.gpus
    shape = pool.shape
    if shape.tp * shape.pp * shape.dp != pool.gpus_per_replica:
        raise refused(
            "plan-inconsistent",
            f"pool {pool.name!r}: tp {shape.tp} x pp {shape.pp} x dp {shape.dp} is not {pool.gpus_per_replica} GPUs",
        )
    if pool.gpus_per_replica * pool.replicas != pool.gpus:
        raise refused("plan-inconsistent", f"pool {pool.name!r}: replicas x GPUs is not {pool.gpus}")
    pods = max(1, pool.nodes_per_replica)
    if pool.gpus_per_replica % pods or pool.gpus_per_replica // pods > per_node:
        raise refused(
            "plan-inconsistent",
            f"pool {pool.name!r}: {pool.gpus_per_replica} GPUs do not spread evenly over {pods} nodes of {per_node}",
        )
    gpus_per_pod = pool.gpus_per_replica // pods
    if pods > 1 and shape.dp > 1 and gpus_per_pod % (shape.tp * shape.pp):
        raise not_supported(f"a data-parallel rank that spans nodes (pool {pool.name!r})")
    disaggregated = pool.role != "aggregated"
    rdma = (disaggregated or pods > 1) and fleet_pool.rdma
    shm = SHM_SGLANG if service.engine == "sglang" else SHM_ONE_GPU if gpus_per_pod == 1 else SHM_SEVERAL_GPUS
    share = NODE_SHARE * gpus_per_pod / per_node
    if fleet_pool.memory_per_node is not None:
        memory = int(fleet_pool.memory_per_node * share // GIB) * GIB
    else:
        memory = shm + HOST_BASE + HOST_PER_GPU * gpus_per_pod
    if memory <= shm:
        raise refused(
            "host-memory",
            f"pool {pool.name!r}: /dev/shm of {shm // GIB}Gi does not fit into {memory // GIB}Gi of host memory",
            "raise memory_per_node in the fleet file",
        )
    cpus = int(fleet_pool.cpus_per_node * share) if fleet_pool.cpus_per_node else 4 + 2 * gpus_per_pod
    drain = drain_s(pool)
    kubernetes = fleet_pool.kubernetes
    selector = dict(kubernetes.node_selector)
    labels = gpu.kubernetes
    if not selector and labels is not None and labels.label_key and labels.label_value:
        selector = {labels.label_key: labels.label_value}
    resource = kubernetes.gpu_resource or (labels.resource if labels else None)
    if resource is None:
        raise refused(
            "gpu-resource",
            f"how Kubernetes counts {gpu.id} is not known",
            f"set kubernetes.gpu_resource in pool {fleet_pool.name!r} of the fleet file",
        )
    check_words(selector, (resource, kubernetes.rdma_resource), fleet_pool.name)
    used = sum(p.gpus for s in plan.services for p in s.pools if p.fleet_pool == fleet_pool.name)
    return PoolFacts(
        service=service,
        intent=intent,
        pool=pool,
        plan=plan,
        engine=engine,
        gpu=gpu,
        fleet_pool=fleet_pool,
        name=dns_name(object_name(pool.name), "pool"),
        gpus_per_node=per_node,
        pods=pods,
        gpus_per_pod=gpus_per_pod,
        shm_bytes=shm,
        memory_bytes=memory,
        cpus=max(1, cpus),
        start_s=start_s(service, fleet_pool, gpus_per_pod=gpus_per_pod, gpus_per_node=per_node, pods=pods),
        drain_s=drain,
        grace_s=PRE_STOP_S + drain + 15,
        gpu_resource=resource,
        rdma_resource=kubernetes.rdma_resource if rdma else None,
        rdma=rdma,
        node_selector=dict(sorted(selector.items())),
        tolerations=kubernetes.tolerations or _tolerations(resource),
        spare_gpus=(fleet_pool.nodes - fleet_pool.reserved_nodes) * per_node - used,
        surge=room_for(plan, pool, fleet_pool, gpus_per_pod=gpus_per_pod, pods=pods, gpus_per_node=per_node),
    )


def room_for(plan: Plan, pool: PoolDoc, fleet_pool: Pool, *, gpus_per_pod: int, pods: int, gpus_per_node: int) -> bool:
    """Whether one more replica fits however the scheduler placed all pods of the fleet pool.

    Pods of one size: a free slot is a free slot. Mixed sizes: a node is lost to a pod of g GPUs once more than
    (node - g) are taken, so at most used / (node - g + 1) nodes are lost, and never more than there are pods.
    """
    nodes = fleet_pool.nodes - fleet_pool.reserved_nodes
    others = [p for s in plan.services for p in s.pools if p.fleet_pool == fleet_pool.name]
    sizes = {p.gpus_per_replica // max(1, p.nodes_per_replica) for p in others}
    if sizes == {gpus_per_pod}:
        slots = nodes * (gpus_per_node // gpus_per_pod)
        return slots - sum(p.replicas * max(1, p.nodes_per_replica) for p in others) >= pods
    used = sum(p.gpus for p in others)
    standing = sum(p.replicas * max(1, p.nodes_per_replica) for p in others)
    lost = min(nodes, standing, used // (gpus_per_node - gpus_per_pod + 1))
    return nodes - lost >= pods


def check_words(selector: dict[str, str], resources: tuple[str | None, ...], pool: str) -> None:
    """Labels and resource names of a fleet file, before an API server refuses them."""
    for key, value in selector.items():
        if not QUALIFIED_NAME.match(key) or not LABEL_VALUE.match(value):
            raise refused("bad-label", f"fleet pool {pool!r}: {key[:70]!r}: {value[:70]!r} is no node label")
    for name in resources:
        if name is not None and not QUALIFIED_NAME.match(name):
            raise refused("bad-resource", f"fleet pool {pool!r}: {name[:70]!r} is no resource name")


def _tolerations(resource: str) -> tuple[Toleration, ...]:
    """The taint that GPU nodes usually carry, unless the fleet file says otherwise."""
    return (Toleration(key=resource, operator="Exists", effect="NoSchedule"),) if "/" in resource else ()


def start_s(service: ServiceDoc, fleet_pool: Pool, *, gpus_per_pod: int, gpus_per_node: int, pods: int) -> int:
    """Seconds that a start may take: twice the time to read the weights, plus compilation and graph capture.

    A node reads at the fleet's storage bandwidth; all pods of a node may start together.
    """
    together = max(1, gpus_per_node // gpus_per_pod)
    load = service.model.weights / pods * together / fleet_pool.storage_bandwidth
    return math.ceil((START_BASE_S + LOAD_SLACK * load) / 60) * 60


def drain_s(pool: PoolDoc) -> int:
    """Seconds a stopping replica may take to finish what it runs: the longest predicted end-to-end p99, rounded up."""
    longest = [f.high for c in pool.classes for f in c.figures if f.metric in ("e2e.p99", "e2e.p95")]
    wanted = max(longest, default=float(DRAIN_FALLBACK_S))
    return min(DRAIN_MOST_S, max(30, math.ceil(wanted / 15) * 15))


def slo_limits(f: PoolFacts, metric: str) -> set[float]:
    """The limits of every SLO on one metric that this pool's classes have, in seconds."""
    return {
        figure.limit
        for c in f.pool.classes
        for figure in c.figures
        if figure.limit is not None and figure.metric.partition(".")[0] == metric
    }
