"""survive: with the largest replica, or any node, gone, the rest carries the planned rate within the degraded cap.

    sum over shapes of (n_c - lost_c) x degraded_c  >=  rate        for every loss the rule speaks of

A loss is what one failure can take: one replica of one shape; or one node, with as many replicas as fit in it. Which
replicas share a node is the scheduler's choice and not known here, so every mix that fits a node counts (the
conservative bound of DESIGN.md section 5). A multi-node replica dies with any of its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.candidates.candidate import Candidate
from planner.solve.question import Clause, Question, Relaxation
from planner.solve.space import Space

Loss = tuple[int, ...]
"""Replicas lost, by shape."""


def _node_kill(candidate: Candidate, space: Space) -> int:
    return 1 if candidate.nodes else max(1, space.gpus_per_node // candidate.gpus)


def losses(candidates: Sequence[Candidate], survive: str, spaces: dict[str, Space]) -> tuple[Loss, ...]:
    """Every maximal loss that one failure can cause among replicas of these shapes.

    `none`: nothing to survive, so no loss at all.
    """
    count = len(candidates)

    def one(i: int, lost: int) -> Loss:
        return tuple(lost if j == i else 0 for j in range(count))

    if survive == "none":
        return ()
    if survive == "1 replica":
        return tuple(one(i, 1) for i in range(count))
    found: list[Loss] = []
    for pool in sorted({c.fleet_pool for c in candidates}):
        space = spaces[pool]
        here = [i for i, c in enumerate(candidates) if c.fleet_pool == pool]
        found += [one(i, 1) for i in here if candidates[i].nodes]
        small = [i for i in here if not candidates[i].nodes]
        mixes: list[tuple[Loss, int]] = [(tuple(0 for _ in range(count)), space.gpus_per_node)]
        for i in small:
            size = candidates[i].gpus
            mixes = [
                (tuple(v + (k if j == i else 0) for j, v in enumerate(loss)), room - k * size)
                for loss, room in mixes
                for k in range(_node_kill(candidates[i], space) + 1)
                if room - k * size >= 0
            ]
        found += [loss for loss, _ in mixes if any(loss)]
    # A loss that takes no more than another in every shape is implied by it.
    return tuple(
        a
        for a in dict.fromkeys(found)
        if not any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for b in found)
    )


@dataclass(frozen=True, slots=True)
class Survive:
    code: str = "survive"

    def clauses(self, question: Question) -> tuple[Clause, ...]:
        return tuple(Clause(self.code, a.name, a.service.survive) for a in question.asks if a.service.survive != "none")

    def off(self, question: Question, clause: Clause) -> Question:
        return question.with_ask(question.ask(clause.service).with_service(survive="none"))

    def relax(
        self, question: Question, clause: Clause, feasible: Callable[[Question], bool | None]
    ) -> Relaxation | None:
        """A node to a replica, a replica to nothing: the first that is enough."""
        weaker = {"1 node": ("1 replica", "none"), "1 replica": ("none",)}[clause.detail]
        before = question
        for level in weaker:
            relaxed = question.with_ask(question.ask(clause.service).with_service(survive=level))
            if feasible(relaxed):
                return Relaxation(f"set survive of {clause.service} to {level}", relaxed, before)
            before = relaxed
        return None
