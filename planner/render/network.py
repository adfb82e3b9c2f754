"""NetworkPolicies: who may call an engine. RDMA over the host's network passes them by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from planner.render.artefact import Artefact, Meta
from planner.render.facts import PoolFacts
from planner.render.kubernetes import meta
from planner.render.pod import selector_labels


@dataclass(frozen=True, slots=True)
class Policy:
    """A NetworkPolicy for one pool."""

    meta: Meta
    selector: dict[str, str]
    ingress: list[dict[str, Any]]


def policy(f: PoolFacts, pools: list[PoolFacts], *, routed: bool, port: int | None = None) -> Policy:
    """HTTP from clients (from the router alone where there is one), metrics from anywhere that scrapes, and everything
    between pods that work together: ranks of a replica, prefill and decode (NIXL opens ports of its own)."""
    port = port or f.engine.port
    http: dict[str, Any] = {"ports": [{"protocol": "TCP", "port": port}]}
    if routed:
        http["from"] = [
            {
                "podSelector": {
                    "matchLabels": {
                        "app.kubernetes.io/component": "router",
                        "app.kubernetes.io/instance": f.service.name,
                    }
                }
            },
            # Prometheus scrapes the same port; its namespace is the cluster's affair
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
        ]
    ingress = [http]
    peers = [p for p in pools if (p.name == f.name and p.multi_node) or "aggregated" not in (p.pool.role, f.pool.role)]
    if peers:
        ingress.append({"from": [{"podSelector": {"matchLabels": selector_labels(p)}} for p in peers]})
    return Policy(meta(f), selector_labels(f), ingress)


def network_artefacts(folder: PurePosixPath, pools: list[PoolFacts], *, routed: bool) -> list[Artefact]:
    """networkpolicy.yaml, where the platform asks for it."""
    if not pools[0].plan.platform.network_policy:
        return []
    policies = [policy(f, pools, routed=routed) for f in pools]
    return [Artefact(folder / "networkpolicy.yaml", "kubernetes/networkpolicy.yaml.j2", {"policies": policies})]
