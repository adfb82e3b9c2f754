"""The pod of an engine, a router or a sidecar: one description for every target that runs pods."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from planner.errors import not_supported
from planner.intent.platform import Platform
from planner.render import sglang, vllm
from planner.render.args import Arg, Env, kubernetes
from planner.render.facts import GIB, PRE_STOP_S, PoolFacts
from planner.render.files import refused
from planner.render.images import engine_image
from planner.render.source import CACHE, ModelAccess, model_access
from planner.render.text import kubernetes_escape

LEADER_LABEL = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
BOOTSTRAP_ANNOTATION = "sglang.ai/bootstrap-port"
DRA_CLASSES = {"nvidia": "gpu.nvidia.com", "amd": "gpu.amd.com"}
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"


@dataclass(frozen=True, slots=True)
class Line:
    """One list item of a manifest and the reason that stands behind it."""

    text: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """One container."""

    name: str
    image: str
    command: tuple[str, ...]
    args: tuple[Line, ...]
    env: tuple[dict[str, Any], ...]
    ports: tuple[dict[str, Any], ...]
    resources: dict[str, Any]
    resource_why: str
    security: dict[str, Any]
    mounts: tuple[dict[str, Any], ...]
    probes: dict[str, Any]
    """startupProbe, readinessProbe, livenessProbe, lifecycle, restartPolicy: what the container has of them."""
    probes_why: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod template."""

    labels: dict[str, str]
    annotations: dict[str, str]
    init_containers: tuple[Container, ...]
    containers: tuple[Container, ...]
    volumes: tuple[dict[str, Any], ...]
    spec: dict[str, Any]
    """Fields of the pod spec that carry no decision of the plan, in the order they are written."""


def gib(size: float) -> str:
    """A size as Kubernetes writes it, rounded up to whole Gi."""
    return f"{math.ceil(size / GIB)}Gi"


def pod_security(platform: Platform, *, user: int | None) -> dict[str, Any]:
    """Security context of a pod: never privileged; `restricted` also never root."""
    context: dict[str, Any] = {}
    uid = platform.run_as_user or (user if platform.security == "restricted" else None)
    if platform.security == "restricted" or platform.run_as_user is not None:
        context["runAsNonRoot"] = True
    if uid is not None:
        context |= {"runAsUser": uid, "runAsGroup": 0, "fsGroup": uid}
    return context | {"seccompProfile": {"type": "RuntimeDefault"}}


def container_security(*, ipc_lock: bool = False) -> dict[str, Any]:
    """No escalation, no capability except IPC_LOCK where RDMA pins memory."""
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if ipc_lock:
        capabilities["add"] = ["IPC_LOCK"]
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}


def pre_stop(platform: Platform, seconds: int) -> dict[str, Any]:
    """Wait until endpoints forgot the pod. `sleep` is a field since 1.30; older clusters run the command."""
    if int(platform.kubernetes_version.split(".")[1]) >= 30:
        return {"preStop": {"sleep": {"seconds": seconds}}}
    return {"preStop": {"exec": {"command": ["sleep", str(seconds)]}}}


def env_entries(env: tuple[Env, ...]) -> tuple[dict[str, Any], ...]:
    """Environment as a container lists it."""
    entries = []
    for e in env:
        if e.field is not None:
            entries.append({"name": e.name, "valueFrom": {"fieldRef": {"fieldPath": e.field}}})
        elif e.secret is not None:
            ref = {"name": e.secret, "key": e.secret_key}
            entries.append({"name": e.name, "valueFrom": {"secretKeyRef": ref}})
        else:
            assert e.value is not None
            entries.append({"name": e.name, "value": kubernetes_escape(e.value)})
    return tuple(entries)


def lines(args: tuple[Arg, ...]) -> tuple[Line, ...]:
    """Arguments as a container lists them, one word per line, the reason behind the first word."""
    found = []
    for a in args:
        words = a.words(kubernetes)
        found += [Line(words[0], a.why), *(Line(w) for w in words[1:])]
    return tuple(found)


def labels(f: PoolFacts, *, extra: dict[str, str] | None = None) -> dict[str, str]:
    """Labels of a pool's objects and pods; the platform's own may not replace them."""
    return merged_labels(f.plan.platform, selector_labels(f) | {"app.kubernetes.io/component": f.pool.role}, extra)


def merged_labels(platform: Platform, own: dict[str, str], extra: dict[str, str] | None = None) -> dict[str, str]:
    """The platform's labels and ours; a clash is refused."""
    own = own | {"app.kubernetes.io/managed-by": "llm-deployment-planner"} | (extra or {})
    clash = sorted(set(own) & set(platform.labels))
    if clash:
        raise refused("label-clash", f"platform.labels sets {clash[0]!r}, which the planner owns", "remove it")
    return dict(sorted((own | platform.labels).items()))


def selector_labels(f: PoolFacts) -> dict[str, str]:
    """What selects the pods of one pool; never changes for a pool of one name."""
    return {"app.kubernetes.io/instance": f.service.name, "app.kubernetes.io/name": f.name}


def cache_env(user_known: bool) -> tuple[Env, ...]:
    """Caches that a non-root user may write; compiled kernels stay in the pod's own volume."""
    env = [
        Env("HOME", CACHE),
        Env("HF_HOME", f"{CACHE}/huggingface"),
        Env("XDG_CACHE_HOME", f"{CACHE}/.cache"),
        Env("TRITON_CACHE_DIR", f"{CACHE}/triton"),
        Env("TORCHINDUCTOR_CACHE_DIR", f"{CACHE}/inductor"),
    ]
    if user_known:
        env.append(Env("USER", "engine"))  # an arbitrary uid has no passwd entry
    return tuple(env)


def engine_args(f: PoolFacts) -> tuple[Arg, ...]:
    """The engine's arguments, by engine."""
    return vllm.vllm_args(f) if f.engine.engine == "vllm" else sglang.sglang_args(f)


def engine_env(f: PoolFacts) -> tuple[Env, ...]:
    """The engine's own environment, by engine."""
    return vllm.vllm_env(f) if f.engine.engine == "vllm" else sglang.sglang_env(f)


def engine_resources(f: PoolFacts, *, dra: bool = False) -> dict[str, Any]:
    """GPUs, RDMA devices, CPU and memory of one pod. Memory is request and limit: /dev/shm counts against it."""
    memory = gib(f.memory_bytes)
    requests: dict[str, Any] = {"cpu": str(f.cpus), "memory": memory}
    source = f.plan.platform.model_source
    if source.kind == "hub" and source.claim is None:
        # the checkpoint is downloaded into the pod's own volume
        requests["ephemeral-storage"] = gib(f.service.model.weights * 1.1 + 10 * GIB)
    limits: dict[str, Any] = {"memory": memory}
    if not dra:
        limits[f.gpu_resource] = str(f.gpus_per_pod)
    if f.rdma_resource is not None:
        # a shared device is one for all; others are counted, one NIC per GPU
        limits[f.rdma_resource] = "1" if "shared" in f.rdma_resource else str(f.gpus_per_pod)
    resources: dict[str, Any] = {"requests": requests, "limits": limits}
    if dra:
        resources["claims"] = [{"name": "gpu"}]
    return resources


def uses_dra(f: PoolFacts) -> bool:
    """Whether GPUs come through Dynamic Resource Allocation; refused where the cluster is too old."""
    if f.plan.platform.resources != "dra":
        return False
    if int(f.plan.platform.kubernetes_version.split(".")[1]) < 34:
        raise not_supported(
            f"DRA on Kubernetes {f.plan.platform.kubernetes_version}", helps=("resource.k8s.io/v1 needs 1.34 or later",)
        )
    if f.gpu.vendor not in DRA_CLASSES:
        raise not_supported(f"DRA for {f.gpu.vendor} GPUs")
    return True


def probes(f: PoolFacts, *, port: str = "http") -> dict[str, Any]:
    """Start as long as loading takes, readiness at once, liveness patient enough for SGLang's generating /health."""
    ready = {"path": f.engine.ready_path, "port": port}
    slow = f.engine.engine == "sglang"
    return {
        "startupProbe": {
            "httpGet": ready,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": math.ceil(f.start_s / 10),
        },
        "readinessProbe": {"httpGet": ready, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {
            "httpGet": {"path": f.engine.health_path, "port": port},
            "periodSeconds": 30 if slow else 10,
            "timeoutSeconds": 30 if slow else 10,
            "failureThreshold": 3,
        },
    }


def engine_pod(
    f: PoolFacts,
    *,
    worker: bool = False,
    container: str | None = None,
    image: str | None = None,
    extra_labels: dict[str, str] | None = None,
    port: int | None = None,
    sidecars: tuple[Container, ...] = (),
) -> Pod:
    """The pod of one node of one replica. `worker`: a node other than the first, which serves no HTTP."""
    platform = f.plan.platform
    access = model_access(f.service.model, platform, f.engine.engine)
    args, command = engine_args(f), f.engine.command
    if worker and f.engine.engine == "vllm":
        args += vllm.worker_args()
    if port is not None:
        args = tuple(Arg("--port", (str(port),), (), a.why) if a.flag == "--port" else a for a in args)
    step = vllm.start_rank_step(f) if f.engine.engine == "vllm" else None
    if step is not None:
        script = f'exec vllm serve "$@" {vllm.START_RANK}="$((LWS_WORKER_INDEX * {step}))"'
        command = ("/bin/sh", "-c", kubernetes_escape(script), "vllm")
    dra = uses_dra(f)
    ports = [] if worker else [{"name": "http", "containerPort": port or f.engine.port}]
    if f.pool.role != "aggregated" and f.engine.engine == "vllm":
        ports.append({"name": "nixl", "containerPort": vllm.SIDE_CHANNEL_PORT})
    if f.pool.role == "prefill" and f.engine.engine == "sglang" and not worker:
        ports.append({"name": "bootstrap", "containerPort": sglang.BOOTSTRAP_PORT})
    seen: dict[str, Any] = {} if worker else probes(f)
    if not worker:
        seen["lifecycle"] = pre_stop(platform, PRE_STOP_S)
    main = Container(
        name=container or f.engine.engine,
        image=image or engine_image(f.engine, platform, vendor=f.gpu.vendor),
        command=command,
        args=lines(args),
        env=env_entries((*access.env, *cache_env(True), *engine_env(f))),
        ports=tuple(ports),
        resources=engine_resources(f, dra=dra),
        resource_why=f"{f.gpus_per_pod} of {f.gpus_per_node} GPUs of a node",
        security=container_security(ipc_lock=f.rdma),
        mounts=engine_mounts(access),
        probes=seen,
        probes_why="" if worker else f"a start may take {f.start_s} s: loading weights, then compiling",
    )
    annotations = dict(sorted(platform.annotations.items()))
    if f.pool.role == "prefill" and f.engine.engine == "sglang":
        annotations[BOOTSTRAP_ANNOTATION] = str(sglang.BOOTSTRAP_PORT)
    return Pod(
        labels=labels(f, extra=extra_labels),
        annotations=annotations,
        init_containers=sidecars,
        containers=(main,),
        volumes=engine_volumes(f, access),
        spec=pod_spec(f, dra=dra),
    )


def engine_mounts(access: ModelAccess) -> tuple[dict[str, Any], ...]:
    """Caches, shared memory, models."""
    return (
        {"name": "cache", "mountPath": CACHE},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the container's own shared memory
        *access.mounts,
    )


def engine_volumes(f: PoolFacts, access: ModelAccess) -> tuple[dict[str, Any], ...]:
    """The volumes behind them."""
    return (
        {"name": "cache", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": gib(f.shm_bytes)}},
        *access.volumes,
    )


def pod_spec(f: PoolFacts, *, dra: bool) -> dict[str, Any]:
    """Where and as whom the pod runs."""
    spec = base_spec(f.plan.platform, user=f.engine.user)
    spec["terminationGracePeriodSeconds"] = f.grace_s
    if f.node_selector:
        spec["nodeSelector"] = f.node_selector
    if f.tolerations:
        spec["tolerations"] = [t.model_dump(exclude_none=True) for t in f.tolerations]
    spec["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector_labels(f)},
        }
    ]
    if dra:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": f"{f.name}-gpu"}]
    return spec


def base_spec(platform: Platform, *, user: int | None, token: bool = False) -> dict[str, Any]:
    """What every pod has: no service links, no token unless it needs one, the platform's policies."""
    spec: dict[str, Any] = {"enableServiceLinks": False, "automountServiceAccountToken": token}
    if platform.service_account is not None:
        spec["serviceAccountName"] = platform.service_account
    if platform.pull_secrets:
        spec["imagePullSecrets"] = [{"name": s} for s in platform.pull_secrets]
    if platform.priority_class is not None:
        spec["priorityClassName"] = platform.priority_class
    if platform.runtime_class is not None:
        spec["runtimeClassName"] = platform.runtime_class
    spec["securityContext"] = pod_security(platform, user=user)
    return spec
