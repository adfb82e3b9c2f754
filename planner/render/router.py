"""The router in front of engines: prefill/decode-aware, or cache-aware where the plan counts on prefix hits.

A plain Service cannot do either: it would send a request to one engine, and the same conversation to any of them. The
router finds pods by label, so it is the only pod with a token, of its own account, that may only list pods.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from planner.catalog.engines import EngineVersion, find_router
from planner.errors import not_supported
from planner.render.args import NAMESPACE, Arg, Env, arg, argv
from planner.render.artefact import Artefact, Meta
from planner.render.facts import PoolFacts
from planner.render.flags import check_argv
from planner.render.images import engine_image
from planner.render.kubernetes import Budget, ServiceObject, service_meta
from planner.render.pod import (
    LEADER_LABEL,
    Container,
    Pod,
    base_spec,
    container_security,
    env_entries,
    lines,
    merged_labels,
    pre_stop,
)
from planner.render.sglang import BOOTSTRAP_PORT
from planner.render.text import dns_name, object_name

ROUTERS = {"vllm": "vllm-router", "sglang": "smg"}
METRICS_PORT = 29000
DRAIN_S = 30


@dataclass(frozen=True, slots=True)
class Router:
    """Deployment, account and rights of one service's router."""

    meta: Meta
    selector: dict[str, str]
    replicas: int
    replicas_why: str
    pod: Pod
    budget: Budget


def disaggregated(pools: list[PoolFacts]) -> bool:
    """Whether the service has prefill and decode pools."""
    return any(f.pool.role != "aggregated" for f in pools)


def affinity(pools: list[PoolFacts]) -> bool:
    """Whether the plan counts on requests of one prefix reaching the replica that has it cached."""
    return any(c.prefix_cache is not None and c.prefix_cache.routing == "affinity" for c in pools[0].intent.traffic)


def router_args(pools: list[PoolFacts], *, urls: dict[str, list[str]] | None = None) -> tuple[Arg, ...]:
    """The router's arguments; with `urls` (role -> addresses) it takes fixed workers instead of looking for pods."""
    f = pools[0]
    router = find_router(ROUTERS[f.engine.engine])
    split = disaggregated(pools)
    mode = []
    if split:
        mode = [arg("--vllm-pd-disaggregation" if router.engine == "vllm-router" else "--pd-disaggregation")]
    policy = "cache_aware" if affinity(pools) else "round_robin"
    args = [
        *mode,
        arg("--host", "0.0.0.0"),  # noqa: S104 - a pod's address is not known ahead of time
        arg("--port", router.port),
        arg("--policy", policy, "the plan counts on prefix hits" if policy == "cache_aware" else ""),
        arg("--worker-startup-timeout-secs", f.start_s),
        arg("--prometheus-host", "0.0.0.0"),  # noqa: S104
        arg("--prometheus-port", METRICS_PORT),
        *(_fixed(pools, urls) if urls is not None else _discovery(pools)),
    ]
    check_argv(router, argv(args))
    return tuple(args)


def _fixed(pools: list[PoolFacts], urls: dict[str, list[str]]) -> list[Arg]:
    if not disaggregated(pools):
        return [Arg("--worker-urls", None, tuple(urls["aggregated"]))]
    # SGLang's hand-over begins at the prefill server's bootstrap port; vLLM's needs none
    port = (str(BOOTSTRAP_PORT),) if pools[0].engine.engine == "sglang" else ()
    return [
        *(Arg("--prefill", None, (u, *port)) for u in urls["prefill"]),
        *(Arg("--decode", None, (u,)) for u in urls["decode"]),
    ]


def _discovery(pools: list[PoolFacts]) -> list[Arg]:
    f = pools[0]
    namespace = f.plan.platform.namespace
    args = [
        arg("--service-discovery"),
        arg("--service-discovery-namespace", namespace or NAMESPACE),
        arg("--service-discovery-port", f.engine.port),
    ]
    for role in sorted({p.pool.role for p in pools}):
        flag = "--selector" if role == "aggregated" else f"--{role}-selector"
        args.append(Arg(flag, None, tuple(f"{k}={v}" for k, v in _role_selector(pools, role).items())))
    return args


def _role_selector(pools: list[PoolFacts], role: str) -> dict[str, str]:
    members = [f for f in pools if f.pool.role == role]
    selector = {"app.kubernetes.io/component": role, "app.kubernetes.io/instance": members[0].service.name}
    if any(f.multi_node for f in members):
        if not all(f.multi_node for f in members):
            raise not_supported(f"{role} pools of one and of several nodes behind one router")
        selector |= LEADER_LABEL
    return selector


def router_version(pools: list[PoolFacts]) -> EngineVersion:
    """Which router fits the engine."""
    return find_router(ROUTERS[pools[0].engine.engine])


def router(pools: list[PoolFacts]) -> Router:
    """The router of one service."""
    f = pools[0]
    platform = f.plan.platform
    version = router_version(pools)
    name = dns_name(f"{object_name(f.service.name)}-router", "router")
    selector = {"app.kubernetes.io/instance": f.service.name, "app.kubernetes.io/name": name}
    env = () if platform.namespace else (Env("POD_NAMESPACE", field="metadata.namespace"),)
    container = Container(
        name="router",
        image=engine_image(version, platform, vendor="any"),
        command=version.command,
        args=lines(router_args(pools)),
        env=env_entries(env),
        ports=(
            {"name": "http", "containerPort": version.port},
            {"name": "metrics", "containerPort": METRICS_PORT},
        ),
        resources={"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
        resource_why="no GPU: it only forwards",
        security=container_security(),
        mounts=(),
        probes={
            "readinessProbe": {"httpGet": {"path": version.ready_path, "port": "http"}, "periodSeconds": 5},
            "livenessProbe": {"httpGet": {"path": version.health_path, "port": "http"}, "periodSeconds": 10},
            "lifecycle": pre_stop(platform, 15),
        },
    )
    spec = base_spec(platform, user=version.user, token=True)
    spec["serviceAccountName"] = name
    spec["terminationGracePeriodSeconds"] = 15 + f.drain_s + DRAIN_S
    spec["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector},
        }
    ]
    labels = merged_labels(platform, selector | {"app.kubernetes.io/component": "router"})
    pod = Pod(labels, dict(sorted(platform.annotations.items())), (), (container,), (), spec)
    meta = service_meta(f, name, "router")
    return Router(
        meta=meta,
        selector=selector,
        replicas=2,
        replicas_why="one may go away at any time",
        pod=pod,
        budget=Budget(meta, {"maxUnavailable": 1}, "", selector),
    )


def router_artefacts(folder: PurePosixPath, pools: list[PoolFacts]) -> list[Artefact]:
    """router.yaml and the Service in front of it."""
    f = pools[0]
    version = router_version(pools)
    context: dict[str, Any] = {"router": router(pools)}
    service = ServiceObject(
        service_meta(f, object_name(f.service.name), "endpoint"),
        {"app.kubernetes.io/component": "router", "app.kubernetes.io/instance": f.service.name},
        [{"name": "http", "port": f.engine.port, "targetPort": "http", "protocol": "TCP"}],
    )
    assert version.port is not None
    return [
        Artefact(folder / "router.yaml", "kubernetes/router.yaml.j2", context),
        Artefact(folder / "service.yaml", "kubernetes/service.yaml.j2", {"service": service}),
    ]
