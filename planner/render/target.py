"""Target kubernetes: which objects one service needs, from one node and one pool to routed prefill and decode."""

from __future__ import annotations

from pathlib import PurePosixPath

from planner.render.artefact import Artefact
from planner.render.disaggregated import disaggregated_workloads
from planner.render.facts import PoolFacts
from planner.render.kubernetes import kustomization, service_artefact, workload_artefacts
from planner.render.monitoring import monitoring_artefacts, pool_view
from planner.render.network import network_artefacts
from planner.render.router import affinity, disaggregated, router_artefacts
from planner.render.scaling import scaling_artefacts


def kubernetes_artefacts(pools: list[PoolFacts]) -> list[Artefact]:
    """Everything of one service under `kubernetes/`."""
    f = pools[0]
    folder = PurePosixPath(f.service.name) / "kubernetes"
    split = disaggregated(pools)
    routed = split or affinity(pools)
    found = disaggregated_workloads(folder, pools) if split else workload_artefacts(folder, pools)
    found += router_artefacts(folder, pools) if routed else [service_artefact(folder, pools)]
    found += [
        *scaling_artefacts(folder, pools),
        *monitoring_artefacts(folder, pools, [pool_view(p) for p in pools]),
        *network_artefacts(folder, pools, routed=routed),
    ]
    return [*found, kustomization(folder, found, f.plan.platform)]
