"""Conversations as they happen: the next turn comes a think time after the client has the last answer.

Sessions start as the class's arrival process says, at rate / turns, so requests come at the class's rate however long
answers take. A run begins in the middle of things: sessions are under way, and contexts lie in the caches as if the
replicas had served the last think times before (answers then take what a steady batch would need).

Where fewer replicas are simulated than share the traffic and routing does not bring sessions back, these replicas see
some turns of every session: which ones is drawn (each with probability simulated / all), and the others happen
elsewhere, as fast as here.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from planner.perf.prefixes import PrefixModel
from planner.perf.sessions import turn_shares
from planner.perf.traffic import BLOCK_TOKENS, ClassLoad
from planner.simulate.cluster import Cluster, Pool
from planner.simulate.prefixes import Prefixes
from planner.simulate.requests import Request, Session

_CHUNK = 1024
_THINKS_BACK = 5.0
"""Think times of history that caches begin with, at most: who thinks longer is one in 150."""


class _Draws:
    """One kind of random number, a chunk at a time."""

    __slots__ = ("_draw", "_left")

    def __init__(self, draw: Callable[[], list[float]]) -> None:
        self._draw = draw
        self._left: list[float] = []

    def next(self) -> float:
        if not self._left:
            self._left = self._draw()
        return self._left.pop()


class SessionStream:
    """One class's sessions as the simulated replicas see them: when they start, and what each turn is like."""

    def __init__(self, c: ClassLoad, cls: int, *, seed: int, seen: float, held: float, first: int, step: int) -> None:
        """`seen`: probability that a turn reaches the simulated replicas. `held`: that the shared prefix is there.
        Session numbers are first, first + step, ...
        """
        self.c = c
        self.cls = cls
        self.seen = seen
        self._rng = np.random.default_rng([seed, cls, 11])
        self._number, self._step = first, step
        self._starts: list[tuple[float, int, int]] = []
        self._clock = 0.0
        rng, lengths = self._rng, c.lengths
        self._input = _Draws(lambda: lengths.input.sample(rng, _CHUNK).tolist())
        self._output = _Draws(lambda: lengths.output.sample(rng, _CHUNK).tolist())
        thinking = lengths.thinking
        self._thinking = _Draws(lambda: thinking.sample(rng, _CHUNK).tolist()) if thinking is not None else None
        self._think = _Draws(lambda: rng.exponential(c.think_time_s, _CHUNK).tolist())
        self._until_here = _Draws(lambda: rng.geometric(seen, _CHUNK).astype(np.float64).tolist())
        self._luck = _Draws(lambda: rng.random(_CHUNK).tolist())
        self._held = held

    def begin(self, at_s: float) -> None:
        """Sessions start from here on."""
        self._clock = at_s

    def start(self) -> tuple[float, Session]:
        """When the next session comes by for the first time, and the session."""
        while not self._starts:
            self._starts = self._chunk()
        at, turn, last = self._starts.pop()
        s = self._session(last)
        self._elsewhere(s, turn - 1)
        return at, s

    def _chunk(self) -> list[tuple[float, int, int]]:
        """Session starts of all traffic, less those that no simulated replica ever sees; latest first."""
        c, rng = self.c, self._rng
        mean = c.lengths.turns * self.seen / c.rate_per_s
        shape = 1.0 / c.arrivals_cv**2
        gaps = rng.exponential(mean, _CHUNK) if shape == 1.0 else rng.gamma(shape, mean / shape, _CHUNK)
        times = self._clock + np.cumsum(gaps)
        self._clock = float(times[-1])
        whole = int(c.lengths.turns)
        last = whole + (rng.random(_CHUNK) < c.lengths.turns - whole)
        first = rng.geometric(self.seen, _CHUNK) if self.seen < 1 else np.ones(_CHUNK, dtype=np.int64)
        here = np.flatnonzero(first <= last)[::-1]
        return list(zip(times[here].tolist(), first[here].tolist(), last[here].tolist(), strict=True))

    def turn(self, s: Session, index: int, at_s: float) -> Request:
        """The session's current turn as a request."""
        new, answer = int(self._input.next()), int(self._output.next())
        thinking = int(self._thinking.next()) if self._thinking is not None else 0
        s.prompt, s.answer, s.looked = s.history + new, answer, s.history == 0
        s.stated = self._stated(s.prompt)
        r = Request(index, at_s, self.cls, s.prompt, s.stated, answer + thinking, thinking)
        r.session = s
        return r

    def after(self, s: Session, at_s: float, response_s: float) -> float | None:
        """The current turn's answer is there: when the next turn comes here; None where none does."""
        s.history = s.prompt + s.answer
        s.turn += 1
        away = int(self._until_here.next()) - 1 if self.seen < 1 else 0
        if s.turn + away > s.last:
            return None
        next_s = at_s + self._think.next()
        for _ in range(away):
            next_s += response_s + self._think.next()
        self._elsewhere(s, away)
        return next_s

    def under_way(self, at_s: float, *, until_s: float, answer_s: float) -> list[tuple[float, Session]]:
        """Sessions that began before `at_s` and come by again before `until_s`, with the times.

        In a steady state turn k of all sessions is a Poisson stream (sessions do not wait for each other), and so many
        wait for it as come in a think time and an answer: an exponential's rest is one, an answer's is uniform.
        """
        c, rng, z = self.c, self._rng, self.c.think_time_s
        numbers, shares = turn_shares(c.lengths.turns)
        soon = -math.expm1(-(until_s - at_s) / z)
        thinking, answering = (
            np.repeat(numbers[1:], rng.poisson(c.rate_per_s / self.seen * shares[1:] * n)) for n in (z * soon, answer_s)
        )
        rest = np.concatenate(
            [
                -z * np.log1p(-soon * rng.random(len(thinking))),
                answer_s * rng.random(len(answering)) + rng.exponential(z, len(answering)),
            ]
        )
        turn = np.concatenate([thinking, answering]).astype(np.int64)
        whole = int(c.lengths.turns)
        longer = rng.random(len(turn)) < c.lengths.turns - whole
        last = np.where(turn > whole, turn, whole + longer)
        away = rng.geometric(self.seen, len(turn)) - 1 if self.seen < 1 else np.zeros(len(turn), dtype=np.int64)
        times = at_s + rest + away * answer_s + rng.gamma(np.maximum(away, 1), z) * (away > 0)
        turn = turn + away
        history = self._histories(turn - 1)
        found = []
        for i in np.flatnonzero((turn <= last) & (times < until_s)).tolist():
            s = self._session(int(last[i]))
            s.turn, s.history = int(turn[i]), int(history[i])
            found.append((float(times[i]), s))
        return found

    def _histories(self, turns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of so many turns: gammas of their sums' mean and variance."""
        i, o = self.c.lengths.input, self.c.lengths.output
        mean = i.mean + o.mean
        variance = i.second_moment - i.mean**2 + o.second_moment - o.mean**2
        drawn = turns * mean if variance < 1e-9 else self._rng.gamma(turns * mean**2 / variance, variance / mean)
        return np.maximum(np.rint(drawn), 2 * turns).astype(np.int64)

    def _session(self, last: int) -> Session:
        s = Session(self._number, self.cls, last, sticky=self.c.hits.routing == "affinity", warm=self.c.hits.warm)
        self._number += self._step
        return s

    def _elsewhere(self, s: Session, turns: int) -> None:
        for _ in range(turns):
            s.history += int(self._input.next()) + int(self._output.next())
            s.turn += 1

    def _stated(self, prompt: int) -> int:
        hits = self.c.hits
        if not hits.warm or not (hits.share or hits.shared_tokens):
            return 0
        if hits.shared_tokens and self._held < 1 and self._luck.next() >= self._held:
            return 0
        found = max(hits.share * prompt, min(hits.shared_tokens, prompt))
        return min(int(found) // BLOCK_TOKENS * BLOCK_TOKENS, prompt - 1)


class Turns:
    """Arrivals that depend on completions: an iterator that moves the cluster on as far as the next arrival needs."""

    def __init__(
        self,
        streams: Sequence[SessionStream],
        others: Iterator[Request],
        cluster: Cluster,
        *,
        end_s: float,
        horizon_s: float = math.inf,
    ) -> None:
        """others: requests of classes without sessions, in order. Nothing arrives after `end_s`; nothing happens
        after `horizon_s`."""
        self._streams = {s.cls: s for s in streams}
        self._others = others
        self._cluster = cluster
        self._end_s, self._horizon_s = end_s, horizon_s
        self._due: list[tuple[float, int, Session]] = []
        """Turns to come: time, session number (no two at once), session."""
        self._starts: list[tuple[float, int, Session]] = []
        """Of each class, its next session."""

    def __iter__(self) -> Iterator[Request]:
        cluster = self._cluster
        cluster.ledger.follow = self._follow
        other = next(self._others, None)
        for index in count():
            while True:
                at = self._ahead() if other is None else min(self._ahead(), other.arrival_s)
                end = cluster.next_event_s
                if end > at or end > self._horizon_s:
                    break
                cluster.step(end)
            if at > self._end_s:
                return
            if other is not None and other.arrival_s <= at:
                r, other = other, next(self._others, None)
                r.index = index
            else:
                at, s = self._pop()
                r = self._streams[s.cls].turn(s, index, at)
            yield r

    def _follow(self, r: Request, now_s: float) -> None:
        s = r.session
        assert s is not None
        self._then(s, now_s, now_s - r.arrival_s)

    def _then(self, s: Session, now_s: float, response_s: float) -> None:
        due = self._streams[s.cls].after(s, now_s, response_s)
        if due is not None:
            heapq.heappush(self._due, (due, s.number, s))

    def _ahead(self) -> float:
        first = self._starts[0][0]
        return min(first, self._due[0][0]) if self._due else first

    def _pop(self) -> tuple[float, Session]:
        """The next turn: of a session under way, or a new one's first."""
        if self._due and self._due[0][0] <= self._starts[0][0]:
            at, _, s = heapq.heappop(self._due)
            return at, s
        at, _, s = self._starts[0]
        heapq.heapreplace(self._starts, self._next_start(s.cls))
        return at, s

    def _next_start(self, cls: int) -> tuple[float, int, Session]:
        at, s = self._streams[cls].start()
        return at, s.number, s

    def lead_in(
        self, caches: Sequence[Sequence[Prefixes]], others: Sequence[ClassLoad], *, seed: int, until_s: float
    ) -> None:
        """What came before the run, without engines: sessions under way at 0, contexts at rest in the caches.

        caches: by replica of the entry pool, its ranks'; without any where nothing is kept. others: classes without
        sessions, which leave their contexts, too. until_s: when the run ends.
        """
        rng = np.random.default_rng([seed, 13])
        pools = self._cluster.pools
        sessions = [s.c for s in self._streams.values()]
        answer_s = _answer_s(pools[-1], [*sessions, *others])
        begin = -_begins_before_s(pools[0], [*sessions, *others]) if caches else 0.0
        for s in self._streams.values():
            s.begin(begin)
            for at, session in s.under_way(begin, until_s=until_s, answer_s=answer_s):
                heapq.heappush(self._due, (at, session.number, session))
        self._starts = [self._next_start(cls) for cls in self._streams]
        heapq.heapify(self._starts)
        left = _left_behind(others, begin, rng) if caches else []
        replicas = len(pools[0].replicas)
        while (at := self._ahead()) < 0:
            while left and left[-1][0] <= at:
                _any(caches[int(rng.integers(replicas))], rng).rest(left.pop()[1])
            at, session = self._pop()
            r = self._streams[session.cls].turn(session, 0, at)
            where = session.home if session.home is not None else int(rng.integers(replicas))
            if session.sticky:
                session.home = where
            if caches:
                _any(caches[where], rng).recall(r)
            self._then(session, at + answer_s, answer_s)
        for _, tokens in reversed(left):
            _any(caches[int(rng.integers(replicas))], rng).rest(tokens)


def conversations(
    classes: Mapping[int, ClassLoad],
    arrivals: Iterator[Request],
    cluster: Cluster,
    *,
    others: Sequence[ClassLoad],
    seed: int,
    sharing: int,
    end_s: float,
    horizon_s: float = math.inf,
) -> Iterator[Request]:
    """Classes with sessions, by number, beside the arrivals of the others, with the cluster's caches in use.

    sharing: replicas that share the traffic, simulated or not. Arrivals end with the time, not with a number: turns
    come in bunches, and a run that stops at a number would stop early whenever many came.
    """
    entry = cluster.pools[0]
    cluster.in_order()
    caches = []
    if any(c.hits.warm for c in classes.values()):
        for replica in entry.replicas:
            for rank in replica.parts():
                rank.prefixes = Prefixes(entry.spec, cluster.ledger)
        caches = [[p for p in (rank.prefixes for rank in rep.parts()) if p is not None] for rep in entry.replicas]
    streams = [
        SessionStream(
            c,
            cls,
            seed=seed,
            seen=1.0 if c.hits.routing == "affinity" else min(len(entry.replicas) / sharing, 1.0),
            held=c.hits.held_ratio(sharing, entry.spec.cache_tokens),
            first=n,
            step=len(classes),
        )
        for n, (cls, c) in enumerate(classes.items())
    ]
    turns = Turns(streams, arrivals, cluster, end_s=end_s, horizon_s=horizon_s)
    turns.lead_in(caches, others, seed=seed, until_s=end_s)
    return iter(turns)


def _any(ranks: Sequence[Prefixes], rng: np.random.Generator) -> Prefixes:
    return ranks[0] if len(ranks) == 1 else ranks[int(rng.integers(len(ranks)))]


def _left_behind(others: Sequence[ClassLoad], begin_s: float, rng: np.random.Generator) -> list[tuple[float, int]]:
    """When requests of classes without sessions came before 0 and the tokens that they left, latest first."""
    found: list[tuple[float, int]] = []
    for c in others:
        count = int(rng.poisson(-begin_s * c.rate_per_s))
        s = c.sample(rng, count)
        tokens = s.input_tokens - s.cached_tokens + s.output_tokens
        found += zip((begin_s * rng.random(count)).tolist(), tokens.astype(np.int64).tolist(), strict=True)
    return sorted(found, reverse=True)


def _begins_before_s(pool: Pool, classes: Sequence[ClassLoad]) -> float:
    """How long before a run its caches begin to fill: until they are full, or think times ago."""
    total = math.fsum(c.rate_per_s for c in classes)
    model = PrefixModel(pool.spec, classes, [c.rate_per_s / total for c in classes])
    fills = model.fills_s(total / len(pool.replicas) / pool.spec.lockstep_ranks)
    return min(fills, _THINKS_BACK * max(c.think_time_s for c in classes))


def _answer_s(pool: Pool, classes: Sequence[ClassLoad]) -> float:
    """About how long an answer takes in a steady batch: n = rate x answer x step(n), prompts left out."""
    if pool.spec.role == "prefill":
        return 0.0
    total = math.fsum(c.rate_per_s for c in classes)
    rate = total / len(pool.replicas) / pool.spec.lockstep_ranks
    grids = [(c.rate_per_s / total, c.grid()) for c in classes]
    answer = math.fsum(w * g.mean(g.output_tokens) for w, g in grids)
    context = math.fsum(w * g.mean(g.input_tokens) for w, g in grids) + answer / 2
    steps = answer / (pool.spec.drafting.tokens_per_step if pool.spec.drafting is not None else 1.0)
    n, step = 1, 0.0
    for _ in range(20):
        step = pool.spec.table.step_s(decode_seqs=n, context_tokens=n * context)
        n = max(1, min(round(rate * steps * step), pool.spec.max_num_seqs))
    return steps * step
