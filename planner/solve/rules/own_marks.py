"""Rules that a candidate fails or passes on its own: evaluation marks it with the rule's code.

    code in c.rejected_by  =>  use[c] = 0

`accuracy-floor`: the checkpoint's expected accuracy, as a share of the original's, is below the service's floor.
`fixed-choices`: the user settled a field (tp, precision, a cap, ...) and this candidate has another value.
`engine-supports`: the engine version refuses this checkpoint, KV format or layout on this GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.intent.document import Fixed
from planner.solve.question import Clause, Question, Relaxation, smallest


@dataclass(frozen=True, slots=True)
class AccuracyFloor:
    code: str = "accuracy-floor"

    def clauses(self, question: Question) -> tuple[Clause, ...]:
        return tuple(
            Clause(self.code, a.name, f"{a.service.accuracy_floor:g}")
            for a in question.asks
            if a.service.accuracy_floor is not None
        )

    def off(self, question: Question, clause: Clause) -> Question:
        return question.with_ask(question.ask(clause.service).with_service(accuracy_floor=None))

    def relax(
        self, question: Question, clause: Clause, feasible: Callable[[Question], bool | None]
    ) -> Relaxation | None:
        """The floor lowered by the fewest thousandths."""
        ask = question.ask(clause.service)
        floor = ask.service.accuracy_floor
        assert floor is not None
        top = round(floor * 1000)

        def make(k: int) -> Question:
            if k == 0:
                return question
            return question.with_ask(ask.with_service(accuracy_floor=max(0.0, (top - k) / 1000)))

        k = smallest(make, max(1, top), feasible)
        if k is None:
            return None
        return Relaxation(f"lower accuracy_floor of {ask.name} to {max(0, top - k) / 1000:g}", make(k), make(k - 1))


@dataclass(frozen=True, slots=True)
class FixedChoices:
    code: str = "fixed-choices"

    def clauses(self, question: Question) -> tuple[Clause, ...]:
        return tuple(
            Clause(self.code, a.name, field)
            for a in question.asks
            for field in Fixed.model_fields
            if getattr(a.service.fixed, field) is not None
        )

    def off(self, question: Question, clause: Clause) -> Question:
        ask = question.ask(clause.service)
        return question.with_ask(ask.with_service(fixed=ask.service.fixed.model_copy(update={clause.detail: None})))

    def relax(
        self, question: Question, clause: Clause, feasible: Callable[[Question], bool | None]
    ) -> Relaxation | None:
        """The field left to the planner: a fixed value has no smaller step."""
        relaxed = self.off(question, clause)
        if not feasible(relaxed):
            return None
        value = getattr(question.ask(clause.service).service.fixed, clause.detail)
        return Relaxation(f"remove {clause.detail}: {value} from fixed of {clause.service}", relaxed, question)


@dataclass(frozen=True, slots=True)
class EngineSupports:
    code: str = "engine-supports"

    def clauses(self, question: Question) -> tuple[Clause, ...]:
        return (Clause(self.code, None),)

    def off(self, question: Question, clause: Clause) -> Question:
        return question.without(self.code)

    def relax(
        self, question: Question, clause: Clause, feasible: Callable[[Question], bool | None]
    ) -> Relaxation | None:
        """No number to change: another precision, engine or GPU is the way out."""
        return Relaxation(
            "allow another precision, or use an engine version or GPU that runs this one",
            self.off(question, clause),
            question,
        )
