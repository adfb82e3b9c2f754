"""The whole question the solver answers, as a value: services, fleet, and which rules are switched off.

A rule that is "off" is the same question with the rule's input taken out of the documents (an SLO dropped, a rate
brought to nearly nothing, nodes without end); only rules without an input of their own are named in `off`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from planner.candidates.ask import Ask
from planner.candidates.candidate import Candidate
from planner.intent.fleet import Fleet

Objective = Literal["cost", "gpus", "throughput"]


@dataclass(frozen=True, slots=True)
class Cut:
    """What the simulation sent back: this candidate carries no more than this (requests/s, one replica)."""

    service: str
    key: str
    most_rps: float
    class_names: tuple[str, ...] = ()
    """As replicas of this class group; none: of any."""


@dataclass(frozen=True, slots=True)
class Lift:
    """What the simulation found beyond the closed form: one replica carries this much within every promise."""

    candidate: Candidate
    """As it would be without the promises that only the closed form said it breaks: it may have been left out."""
    rate_rps: float
    closed_rps: float
    """What the closed form plans it for, every promise kept."""

    @property
    def service(self) -> str:
        return self.candidate.service

    @property
    def key(self) -> str:
        return self.candidate.key

    @property
    def binding(self) -> str:
        """`Load.binding` at this rate."""
        top = self.candidate.load
        return top.binding if self.rate_rps >= top.planned_rps else "simulation"

    def raises(self, candidate: Candidate) -> bool:
        """Whether this is about that candidate."""
        mine = self.candidate
        return (mine.service, mine.class_names, mine.key) == (candidate.service, candidate.class_names, candidate.key)


@dataclass(frozen=True, slots=True)
class BaselinePool:
    """What runs today: `key` is `Candidate.key`."""

    service: str
    key: str
    replicas: int
    gpus: int
    """Of one replica."""
    class_names: tuple[str, ...] = ()
    """Classes that these replicas serve; none: all of the service's."""

    def serves(self, group: tuple[str, ...], everyone: tuple[str, ...]) -> bool:
        """Whether this is a pool of that class group. Pools of another group are other deployments."""
        return set(self.class_names or everyone) == set(group)


@dataclass(frozen=True, slots=True)
class Question:
    """Asks are sorted by service name, so that the order they were listed in never matters."""

    asks: tuple[Ask, ...]
    fleet: Fleet
    objective: Objective = "cost"
    off: frozenset[str] = frozenset()
    cuts: tuple[Cut, ...] = ()
    lifts: tuple[Lift, ...] = ()
    """Cuts go before them."""
    baseline: tuple[BaselinePool, ...] = ()
    change_cost: float = 0.0
    keep: frozenset[str] = frozenset()
    """Services that stay exactly as the baseline has them."""

    def ask(self, service: str | None) -> Ask:
        return next(a for a in self.asks if a.name == service)

    def with_ask(self, ask: Ask) -> Question:
        return replace(self, asks=tuple(ask if a.name == ask.name else a for a in self.asks))

    def with_fleet(self, fleet: Fleet) -> Question:
        return replace(self, fleet=fleet, asks=tuple(a.with_fleet(fleet) for a in self.asks))

    def without(self, code: str) -> Question:
        return replace(self, off=self.off | {code})

    def only(self, service: str) -> Question:
        """The same question about one service, alone on the fleet."""
        return replace(self, asks=tuple(a for a in self.asks if a.name == service))

    @property
    def has_rate(self) -> bool:
        return self.asks[0].has_rate


@dataclass(frozen=True, slots=True)
class Clause:
    """One rule as it bears on one question: the unit that a clash is made of."""

    code: str
    service: str | None
    """None: it concerns the fleet."""
    detail: str = ""
    """`itl.p99`, `chat itl.p99` (a class's own promise), `1 node`, a fixed field."""

    def __str__(self) -> str:
        return " ".join(x for x in (self.code, self.service, self.detail) if x)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The smallest change of one rule's input that gives a plan."""

    text: str
    question: Question
    """With the change."""
    one_less: Question
    """One step short of it: no plan there."""


class Rule(Protocol):
    """A rule: its code, the clauses it puts on a question, the question without one, and the way out."""

    @property
    def code(self) -> str: ...

    def clauses(self, question: Question) -> tuple[Clause, ...]: ...

    def off(self, question: Question, clause: Clause) -> Question: ...

    def relax(
        self, question: Question, clause: Clause, feasible: Callable[[Question], bool | None]
    ) -> Relaxation | None: ...


def smallest(make: Callable[[int], Question], most: int, feasible: Callable[[Question], bool | None]) -> int | None:
    """The least step count in 1..most that gives a plan, by doubling and bisection; None where none does.

    Every rule is monotone (more of its relaxation never loses a plan), so bisection is exact.
    """
    low, high = 0, 1
    while not feasible(make(high)):
        if high >= most:
            return None
        low, high = high, min(most, high * 2)
    while high - low > 1:
        middle = (low + high) // 2
        if feasible(make(middle)):
            high = middle
        else:
            low = middle
    return high
