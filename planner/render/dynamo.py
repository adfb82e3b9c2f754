"""Dynamo 1.6.1: one DynamoGraphDeployment (nvidia.com/v1beta1) per service.

Its images carry vLLM 0.31.0 and SGLang 0.5.21, so only flags of an allow-list are written (catalog/engines). The
operator adds probes, ranks and addresses of multi-node workers, and /dev/shm: they are not written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from planner.errors import not_supported
from planner.render import sglang, vllm
from planner.render.args import Arg, Env, arg, argv
from planner.render.artefact import Artefact, Meta
from planner.render.disaggregated import check_pair
from planner.render.facts import PRE_STOP_S, PoolFacts
from planner.render.files import refused
from planner.render.flags import check_argv
from planner.render.images import component_image, engine_image, version_of
from planner.render.kubernetes import (
    Budget,
    kustomization,
    meta,
    need_crd,
    replicas_why,
    scaled,
    service_meta,
)
from planner.render.monitoring import dynamo_view, monitoring_artefacts
from planner.render.network import network_artefacts
from planner.render.pod import (
    Container,
    Pod,
    base_spec,
    cache_env,
    container_security,
    engine_resources,
    env_entries,
    gib,
    labels,
    lines,
    merged_labels,
    pod_security,
    pod_spec,
    selector_labels,
    uses_dra,
)
from planner.render.router import affinity, disaggregated
from planner.render.scaling import dynamo_scaling
from planner.render.source import CACHE, model_access
from planner.render.text import annotation_key, comment, object_name, plain

BOOTSTRAP_PORT = 12345
FRONTEND_PORT = 8000


@dataclass(frozen=True, slots=True)
class Component:
    """One component of the graph."""

    name: str
    type: str
    replicas: int
    replicas_why: str
    pod: Pod
    node_count: int | None
    shared_memory: str | None
    scaling: bool
    runtime_version: str | None
    """Set where the image's tag is no semantic version: admission wants to know."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The deployment."""

    meta: Meta
    framework: str
    components: tuple[Component, ...]


def dynamo_artefacts(pools: list[PoolFacts]) -> list[Artefact]:
    """Everything of one service under `dynamo/`."""
    f = pools[0]
    platform = f.plan.platform
    need_crd(platform, "dynamo")
    if platform.kueue_queue is not None:
        raise not_supported("a Kueue queue with target dynamo")
    if any(uses_dra(p) for p in pools):
        raise not_supported("DRA with target dynamo", helps=("its planner does not count such GPUs",))
    if platform.network_policy:
        raise not_supported("network policies with target dynamo", helps=("its ports are chosen at run time",))
    if disaggregated(pools):
        check_pair(pools)
    names = component_names(pools)
    graph = _graph(pools, names)
    folder = PurePosixPath(f.service.name) / "dynamo"
    found = [
        Artefact(folder / "dynamographdeployment.yaml", "dynamo/dynamographdeployment.yaml.j2", {"graph": graph}),
        *_budgets(folder, pools),
        *dynamo_scaling(folder, pools, names),
        *monitoring_artefacts(folder, pools, [dynamo_view(pools)]),
        *network_artefacts(folder, pools, routed=False),
    ]
    return [*found, kustomization(folder, found, platform)]


def component_names(pools: list[PoolFacts]) -> dict[str, str]:
    """Pool name -> component name: its role, with what tells two pools of a role apart."""
    base = object_name(pools[0].service.name)
    found = {}
    for f in pools:
        role = "worker" if f.pool.role == "aggregated" else f.pool.role
        rest = f.name.removeprefix(base).strip("-").removeprefix(f.pool.role).strip("-")
        found[f.name] = f"{role}-{rest}" if rest else role
    if len(set(found.values())) != len(found):
        raise refused("duplicate-name", f"pools {', '.join(found)} would be one component")
    return found


def _graph(pools: list[PoolFacts], names: dict[str, str]) -> Graph:
    f = pools[0]
    base = service_meta(f, object_name(f.service.name), "graph")
    reasons = {annotation_key(f"{names[p.name]}_{k}"): comment(v) for p in pools for k, v in p.pool.reasons.items()}
    graph_meta = Meta(base.name, base.namespace, base.labels, dict(sorted((base.annotations | reasons).items())))
    return Graph(graph_meta, f.engine.engine, (_frontend(pools), *(_worker(p, names[p.name]) for p in pools)))


def _frontend(pools: list[PoolFacts]) -> Component:
    f = pools[0]
    platform = f.plan.platform
    image = component_image("dynamo-frontend", platform)
    mode = "kv" if affinity(pools) else "round-robin"
    args = (arg("--http-port", FRONTEND_PORT), arg("--router-mode", mode, "prefix hits" if mode == "kv" else ""))
    access = model_access(f.service.model, platform, f.engine.engine)
    container = Container(
        name="main",
        image=image,
        command=("python3", "-m", "dynamo.frontend"),
        args=lines(args),
        # the frontend reads the tokenizer only
        env=env_entries((*access.env, Env("HOME", CACHE), Env("HF_HOME", f"{CACHE}/huggingface"))),
        ports=({"name": "http", "containerPort": FRONTEND_PORT},),
        resources={"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"memory": "8Gi"}},
        resource_why="no GPU: HTTP, tokenizer and routing",
        security=container_security(),
        mounts=({"name": "cache", "mountPath": CACHE}, *access.mounts),
        probes={},
    )
    own = {
        "app.kubernetes.io/component": "frontend",
        "app.kubernetes.io/instance": f.service.name,
        "app.kubernetes.io/name": f"{object_name(f.service.name)}-frontend",
    }
    spec = base_spec(platform, user=f.engine.user) | {"terminationGracePeriodSeconds": f.grace_s}
    pod = Pod(
        merged_labels(platform, own),
        dict(sorted(platform.annotations.items())),
        (),
        (container,),
        ({"name": "cache", "emptyDir": {}}, *access.volumes),
        spec,
    )
    replicas = 1 if f.intent.survive == "none" else 2
    return Component(
        "frontend", "frontend", replicas, "one may go away" if replicas > 1 else "", pod, None, None, False,
        None if version_of(image) else platform.dynamo_version,
    )  # fmt: skip


def _worker(f: PoolFacts, name: str) -> Component:
    platform = f.plan.platform
    access = model_access(f.service.model, platform, f.engine.engine)
    image = engine_image(f.engine, platform, vendor=f.gpu.vendor, key=f"dynamo-{f.engine.engine}")
    args = worker_args(f)
    env = [
        *access.env,
        *(e for e in cache_env(False)),
        Env("DYN_WORKER_SHUTDOWN_INFLIGHT_TIMEOUT_SECS", str(f.drain_s), why="below the pod's grace"),
    ]
    if f.pool.role != "aggregated" and f.engine.engine == "vllm":
        env.append(Env("VLLM_NIXL_SIDE_CHANNEL_HOST", field="status.podIP"))
    container = Container(
        name="main",
        image=image,
        command=f.engine.command,
        args=lines(args),
        env=env_entries(tuple(env)),
        ports=(),
        resources=engine_resources(f),
        resource_why=f"{f.gpus_per_pod} of {f.gpus_per_node} GPUs of a node",
        security=container_security(ipc_lock=f.rdma),
        mounts=({"name": "cache", "mountPath": CACHE}, *access.mounts),
        probes={},
    )
    spec = pod_spec(f, dra=False)
    spec["securityContext"] = pod_security(platform, user=f.engine.user)
    spec["terminationGracePeriodSeconds"] = f.grace_s - PRE_STOP_S
    pod = Pod(
        labels(f),
        dict(sorted(platform.annotations.items())),
        (),
        (container,),
        ({"name": "cache", "emptyDir": {}}, *access.volumes),
        spec,
    )
    return Component(
        name=name,
        type="worker" if f.pool.role == "aggregated" else f.pool.role,
        replicas=f.pool.replicas,
        replicas_why=replicas_why(f),
        pod=pod,
        node_count=f.pods if f.multi_node else None,
        shared_memory=gib(f.shm_bytes),
        scaling=scaled(f),
        runtime_version=None if version_of(image) else platform.dynamo_version,
    )


def worker_args(f: PoolFacts) -> tuple[Arg, ...]:
    """A worker's arguments: the plan's decisions, by the allow-list; the operator adds ranks and addresses."""
    if f.pool.scheduling == "priority":
        raise not_supported(
            f"classes of different priority in one pool (pool {f.pool.name!r}) with target dynamo",
            helps=("give the service's classes one priority, or use target kubernetes",),
        )
    args = _vllm_args(f) if f.engine.engine == "vllm" else _sglang_args(f)
    check_argv(f.engine, argv(args))
    return args


def _vllm_args(f: PoolFacts) -> tuple[Arg, ...]:
    access = model_access(f.service.model, f.plan.platform, "vllm")
    if access.args:
        raise not_supported("model source s3 with target dynamo", helps=("copy the weights to a claim: kind: pvc",))
    s, p = f.pool.shape, f.pool
    dtype, kv = vllm.precision_words(f)
    args = [
        arg("--model", access.reference, f.why("precision")),
        arg("--served-model-name", plain(f.service.model.id, "model id")),
        arg("--tensor-parallel-size", s.tp, f.why("tensor_parallel", "shape")),
        arg("--pipeline-parallel-size", s.pp, f.why("pipeline_parallel")),
    ]
    if s.dp > 1:
        args.append(arg("--data-parallel-size", s.dp, f.why("data_parallel")))
    if s.ep:
        args.append(arg("--enable-expert-parallel", None, f.why("expert_parallel")))
        if p.all2all is not None:
            raise not_supported(f"all-to-all backend {p.all2all} with target dynamo")
    args.append(arg("--dtype", dtype))
    if f.service.model.online_quantization is not None:
        args.append(arg("--quantization", f.service.model.online_quantization))
    args += [
        arg("--kv-cache-dtype", kv, f.why("kv_dtype")),
        arg("--max-model-len", p.max_model_len, f.why("max_model_len")),
        arg("--max-num-seqs", p.max_num_seqs, f.why("max_num_seqs")),
        arg("--max-num-batched-tokens", p.max_num_batched_tokens, f.why("max_num_batched_tokens")),
        arg("--gpu-memory-utilization", p.gpu_memory_utilization, f.why("memory", "gpu_memory_utilization")),
        arg("--max-cudagraph-capture-size", vllm.graph_tokens(f), f.why("graph_sizes_max", "cuda_graphs")),
    ]
    if any(c.prefix_cache is not None or c.sessions is not None for c in f.intent.traffic):
        args.append(arg("--enable-prefix-caching", None, f.why("prefix_cache")))
    if f.service.speculation is not None:
        args.append(arg("--speculative-config", vllm.speculation(f.service.speculation), f.speculation_why))
    if p.role != "aggregated":
        # 1.6.1 refuses a prefill worker without a connector; its own recipes give both sides kv_both
        args += [
            arg("--disaggregation-mode", p.role),
            arg("--kv-transfer-config", vllm.kv_transfer(p.role, both=True), f.transfer_why),
        ]
    return tuple(args)


def _sglang_args(f: PoolFacts) -> tuple[Arg, ...]:
    access = model_access(f.service.model, f.plan.platform, "sglang")
    s, p = f.pool.shape, f.pool
    if f.service.speculation is not None:
        raise not_supported("speculative decoding with SGLang on Dynamo 1.6.1")
    ranks = sglang.attention_dp(f)
    tp = s.tp * ranks
    dtype, kv = vllm.precision_words(f)
    args = [
        arg("--model-path", access.reference, f.why("precision")),
        arg("--served-model-name", plain(f.service.model.id, "model id")),
        arg("--tp-size", tp, f.why("tensor_parallel", "shape")),
        arg("--pp-size", s.pp, f.why("pipeline_parallel")),
    ]
    if s.dp > 1:
        if ranks == 1:
            raise not_supported("SGLang copies of a dense model on Dynamo", helps=("plan replicas instead",))
        args += [arg("--dp-size", s.dp, f.why("data_parallel")), arg("--enable-dp-attention")]
    if s.ep:
        if p.all2all is not None:
            raise not_supported(f"all-to-all backend {p.all2all} with target dynamo")
        args.append(arg("--ep-size", tp, f.why("expert_parallel")))
    args.append(arg("--dtype", dtype))
    if f.service.model.online_quantization is not None:
        args.append(arg("--quantization", f.service.model.online_quantization))
    args += [
        arg("--kv-cache-dtype", "fp8_e4m3" if kv == "fp8" else "auto", f.why("kv_dtype")),
        arg("--context-length", p.max_model_len, f.why("max_model_len")),
        arg("--max-running-requests", p.max_num_seqs * ranks, f.why("max_num_seqs")),
        arg("--chunked-prefill-size", p.max_num_batched_tokens * ranks, f.why("max_num_batched_tokens")),
        arg("--mem-fraction-static", p.gpu_memory_utilization, f.why("memory", "gpu_memory_utilization")),
    ]
    if p.role != "aggregated":
        args += [
            arg("--disaggregation-mode", p.role),
            arg("--disaggregation-transfer-backend", "nixl", f.transfer_why),
            arg("--disaggregation-bootstrap-port", BOOTSTRAP_PORT),
            arg("--host", "0.0.0.0"),  # noqa: S104 - prefill's bootstrap server is called from other pods
        ]
    return tuple(args)


def _budgets(folder: PurePosixPath, pools: list[PoolFacts]) -> list[Artefact]:
    """Grove's pod groups have no scale that a budget could read, so it counts pods; an autoscaler would move them."""
    if scaled(pools[0]):
        return []
    budgets = [
        Budget(
            meta(f),
            {"minAvailable": (f.pool.replicas - 1) * f.pods},
            "all replicas but one",
            selector_labels(f),
        )
        for f in pools
        if f.pool.replicas > 1
    ]
    return [Artefact(folder / "pdb.yaml", "kubernetes/pdb.yaml.j2", {"budgets": budgets})] if budgets else []
