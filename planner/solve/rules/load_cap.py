"""load-cap: a replica is planned at no more than a share of its stability limit.

    planned_c = min(load_cap x lambda_max, lambda_slo)         after a failure degraded_cap x lambda_max

The caps are the intent's (0.8 and 0.95): near the limit queues grow without warning and every model is at its worst.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.solve.question import Clause, Question, Relaxation, smallest


@dataclass(frozen=True, slots=True)
class LoadCap:
    code: str = "load-cap"

    def clauses(self, question: Question) -> tuple[Clause, ...]:
        return tuple(
            Clause(self.code, a.name)
            for a in question.asks
            if a.service.load_cap < 1 or (a.service.survive != "none" and a.service.degraded_cap < 1)
        )

    def off(self, question: Question, clause: Clause) -> Question:
        return question.with_ask(question.ask(clause.service).with_service(load_cap=1.0, degraded_cap=1.0))

    def relax(
        self, question: Question, clause: Clause, feasible: Callable[[Question], bool | None]
    ) -> Relaxation | None:
        """Both caps raised by whole percents of lambda_max, neither past 1."""
        ask = question.ask(clause.service)
        now, degraded = ask.service.load_cap, ask.service.degraded_cap
        caps = ("load_cap", "degraded_cap") if ask.service.survive != "none" else ("load_cap",)

        def make(k: int) -> Question:
            raised = {
                "load_cap": min(1.0, round(now + k / 100, 6)),
                "degraded_cap": min(1.0, round(degraded + k / 100, 6)),
            }
            return question.with_ask(ask.with_service(**{c: raised[c] for c in caps}))

        # Past the room that is left a step changes nothing; and where all of it is not enough, no step is.
        most = math.ceil((1 - min(getattr(ask.service, c) for c in caps)) * 100 - 1e-9)
        if most < 1 or not feasible(make(most)):
            return None
        k = smallest(make, most, feasible)
        assert k is not None
        service = make(k).ask(ask.name).service
        shown = " and ".join(f"{c} to {getattr(service, c):g}" for c in caps)
        return Relaxation(f"raise {shown} of {ask.name} (queues grow quickly up there)", make(k), make(k - 1))
