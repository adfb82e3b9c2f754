"""Docker Compose: one file per host, each replica with its own GPUs and port; no cluster needed.

Replicas are placed host by host, as many as fit. Replicas over several hosts and prefill/decode over several hosts need
addresses that a plan does not have: refused by name, the launch scripts serve those.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from planner.errors import not_supported
from planner.render.args import Env, argv
from planner.render.artefact import Artefact
from planner.render.disaggregated import check_pair
from planner.render.facts import PoolFacts
from planner.render.images import engine_image
from planner.render.pod import Line, cache_env, engine_args, engine_env, gib
from planner.render.router import ROUTERS, disaggregated, router_args, router_version
from planner.render.source import CACHE, MODELS, model_access
from planner.render.text import compose_escape, object_name


@dataclass(frozen=True, slots=True)
class ComposeService:
    """One container of a Compose file."""

    name: str
    image: str
    command: tuple[Line, ...]
    settings: dict[str, Any]
    gpus_why: str


@dataclass(frozen=True, slots=True)
class Compose:
    """One host's file."""

    project: str
    services: tuple[ComposeService, ...]
    volumes: dict[str, Any]


def compose_artefacts(pools: list[PoolFacts]) -> list[Artefact]:
    """`compose/host-N.yaml`."""
    f = pools[0]
    if any(p.multi_node for p in pools):
        raise not_supported("replicas over several hosts with target compose", helps=("use the launch scripts",))
    if f.plan.platform.model_source.kind == "oci":
        raise not_supported("an OCI model source with target compose")
    hosts = place(pools)
    split = disaggregated(pools)
    if split:
        check_pair(pools)
        if len(hosts) > 1:
            raise not_supported("prefill and decode over several hosts with target compose")
    folder = PurePosixPath(f.service.name) / "compose"
    return [
        Artefact(folder / f"host-{i + 1}.yaml", "compose/compose.yaml.j2", {"compose": _host(pools, host)})
        for i, host in enumerate(hosts)
    ]


def place(pools: list[PoolFacts]) -> list[list[tuple[PoolFacts, int, tuple[int, ...]]]]:
    """(pool, replica, GPU indices) per host: largest replicas first, into the first host with room."""
    hosts: list[list[tuple[PoolFacts, int, tuple[int, ...]]]] = []
    free: list[int] = []
    for f in sorted(pools, key=lambda p: (-p.gpus_per_pod, p.name)):
        for replica in range(f.pool.replicas):
            i = next((i for i, n in enumerate(free) if n >= f.gpus_per_pod), None)
            if i is None:
                hosts.append([])
                free.append(f.gpus_per_node)
                i = len(hosts) - 1
            first = f.gpus_per_node - free[i]
            hosts[i].append((f, replica, tuple(range(first, first + f.gpus_per_pod))))
            free[i] -= f.gpus_per_pod
    return hosts


def _host(pools: list[PoolFacts], host: list[tuple[PoolFacts, int, tuple[int, ...]]]) -> Compose:
    f = pools[0]
    services = []
    urls: dict[str, list[str]] = {}
    split = disaggregated(pools)
    for n, (pool, replica, gpus) in enumerate(host):
        name = f"{pool.name}-{replica + 1}"
        urls.setdefault(pool.pool.role, []).append(f"http://{name}:{pool.engine.port}")
        services.append(_engine(pool, name, gpus, None if split else 8000 + n))
    if split:
        version = router_version(pools)
        command = [*version.command, *argv(router_args(pools, urls=urls))]
        services.append(
            ComposeService(
                ROUTERS[f.engine.engine],
                engine_image(version, f.plan.platform, vendor="any"),
                tuple(Line(compose_escape(w)) for w in command),
                {"ports": [f"8000:{version.port}"], "restart": "unless-stopped"},
                "",
            )
        )
    source = f.plan.platform.model_source
    volumes: dict[str, Any] = {"cache": {}}
    if source.claim is not None:
        volumes[source.claim] = {"external": True}
    return Compose(object_name(f.service.name), tuple(services), volumes)


def _engine(f: PoolFacts, name: str, gpus: tuple[int, ...], port: int | None) -> ComposeService:
    platform = f.plan.platform
    access = model_access(f.service.model, platform, f.engine.engine)
    ids = [str(g) for g in gpus]
    mounts = [f"cache:{CACHE}"]
    if platform.model_source.kind == "pvc":
        mounts.append(f"{platform.model_source.claim}:{MODELS}:ro")
    elif platform.model_source.claim is not None:
        mounts.append(f"{platform.model_source.claim}:{CACHE}/huggingface")
    settings: dict[str, Any] = {"environment": _environment(f, access.env, name)}
    if port is not None:
        settings["ports"] = [f"{port}:{f.engine.port}"]
    if f.gpu.vendor == "amd":
        settings["devices"] = ["/dev/kfd", "/dev/dri"]
        settings["group_add"] = ["video"]
        settings["environment"]["HIP_VISIBLE_DEVICES"] = ",".join(ids)
    else:
        device = {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}
        settings["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    settings |= {
        "shm_size": gib(f.shm_bytes).lower().replace("gi", "g"),
        "volumes": mounts,
        "healthcheck": {
            "test": ["CMD", "curl", "-fsS", f"http://127.0.0.1:{f.engine.port}{f.engine.ready_path}"],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": f"{f.start_s}s",
        },
        "stop_grace_period": f"{f.drain_s + 15}s",
        "restart": "unless-stopped",
        "security_opt": ["no-new-privileges:true"],
        "cap_drop": ["ALL"],
    }
    if f.rdma:
        settings |= {"cap_add": ["IPC_LOCK"], "ulimits": {"memlock": -1}}
    words: list[Line] = [Line(compose_escape(w)) for w in f.engine.command]
    for a in engine_args(f):
        written = [Line(compose_escape(w)) for w in argv((a,))]
        words += [Line(written[0].text, a.why), *written[1:]]
    return ComposeService(
        name,
        engine_image(f.engine, platform, vendor=f.gpu.vendor),
        tuple(words),
        settings,
        f"GPUs {', '.join(ids)} of {f.gpus_per_node}",
    )


def _environment(f: PoolFacts, access: tuple[Env, ...], name: str) -> dict[str, str]:
    found = {}
    for e in (*access, *cache_env(False), *engine_env(f)):
        if e.field is not None:
            found[e.name] = name  # a container is reached by its service's name
        elif e.secret is not None:
            found[e.name] = f"${{{e.name}:?set {e.name} in the environment}}"
        else:
            found[e.name] = compose_escape(e.value or "")
    return found
