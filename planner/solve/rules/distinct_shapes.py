"""distinct-shapes: at most two shapes per service and class group.

    number of c with n_c > 0  <=  2          (built into each pattern)

Each shape is a deployment that somebody operates, tests and rolls out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.solve.question import Clause, Question, Relaxation

MOST_SHAPES = 2


def most_shapes(question: Question) -> int:
    return MOST_SHAPES + 1 if DistinctShapes().code in question.off else MOST_SHAPES


@dataclass(frozen=True, slots=True)
class DistinctShapes:
    code: str = "distinct-shapes"

    def clauses(self, question: Question) -> tuple[Clause, ...]:
        return (Clause(self.code, None),)

    def off(self, question: Question, clause: Clause) -> Question:
        return question.without(self.code)

    def relax(
        self, question: Question, clause: Clause, feasible: Callable[[Question], bool | None]
    ) -> Relaxation | None:
        return Relaxation(
            "split the traffic into two services: a third shape would carry it", self.off(question, clause), question
        )
