"""A fleet pool as the solver sees it: nodes that may be used, GPUs in each, nodes that share a fast link."""

from __future__ import annotations

from dataclasses import dataclass

from planner.candidates.candidate import Candidate
from planner.candidates.replica import domain_gpus
from planner.catalog.gpus import find_gpu
from planner.intent.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Space:
    """Nodes of one pool, reserved ones left out."""

    pool: str
    nodes: int
    gpus_per_node: int
    domain_nodes: int
    """Nodes within one NVLink (or other scale-up) domain; 1 where the domain ends at the node."""
    pack: bool = True
    """False where the packing rule is switched off: only the sum of GPUs counts."""

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    def most_replicas(self, candidate: Candidate) -> int:
        """How many replicas of one candidate the empty pool holds."""
        if not self.pack:
            return self.gpus // (candidate.nodes * self.gpus_per_node or candidate.gpus)
        if candidate.nodes == 0:
            return self.nodes * (self.gpus_per_node // candidate.gpus) if candidate.gpus <= self.gpus_per_node else 0
        if in_domain(candidate, self):
            whole, rest = divmod(self.nodes, self.domain_nodes)
            return whole * (self.domain_nodes // candidate.nodes) + rest // candidate.nodes
        return self.nodes // candidate.nodes


def in_domain(candidate: Candidate, space: Space) -> bool:
    """Whether a multi-node replica must stay within one scale-up domain: its GPUs fit one, and its step times count on
    that link. A larger group goes over the network and may take any nodes."""
    return candidate.nodes > 1 and space.domain_nodes > 1 and candidate.nodes <= space.domain_nodes


def spaces(fleet: Fleet, *, pack: bool = True) -> dict[str, Space]:
    """Every pool with at least one free node."""
    found = {}
    for pool in sorted(fleet.pools, key=lambda p: p.name):
        nodes = pool.nodes - pool.reserved_nodes
        if nodes <= 0:
            continue
        gpu = find_gpu(pool.gpu)
        per_node = pool.gpus_per_node or gpu.node.gpus
        domain = domain_gpus(pool, gpu, per_node)
        found[pool.name] = Space(pool.name, nodes, per_node, max(1, domain // per_node), pack)
    return found
