"""KServe: one LLMInferenceService (serving.kserve.io/v1alpha2) per service.

KServe writes the command itself and appends `VLLM_ADDITIONAL_ARGS` (evaluated by a shell, so every word is quoted); it
also owns ports, TLS and probes' handlers. What the plan decided goes into parallelism, replicas and those arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from planner.errors import not_supported
from planner.render.args import Arg, Env, argv
from planner.render.artefact import Artefact, Meta
from planner.render.disaggregated import check_pair
from planner.render.facts import PoolFacts
from planner.render.files import refused
from planner.render.images import engine_image
from planner.render.kubernetes import (
    Budget,
    Claim,
    kustomization,
    meta,
    need_crd,
    replicas_why,
    rolling,
    scaled,
    service_meta,
)
from planner.render.pod import (
    DRA_CLASSES,
    Container,
    Pod,
    cache_env,
    container_security,
    engine_resources,
    engine_volumes,
    env_entries,
    pod_spec,
    probes,
    uses_dra,
)
from planner.render.router import disaggregated
from planner.render.scaling import least_replicas, prometheus, threshold, trigger
from planner.render.source import CACHE, model_access
from planner.render.text import annotation_key, comment, object_name, plain, shell
from planner.render.vllm import vllm_args, vllm_env

POOL_LABEL = "llm-deployment-planner/pool"
# What KServe writes from the document's own fields.
KSERVE_WRITES = ("", "--served-model-name", "--host", "--port", "--shutdown-timeout")
RANKS = ("--nnodes", "--node-rank", "--master-addr", "--master-port", "--distributed-executor-backend")
DATA_PARALLEL = (
    "--data-parallel-size",
    "--data-parallel-size-local",
    "--data-parallel-address",
    "--data-parallel-rpc-port",
    "--data-parallel-start-rank",
)


@dataclass(frozen=True, slots=True)
class Half:
    """The main (decode or aggregated) or the prefill half."""

    labels: dict[str, str]
    replicas: int | None
    replicas_why: str
    scaling: dict[str, Any] | None
    parallelism: dict[str, Any]
    rollout: dict[str, Any]
    rollout_why: str
    decisions: tuple[str, ...]
    pod: Pod
    worker: Pod | None


@dataclass(frozen=True, slots=True)
class Inference:
    """The LLMInferenceService."""

    meta: Meta
    uri: str
    model: str
    main: Half
    prefill: Half | None


def kserve_artefacts(pools: list[PoolFacts]) -> list[Artefact]:
    """Everything of one service under `kserve/`."""
    f = pools[0]
    platform = f.plan.platform
    need_crd(platform, "kserve")
    if f.engine.engine != "vllm":
        raise not_supported(f"{f.engine.engine} with target kserve")
    for asked, what in (
        (platform.kueue_queue is not None, "a Kueue queue"),
        (platform.monitoring, "monitoring (KServe sets up its own)"),
        (platform.network_policy, "network policies (KServe's ports are its own)"),
        (platform.model_source.kind == "hub" and platform.model_source.claim is not None, "a hub cache claim"),
    ):
        if asked:
            raise not_supported(f"{what} with target kserve")
    split = disaggregated(pools)
    if split:
        check_pair(pools)
    if len([p for p in pools if p.pool.role == "decode" or not split]) != 1 or len(pools) > 2:
        raise not_supported("more than one pool of a role with target kserve", helps=("make them services",))
    main = next(p for p in pools if p.pool.role != "prefill")
    prefill = next((p for p in pools if p.pool.role == "prefill"), None)
    base = service_meta(f, object_name(f.service.name), "service")
    reasons = {annotation_key(f"{p.pool.role}_{k}"): comment(v) for p in pools for k, v in p.pool.reasons.items()}
    service = Inference(
        meta=Meta(base.name, base.namespace, base.labels, dict(sorted((base.annotations | reasons).items()))),
        uri=model_access(f.service.model, platform, "vllm").uri,
        model=plain(f.service.model.id, "model id"),
        main=half(main),
        prefill=None if prefill is None else half(prefill),
    )
    folder = PurePosixPath(f.service.name) / "kserve"
    budgets = [Budget(meta(p), {"maxUnavailable": 1}, "", {POOL_LABEL: p.name}) for p in pools]
    found = [
        Artefact(folder / "llminferenceservice.yaml", "kserve/llminferenceservice.yaml.j2", {"service": service}),
        Artefact(folder / "pdb.yaml", "kubernetes/pdb.yaml.j2", {"budgets": budgets}),
    ]
    claims = [Claim(meta(p, f"{p.name}-gpu"), DRA_CLASSES[p.gpu.vendor], p.gpus_per_pod) for p in pools if uses_dra(p)]
    if claims:
        found.append(Artefact(folder / "resourceclaim.yaml", "kubernetes/resourceclaim.yaml.j2", {"claims": claims}))
    return [*found, kustomization(folder, found, platform)]


def half(f: PoolFacts) -> Half:
    """One pool as KServe takes it."""
    strategy, why = rolling(f)
    args = additional_args(f)
    return Half(
        labels=dict(sorted((f.plan.platform.labels | {POOL_LABEL: f.name}).items())),
        replicas=None if scaled(f) else f.pool.replicas,
        replicas_why=replicas_why(f),
        scaling=_scaling(f) if scaled(f) else None,
        parallelism=parallelism(f),
        rollout=strategy["rollingUpdate"],
        rollout_why=why,
        decisions=tuple(f"{' '.join(argv((a,)))[:80]}: {a.why}" for a in args if a.why),
        pod=_pod(f, args),
        worker=_pod(f, args, worker=True) if f.multi_node else None,
    )


def parallelism(f: PoolFacts) -> dict[str, Any]:
    """KServe's own field; its groups of nodes follow from data or pipeline parallelism."""
    s = f.pool.shape
    found: dict[str, Any] = {"tensor": s.tp}
    if s.pp > 1:
        found["pipeline"] = s.pp
    if s.dp > 1:
        found |= {"data": s.dp, "dataLocal": f.dp_local}
    if s.ep:
        found["expert"] = True
    if f.multi_node and not (s.dp > 1 and s.pp == 1) and s.pp != f.pods:
        raise not_supported(
            f"tensor parallelism over several nodes with target kserve (pool {f.pool.name!r})",
            helps=("use target kubernetes", "or one pipeline stage per node"),
        )
    return found


def additional_args(f: PoolFacts) -> tuple[Arg, ...]:
    """What KServe does not write itself."""
    left_out = (*KSERVE_WRITES, *RANKS, *(DATA_PARALLEL if f.multi_node else ()))
    if f.plan.platform.model_source.kind == "s3":
        left_out = (*left_out, "--load-format")  # its initializer fetches the weights
    return tuple(a for a in vllm_args(f) if a.flag not in left_out)


def _pod(f: PoolFacts, args: tuple[Arg, ...], *, worker: bool = False) -> Pod:
    platform = f.plan.platform
    dra = uses_dra(f)
    text = " ".join(shell(w) for w in argv(args))
    secrets = tuple(e for e in model_access(f.service.model, platform, "vllm").env if e.secret is not None)
    env = (*secrets, *cache_env(True), *vllm_env(f), Env("VLLM_ADDITIONAL_ARGS", text))
    seen = {} if worker else probes(f)
    key = "kserve" if "kserve" in platform.images else None
    container = Container(
        name="main",
        image=engine_image(f.engine, platform, vendor=f.gpu.vendor, key=key),
        command=(),
        args=(),
        env=env_entries(env),
        ports=(),
        resources=engine_resources(f, dra=dra),
        resource_why=f"{f.gpus_per_pod} of {f.gpus_per_node} GPUs of a node",
        security=container_security(ipc_lock=f.rdma),
        mounts=(
            {"name": "cache", "mountPath": CACHE},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        ),
        # KServe's preset has the handler (its port and TLS); only the patience is ours
        probes={k: {n: v for n, v in p.items() if n != "httpGet"} for k, p in seen.items()},
        probes_why="" if worker else f"a start may take {f.start_s} s: loading weights, then compiling",
    )
    volumes = engine_volumes(f, replace(model_access(f.service.model, platform, "vllm"), volumes=(), mounts=()))
    return Pod({}, {}, (), (container,), volumes, pod_spec(f, dra=dra) | {"topologySpreadConstraints": _spread(f)})


def _spread(f: PoolFacts) -> list[dict[str, Any]]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {POOL_LABEL: f.name}},
        }
    ]


def _scaling(f: PoolFacts) -> dict[str, Any]:
    need_crd(f.plan.platform, "keda")
    prometheus(f)
    namespace = f.plan.platform.namespace
    if namespace is None:
        raise refused(
            "namespace",
            "autoscaling with target kserve finds its metrics by namespace",
            "set namespace in platform.yaml",
        )
    model = plain(f.service.model.id, "model id").replace("\\", "\\\\").replace('"', '\\"')
    match = f'namespace="{namespace}",model_name="{model}"'
    m = f.engine.metrics
    text = f"sum({m['running']}{{{match}}}) + sum({m['waiting']}{{{match}}})"
    if f.pool.role != "aggregated":
        raise not_supported("autoscaling prefill and decode with target kserve: their metrics carry no role")
    return {
        "minReplicas": least_replicas(f),
        "maxReplicas": f.pool.replicas,
        "keda": {"pollingInterval": 15, "triggers": [trigger(f, text, threshold(f))]},
    }
