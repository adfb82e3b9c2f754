"""packing: groups that stay within a node or a fast-link domain must really fit into single ones.

    sum over fillings k of y_k x a_(k, size)  >=  blocks of that size          sum over k of y_k  <=  nodes (domains)

Only pools where a count of GPUs does not decide it get these variables (see planner/solve/packing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from planner.solve.packing import Block, configurations
from planner.solve.question import Clause, Question, Relaxation
from planner.solve.rules.fleet_inventory import more_nodes
from planner.solve.space import Space

Terms = list[tuple[cp_model.IntVar, int]]


def add_packing(model: cp_model.CpModel, blocks: dict[Block, Terms], space: Space) -> None:
    inside = {b.gpus: terms for b, terms in blocks.items() if b.nodes == 0}
    whole = {b: terms for b, terms in blocks.items() if b.nodes > 0}
    shared = model.new_int_var(0, space.nodes, "")
    if inside:
        _fill(model, inside, [(space.gpus_per_node, shared)], space.nodes)
    model.add(shared + sum(b.nodes * count * x for b, terms in whole.items() for x, count in terms) <= space.nodes)
    grouped = {b.nodes: terms for b, terms in whole.items() if b.domain}
    if grouped:
        # Single nodes and groups over the network fill whatever the domains leave, so only the groups need places.
        domains, rest = divmod(space.nodes, space.domain_nodes)
        bins: list[tuple[int, int | cp_model.IntVar]] = [(space.domain_nodes, domains)]
        if rest:
            bins.append((rest, 1))
        _fill(model, grouped, bins, space.nodes)


def _fill(
    model: cp_model.CpModel,
    demand: dict[int, Terms],
    bins: Sequence[tuple[int, int | cp_model.IntVar]],
    most: int,
) -> None:
    """Blocks by size into bins of the given rooms and counts."""
    sizes = tuple(sorted(demand))
    supplied: list[list[cp_model.LinearExprT]] = [[] for _ in sizes]
    for room, count in bins:
        used = []
        for filling in configurations(sizes, room):
            y = model.new_int_var(0, most, "")
            used.append(y)
            for i, a in enumerate(filling):
                if a:
                    supplied[i].append(a * y)
        model.add(sum(used) <= count)
    for i, size in enumerate(sizes):
        model.add(sum(supplied[i]) >= sum(count * x for x, count in demand[size]))


@dataclass(frozen=True, slots=True)
class Packing:
    code: str = "packing"

    def clauses(self, question: Question) -> tuple[Clause, ...]:
        return (Clause(self.code, None),)

    def off(self, question: Question, clause: Clause) -> Question:
        return question.without(self.code)

    def relax(
        self, question: Question, clause: Clause, feasible: Callable[[Question], bool | None]
    ) -> Relaxation | None:
        """Free nodes make room for groups that leave gaps in the others."""
        return more_nodes(question, feasible)
