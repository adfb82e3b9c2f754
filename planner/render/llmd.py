"""llm-d: engines labelled for its endpoint picker, a routing sidecar beside decode, InferencePool and HTTPRoute.

The endpoint picker and the Gateway are llm-d's own installation; this tree names them and does not render them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from planner.errors import not_supported
from planner.render.args import Env, arg
from planner.render.artefact import Artefact, Meta
from planner.render.disaggregated import check_pair
from planner.render.facts import PoolFacts
from planner.render.images import component_image
from planner.render.kubernetes import (
    deployment,
    kustomization,
    need_crd,
    service_meta,
    support_artefacts,
)
from planner.render.monitoring import monitoring_artefacts, pool_view
from planner.render.network import network_artefacts
from planner.render.pod import Container, container_security, env_entries, lines
from planner.render.router import disaggregated
from planner.render.scaling import scaling_artefacts
from planner.render.text import dns_name, object_name

DECODE_PORT = 8200
SERVE_PORT = 8000
PICKER_PORT = 9002


@dataclass(frozen=True, slots=True)
class InferencePool:
    """The pool that the picker chooses from, and the route to it."""

    meta: Meta
    selector: dict[str, str]
    port: int
    picker: str
    picker_port: int
    gateway: str


def llmd_labels(f: PoolFacts) -> dict[str, str]:
    """Labels by which llm-d finds engines and tells roles apart."""
    found = {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": object_name(f.service.name)}
    if f.pool.role != "aggregated":
        found["llm-d.ai/role"] = f.pool.role
    return found


def sidecar(f: PoolFacts) -> Container:
    """llm-d's proxy in a decode pod: it sends the prompt to a prefill pod first, then to its own engine."""
    args = (
        arg("--port", SERVE_PORT),
        arg("--vllm-port", DECODE_PORT),
        arg("--kv-connector", "nixlv2"),
        arg("--secure-proxy", "false"),
    )
    return Container(
        name="routing-proxy",
        image=component_image("llm-d-sidecar", f.plan.platform),
        command=(),
        args=lines(args),
        env=env_entries((Env("POD_IP", field="status.podIP"),)),
        ports=({"name": "proxy", "containerPort": SERVE_PORT},),
        resources={"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        resource_why="",
        security=container_security(),
        mounts=(),
        probes={"restartPolicy": "Always"},
    )


def llmd_artefacts(pools: list[PoolFacts]) -> list[Artefact]:
    """Everything of one service under `llm-d/`."""
    f = pools[0]
    platform = f.plan.platform
    if f.engine.engine != "vllm":
        raise not_supported(f"{f.engine.engine} with target llm-d")
    if any(p.multi_node for p in pools):
        raise not_supported("replicas over several nodes with target llm-d", helps=("use target kubernetes",))
    if int(platform.kubernetes_version.split(".")[1]) < 29:
        raise not_supported("native sidecars on Kubernetes below 1.29")
    need_crd(platform, "inferencepool")
    need_crd(platform, "gateway")
    if disaggregated(pools):
        check_pair(pools)
    folder = PurePosixPath(f.service.name) / "llm-d"
    workloads = []
    for p in pools:
        extra: dict[str, Any] = {"extra_labels": llmd_labels(p)}
        if p.pool.role == "decode":
            extra |= {"port": DECODE_PORT, "sidecars": (sidecar(p),)}
        work = deployment(p, **extra)
        if p.pool.role == "prefill":
            keep_alive = {"name": "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "value": "120"}
            (main,) = work.pod.containers
            main = replace(main, env=(*main.env, keep_alive))
            work = replace(work, pod=replace(work.pod, containers=(main,)))
        workloads.append(work)
    name = object_name(f.service.name)
    pool = InferencePool(
        meta=service_meta(f, name, "pool"),
        selector={"llm-d.ai/inference-serving": "true", "llm-d.ai/model": name},
        port=SERVE_PORT,
        picker=dns_name(f"{name}-epp", "endpoint picker"),
        picker_port=PICKER_PORT,
        gateway=platform.gateway,
    )
    found = [
        Artefact(folder / "deployment.yaml", "kubernetes/deployment.yaml.j2", {"workloads": workloads}),
        *support_artefacts(folder, pools),
        Artefact(folder / "inferencepool.yaml", "llm-d/inferencepool.yaml.j2", {"pool": pool}),
        Artefact(folder / "httproute.yaml", "llm-d/httproute.yaml.j2", {"pool": pool}),
        *scaling_artefacts(folder, pools),
        *monitoring_artefacts(folder, pools, [pool_view(p) for p in pools]),
        *network_artefacts(folder, pools, routed=False),
    ]
    return [*found, kustomization(folder, found, platform)]
