"""Requests in flight, and what is kept of them when they are done."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

BINS_PER_E = 200
"""Gap histogram resolution: 200 bins per factor e, half a per cent each."""


class Session:
    """One conversation. Mutable: what it is at its current turn."""

    __slots__ = (
        "answer", "cls", "history", "home", "last", "looked", "number", "prompt", "stated", "sticky", "turn", "warm",
    )  # fmt: skip

    def __init__(self, number: int, cls: int, last: int, *, sticky: bool, warm: bool) -> None:
        self.number = number
        self.cls = cls
        self.turn = 1
        self.last = last
        """Its last turn."""
        self.history = 0
        """Tokens of its earlier turns, thinking left out, that the next prompt begins with."""
        self.prompt = 0
        self.answer = 0
        """Tokens of the answer that the next prompt holds."""
        self.stated = 0
        """Prompt tokens of the current turn that hit wherever it goes: a shared prefix."""
        self.looked = False
        """Whether the current turn's hits are counted."""
        self.sticky = sticky
        """Whether routing brings it back to its replica."""
        self.home: int | None = None
        """Its replica of the entry pool."""
        self.warm = warm
        """Whether its history is looked for at all."""


class Request:
    """One request on its way. Mutable: only the engine that holds it touches it."""

    __slots__ = (
        "arrival_s", "base", "cached", "cls", "first_s", "host_s", "index", "input", "joined", "last_s", "lost",
        "output", "prefilled", "session", "slope", "thinking", "todo", "tokens",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917 (one call per request, on the hot path)
        self, index: int, arrival_s: float, cls: int, input_: int, cached: int, output: int, thinking: int
    ) -> None:
        self.index = index
        self.arrival_s = arrival_s
        self.cls = cls
        self.input = input_
        self.cached = cached
        self.output = output
        self.thinking = thinking
        self.session: Session | None = None
        """Of a turn of a conversation whose next turn follows this one."""
        self.first_s = -1.0
        """When its first token left; -1 before."""
        self.last_s = -1.0
        """Its last token before a stall or a preemption."""
        self.joined = 0.0
        """Context less the engine's step counter: constant while it decodes."""
        self.host_s = 0.0
        self.tokens = 0
        """Output tokens that exist (kept over a preemption, which only recomputes their cache)."""
        self.todo = input_
        """Prompt tokens (and recomputed ones) to prefill in all, cached ones included."""
        self.prefilled = 0
        self.lost = 0
        # Cache accounting at its last refresh: cost less slope x step counter, and slope per step.
        self.base = 0.0
        self.slope = 0.0


@dataclass(slots=True)
class Ledger:
    """Exact bookkeeping and compact results of one run. Memory grows by 45 bytes a request."""

    classes: int
    batches: int
    warm_s: float
    """Gaps and occupancies before this time are not counted."""
    end_s: float
    """Nor after it: the last arrival, when the queue runs empty."""
    drains: bool = False
    """Gaps and occupancies are counted to the last answer: of a trace, whose end is as much part of it as the rest."""
    last_s: float = 0.0
    """When the last answer was done."""
    arrived: int = 0
    finished: int = 0
    rejected: int = 0
    restarted: int = 0
    preemptions: int = 0
    tokens_out: int = 0
    tokens_asked: int = 0
    tokens_lost: int = 0
    arrival_s: array[float] = field(default_factory=lambda: array("d"))
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    e2e_s: array[float] = field(default_factory=lambda: array("d"))
    ttfa_s: array[float] = field(default_factory=lambda: array("d"))
    output: array[int] = field(default_factory=lambda: array("l"))
    cls: array[int] = field(default_factory=lambda: array("b"))
    rejected_arrival_s: array[float] = field(default_factory=lambda: array("d"))
    rejected_cls: array[int] = field(default_factory=lambda: array("b"))
    gaps: list[list[dict[int, float]]] = field(default_factory=list)
    """By batch and class: histogram bin -> gaps."""
    gap_sums: list[list[list[float]]] = field(default_factory=list)
    """By batch and class: count, seconds."""
    history: list[list[float]] = field(default_factory=list)
    """By class, of turns with a history that arrived in the measured time: its tokens, those found in the cache."""
    follow: Callable[[Request, float], None] | None = None
    """Called with every finished turn of a session and when its client has the answer."""

    def __post_init__(self) -> None:
        self.gaps = [[{} for _ in range(self.classes)] for _ in range(self.batches)]
        self.gap_sums = [[[0.0, 0.0] for _ in range(self.classes)] for _ in range(self.batches)]
        self.history = [[0.0, 0.0] for _ in range(self.classes)]

    @property
    def measured_s(self) -> float:
        """The measured time."""
        return (max(self.end_s, self.last_s) if self.drains else self.end_s) - self.warm_s

    def batch_of(self, time_s: float) -> int:
        """Batches are equal stretches of the measured time."""
        span = self.end_s - self.warm_s
        if span <= 0:
            return 0
        return min(max(int((time_s - self.warm_s) / span * self.batches), 0), self.batches - 1)

    def finish(self, r: Request, now_s: float) -> None:
        """`now_s` is when the client has the last token."""
        self.finished += 1
        self.last_s = max(self.last_s, now_s)
        self.tokens_out += r.output
        self.arrival_s.append(r.arrival_s)
        self.ttft_s.append(r.first_s - r.arrival_s)
        self.e2e_s.append(now_s - r.arrival_s)
        # The first answer token follows the thinking: at the request's own mean gap.
        share = r.thinking / (r.output - 1) if r.output > 1 else 0.0
        self.ttfa_s.append(r.first_s - r.arrival_s + share * (now_s - r.first_s))
        self.output.append(r.output)
        self.cls.append(r.cls)
        self.tokens_lost += r.lost
        if r.session is not None and self.follow is not None:
            self.follow(r, now_s)

    def look(self, r: Request, history_tokens: int, found_tokens: int) -> None:
        """A turn looked for its history."""
        if self.warm_s <= r.arrival_s <= self.end_s:
            self.history[r.cls][0] += history_tokens
            self.history[r.cls][1] += found_tokens

    def reject(self, r: Request) -> None:
        self.rejected += 1
        self.rejected_arrival_s.append(r.arrival_s)
        self.rejected_cls.append(r.cls)


Arrivals = Iterator[Request]
