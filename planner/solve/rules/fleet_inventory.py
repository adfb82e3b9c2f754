"""fleet-inventory: no pool gives more GPUs than its free nodes hold.

sum over patterns p of x_p x (GPUs that p occupies in the pool)  <=  (nodes - reserved) x GPUs per node
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ortools.sat.python import cp_model

from planner.intent.fleet import Fleet
from planner.solve.packing import Block
from planner.solve.question import Clause, Question, Relaxation, smallest
from planner.solve.space import Space, spaces

# Nodes of a pool whose limit is switched off: more than any plan uses, small enough for exact sums.
ENDLESS = 100_000


def add_inventory(
    model: cp_model.CpModel, blocks: dict[Block, list[tuple[cp_model.IntVar, int]]], space: Space
) -> None:
    model.add(sum(count * b.gpus * x for b, terms in blocks.items() for x, count in terms) <= space.gpus)


def with_nodes(fleet: Fleet, pool: str, more: int) -> Fleet:
    """The same fleet with more nodes in one pool."""
    return fleet.model_copy(
        update={
            "pools": tuple(p.model_copy(update={"nodes": p.nodes + more}) if p.name == pool else p for p in fleet.pools)
        }
    )


@dataclass(frozen=True, slots=True)
class FleetInventory:
    code: str = "fleet-inventory"

    def clauses(self, question: Question) -> tuple[Clause, ...]:
        return (Clause(self.code, None),)

    def off(self, question: Question, clause: Clause) -> Question:
        fleet = question.fleet
        for pool in fleet.pools:
            fleet = with_nodes(fleet, pool.name, ENDLESS)
        return question.with_fleet(fleet).without(self.code)

    def relax(
        self, question: Question, clause: Clause, feasible: Callable[[Question], bool | None]
    ) -> Relaxation | None:
        return more_nodes(question, feasible)


def more_nodes(question: Question, feasible: Callable[[Question], bool | None]) -> Relaxation | None:
    """Fewest nodes more in one pool; of several pools the one that adds fewest GPUs, then by name."""
    found = []
    for pool in sorted(question.fleet.pools, key=lambda p: p.name):

        def make(k: int, name: str = pool.name) -> Question:
            return question.with_fleet(with_nodes(question.fleet, name, k))

        k = smallest(make, 4096, feasible)
        if k is not None:
            per_node = spaces(with_nodes(question.fleet, pool.name, 1))[pool.name].gpus_per_node
            found.append((k * per_node, pool.name, k, make(k), make(k - 1)))
    if not found:
        return None
    gpus, name, k, relaxed, before = min(found, key=lambda f: (f[0], f[1]))
    nodes = "node" if k == 1 else "nodes"
    return Relaxation(f"add {k} {nodes} ({gpus} GPUs) to pool {name}", relaxed, before)
