"""slo-<metric>: a replica carries at most the rate at which every promise holds with its margin.

    planned_c <= lambda_slo(c),  the highest rate at which   metric.stat(c, rate) x margin <= limit   for all SLOs;
    lambda_slo(c) = 0  =>  use[c] = 0

One rule per metric, so that a clash names the promise: slo-itl, slo-ttft, slo-tpot, slo-e2e, slo-ttfa.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.intent.slo import Slo
from planner.solve.question import Clause, Question, Relaxation, smallest
from planner.units import show_time

# Two to the 23rd milliseconds: more than two hours. A promise that needs longer is not what is wrong.
MOST_STEPS = 1 << 23


@dataclass(frozen=True, slots=True)
class SloRule:
    """One metric's promises: the service's, and those of classes that have their own."""

    metric: str

    @property
    def code(self) -> str:
        return f"slo-{self.metric}"

    def clauses(self, question: Question) -> tuple[Clause, ...]:
        found = []
        for ask in question.asks:
            inherits = any(c.slo is None for c in ask.service.traffic)
            found += [
                Clause(self.code, ask.name, s.key) for s in ask.service.slo if inherits and s.metric == self.metric
            ]
            for c in ask.service.traffic:
                found += [
                    Clause(self.code, ask.name, f"{c.name} {s.key}") for s in c.slo or () if s.metric == self.metric
                ]
        return tuple(found)

    def off(self, question: Question, clause: Clause) -> Question:
        class_name, key = split_detail(clause.detail)
        return question.with_ask(question.ask(clause.service).with_slo(class_name, key, None))

    def relax(
        self, question: Question, clause: Clause, feasible: Callable[[Question], bool | None]
    ) -> Relaxation | None:
        """The limit raised to the least whole millisecond that has a plan."""
        class_name, key = split_detail(clause.detail)
        ask = question.ask(clause.service)
        base_ms = math.floor(limit_of(question, clause) * 1000 + 1e-9)

        def make(k: int) -> Question:
            if k == 0:
                return question
            return question.with_ask(ask.with_slo(class_name, key, (base_ms + k) / 1000))

        k = smallest(make, MOST_STEPS, feasible)
        if k is None:
            return None
        whose = f" of class {class_name}" if class_name else ""
        return Relaxation(f"set {key}{whose} to {show_time_ms(base_ms + k)} or more", make(k), make(k - 1))


def split_detail(detail: str) -> tuple[str | None, str]:
    """`itl.p99` or `chat itl.p99` -> (class or None, key)."""
    class_name, _, key = detail.rpartition(" ")
    return class_name or None, key


def limit_of(question: Question, clause: Clause) -> float:
    """The promise's limit in seconds."""
    class_name, key = split_detail(clause.detail)
    ask = question.ask(clause.service)
    if class_name is None:
        slos: tuple[Slo, ...] = ask.service.slo
    else:
        slos = next(c.slo or () for c in ask.service.traffic if c.name == class_name)
    return next(s.limit_s for s in slos if s.key == key)


def show_time_ms(value_ms: int) -> str:
    """Whole milliseconds, never rounded: what is printed must be enough when it is typed in.

    >>> show_time_ms(59), show_time_ms(12345)
    ('59ms', '12345ms')
    """
    return (
        f"{value_ms}ms"
        if value_ms % 1000
        else show_time(value_ms / 1000)
        if value_ms < 100_000
        else f"{value_ms // 1000}s"
    )
