"""What one replica's cache keeps of idle sessions: a least-recently-used cache beside running requests.

Running requests hold their part of the cache; what is left holds contexts of turns that are done, the youngest on
top. A context that nobody touches sinks as others are put (back) on top, and is gone once what runs, what stands above
it and itself are more than the cache (Che's approximation of LRU, with whole contexts as items):

    above(t) = sum over classes and turns k of  rate x cost(context_k) x H_k(t)        t: its age
    kept(t)  = P(running + above(t) + own <= capacity)

H_k is how long of an age a context stands untouched (`sessions.untouched_s`). A turn puts its whole context on top
whether it was found or not, so `above` does not depend on hits, only on the rate. Contexts come at random, so their
sum has the variance of a Poisson number of them, and the running batch its own: of small caches a few per cent of
the histories are lost long before the mean fills them, and those make the percentiles of TTFT. The sum is taken as a
gamma. Requests of classes without sessions leave what nobody reads again; prefixes that groups share are taken as
kept (`PrefixHits.held_ratio`) and take their room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.perf.lengths import Floats
from planner.perf.nodes import gamma_below
from planner.perf.pool import PoolSpec
from planner.perf.sessions import TIMES_S, History, history_of, looked_back, returns, turn_shares, untouched_s
from planner.perf.table_math import along
from planner.perf.traffic import ClassLoad

Kept = tuple[tuple[float, ...], ...]
"""By class: probability that a context is still there j turns later, j = 1, 2, ...; empty for one without sessions."""

_SHORTEST_THINK_S = 1e-3
_LEAST_ODDS, _ODDS_STEP, _LEAST_KEPT = 1e-4, 1.1, 1e-3
"""The odds of losing a context are rounded up to 1e-4 x 1.1^i, so that neighbouring rates share a model."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What runs on the replica (rank), in cache units."""

    mean: float
    sd: float
    response_s: float
    """How long answers take: histories wait that much longer for turns that other replicas answer meanwhile."""

    def within(self, other: Beside) -> bool:
        return self.mean <= other.mean and self.sd <= other.sd and self.response_s <= other.response_s


class PrefixModel:
    """The idle part of one replica's cache (of one rank's, where ranks step together)."""

    def __init__(self, pool: PoolSpec, classes: Sequence[ClassLoad], shares: Sequence[float]) -> None:
        self.pool = pool
        self.classes = tuple(classes)
        self.shares = tuple(shares)
        # Requests go to the emptiest rank, whatever it holds.
        self.here = tuple(c.here_ratio(pool.replicas) / pool.lockstep_ranks for c in classes)
        self._here_too = pool.role == "aggregated"
        """Whether answers are given where their prompts are read."""
        self._apart = not self._here_too or any(
            h < 1 for c, h in zip(self.classes, self.here, strict=True) if c.has_sessions
        )
        self._known: dict[float, tuple[Floats, Floats]] = {}
        self._own = self._mean_history_units()
        self._shared = self._shared_units()
        self.always = self._same(1.0)
        self.never = self._same(0.0)

    def histories(self, kept: Kept) -> tuple[History | None, ...]:
        """By class: what its turns find."""
        return tuple(
            history_of(k, here=h, answers=c.lengths.thinking is None and self._here_too) if k else None
            for c, h, k in zip(self.classes, self.here, kept, strict=True)
        )

    def kept(self, rate_per_s: float, beside: Beside) -> Kept:
        """At a rate of the replica (rank), beside what runs."""
        response_s = beside.response_s if self._apart else 0.0
        if response_s not in self._known:
            self._known[response_s] = self._above(response_s)
        mean, variance = self._known[response_s]
        there = gamma_below(
            self.pool.kv_capacity - self._own - self._shared,
            mean=beside.mean + rate_per_s * mean,
            sd=np.sqrt(beside.sd**2 + rate_per_s * variance),
        )
        return tuple(
            tuple(_rounded(float(self._returns(c, j, response_s) @ there)) for j in range(1, looked_back(h) + 1))
            if c.has_sessions
            else ()
            for c, h in zip(self.classes, self.here, strict=True)
        )

    def _returns(self, c: ClassLoad, back: int, response_s: float) -> Floats:
        return returns(back, think_s=_think_s(c), response_s=response_s, answers=self._here_too)

    def rounded(self, beside: Beside, *, more: int) -> Beside:
        """Up to the next value of coarse series, and so many steps beyond."""
        part = self.pool.kv_capacity / 64
        at = min(int(np.searchsorted(TIMES_S, beside.response_s)) + more, len(TIMES_S) - 1)
        return Beside(
            part * (math.ceil(beside.mean / part) + more),
            part * (math.ceil(beside.sd / part) + more),
            float(TIMES_S[at]),
        )

    def fills_s(self, rate_per_s: float) -> float:
        """Age of the oldest contexts of a replica (rank) that runs nothing: what came in since then fills its cache."""
        above = rate_per_s * self._above(0.0)[0]
        at = int(np.searchsorted(above, self.pool.kv_capacity))
        return float(TIMES_S[at]) if at < len(TIMES_S) else math.inf

    def _same(self, kept: float) -> Kept:
        return tuple(
            (kept,) * looked_back(h) if c.has_sessions else () for c, h in zip(self.classes, self.here, strict=True)
        )

    def _above(self, response_s: float) -> tuple[Floats, Floats]:
        """Mean and variance of the units above a context of each age in `TIMES_S`, at one request a second."""
        mean, variance = np.zeros_like(TIMES_S), np.zeros_like(TIMES_S)
        for c, share, here in zip(self.classes, self.shares, self.here, strict=True):
            if c.has_sessions:
                _, weights = turn_shares(c.lengths.turns)
                away = response_s if here < 1 or not self._here_too else 0.0
                stood = untouched_s(
                    c.lengths.turns, think_s=_think_s(c), here=here, response_s=away, answers=self._here_too
                )
                units, spread = self._contexts(c)
                mean += share * ((weights * units) @ stood)
                variance += share * ((weights * units**2 * (1 + spread)) @ stood)
            else:
                g = c.grid(replicas=self.pool.replicas, cache_tokens=self.pool.cache_tokens)
                left = self._cost(g.prefill_tokens + (0.0 if self.pool.role == "prefill" else g.output_tokens))
                mean += share * g.mean(left) * TIMES_S
                variance += share * g.mean(left**2) * TIMES_S
        return mean, variance

    def _contexts(self, c: ClassLoad) -> tuple[Floats, Floats]:
        """Units of a session's context after each of its turns, and their squared CV."""
        numbers, _ = turn_shares(c.lengths.turns)
        i, o = c.lengths.input, c.lengths.output
        thinking = c.lengths.thinking.mean if c.lengths.thinking is not None else 0.0
        # A prefill replica holds the prompt; the answer is the decode replica's.
        tokens = numbers * (i.mean + o.mean) + (-o.mean if self.pool.role == "prefill" else thinking)
        one = (i.second_moment - i.mean**2) + (o.second_moment - o.mean**2)
        return self._cost(tokens), numbers * one / tokens**2

    def _mean_history_units(self) -> float:
        """Units of the history of a turn that has one, over all classes with sessions."""
        units = weight = 0.0
        for c, share in zip(self.classes, self.shares, strict=True):
            if c.has_sessions:
                _, turns = turn_shares(c.lengths.turns)
                units += share * float(turns[1:] @ self._contexts(c)[0][:-1])
                weight += share * float(turns[1:].sum())
        return units / weight if weight else 0.0

    def _shared_units(self) -> float:
        total = 0.0
        for c in self.classes:
            if c.hits.shared_tokens and c.hits.warm and not c.has_sessions:
                groups = c.hits.groups / self.pool.replicas if c.hits.routing == "affinity" else c.hits.groups
                held = c.hits.held_ratio(self.pool.replicas, self.pool.cache_tokens)
                total += max(groups, 1.0) * held * float(self._cost(np.array([c.hits.shared_tokens]))[0])
        return total

    def _cost(self, tokens: Floats) -> Floats:
        half = self.pool.block_tokens / 2
        return along(self.pool.kv_cost, tokens + half) if self.pool.kv_cost is not None else tokens + half


def _think_s(c: ClassLoad) -> float:
    return max(c.think_time_s, _SHORTEST_THINK_S)


def _rounded(kept: float) -> float:
    """Down to the next value of a series that is fine where little is lost and where little is kept."""
    if kept < _LEAST_KEPT:
        return 0.0
    odds = max((1 - kept) / kept, _LEAST_ODDS)
    step = math.ceil(math.log(odds / _LEAST_ODDS) / math.log(_ODDS_STEP) - 1e-6)
    return 1 / (1 + _LEAST_ODDS * _ODDS_STEP**step)
