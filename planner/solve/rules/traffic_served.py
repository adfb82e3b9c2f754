"""traffic-served: every class group's pools carry its whole rate.

sum over shapes c of n_c x planned_c  >=  rate of the group        (built into each pattern)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.solve.question import Clause, Question, Relaxation, smallest
from planner.units import show_rate

# A rate that any shape at all can carry.
NEARLY_NOTHING = 1e-6


@dataclass(frozen=True, slots=True)
class TrafficServed:
    code: str = "traffic-served"

    def clauses(self, question: Question) -> tuple[Clause, ...]:
        return tuple(Clause(self.code, a.name) for a in question.asks)

    def off(self, question: Question, clause: Clause) -> Question:
        ask = question.ask(clause.service)
        total = sum(rate for _, rate in ask.rates)
        return question.with_ask(ask.with_rates(NEARLY_NOTHING / total)) if ask.has_rate else question

    def relax(
        self, question: Question, clause: Clause, feasible: Callable[[Question], bool | None]
    ) -> Relaxation | None:
        """The largest whole percentage of the service's rate that has a plan."""
        ask = question.ask(clause.service)
        if not ask.has_rate:
            return None

        def make(k: int) -> Question:
            return question.with_ask(ask.with_rates((100 - k) / 100))

        k = smallest(make, 99, feasible)
        if k is None:
            return None
        total = sum(rate for _, rate in ask.rates) * (100 - k) / 100
        return Relaxation(
            f"lower the rate of {ask.name} to {100 - k}% ({show_rate(total)})",
            make(k),
            make(k - 1) if k > 1 else question,
        )
