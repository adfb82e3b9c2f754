"""Traffic classes as the load model and the simulation see them: joint lengths, prefix hits, arrivals, promises.

A class is one frozen value that both take. Its requests have four lengths: prompt, the part of the prompt found in
the prefix cache, output (thinking included) and thinking. Input and output of a trace keep their correlation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from planner.errors import UserError
from planner.intent.document import PrefixCache, TrafficClass
from planner.intent.slo import Slo
from planner.intent.traces import TraceSummary, busiest_minute
from planner.perf.lengths import Constant, Distribution, Floats, distribution, strata_edges
from planner.perf.sessions import History, kept_for_ever, turn_shares

FIRST_BLOCK_TOKENS = 512
"""Leading tokens of a trace's hits that every replica soon holds: Mooncake's traces count in such blocks."""
BLOCK_TOKENS = 16
"""Prefix caches match whole blocks (vLLM's default block)."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests side by side: a weighted grid for closed forms, or samples of weight 1/n for the simulation."""

    input_tokens: Floats
    cached_tokens: Floats
    output_tokens: Floats
    """Thinking included."""
    thinking_tokens: Floats
    weights: Floats
    """Sum to 1."""

    @property
    def prefill_tokens(self) -> Floats:
        """Prompt tokens that must be computed: at least one, which gives the first output token."""
        return np.maximum(self.input_tokens - self.cached_tokens, 1.0)

    def mean(self, values: Floats) -> float:
        return float(self.weights @ values)


@dataclass(frozen=True, slots=True)
class JointLengths:
    """Either independent distributions, with turns that grow the prompt, or weighted rows of a trace."""

    input: Distribution
    output: Distribution
    thinking: Distribution | None = None
    turns: float = 1.0
    rows: tuple[tuple[float, float, float, float], ...] = ()
    """Of a trace: input, cached (infinite cache), output, weight. When present, `input` and `output` are marginals
    for display only."""
    longest_row: float | None = None
    """Of a trace: its longest request, which the rows (strata means) no longer show."""

    @property
    def longest(self) -> float:
        """Tokens of the longest request, prompt and answer."""
        if self.longest_row is not None:
            return self.longest_row
        if self.rows:
            return max(i + o for i, _, o, _ in self.rows)
        think = self.thinking.longest if self.thinking else 0.0
        turns = float(np.ceil(self.turns))
        return (self.input.longest + self.output.longest) * turns + think


@dataclass(frozen=True, slots=True)
class PrefixHits:
    """Prompt tokens found in the cache, as stated or traced; what arrives at a replica depends on routing.

    share: every prompt hits this share of its tokens. shared_tokens: leading tokens common to one of `groups`.
    Earlier turns of a session hit where routing brings the session back (affinity), else with probability 1/replicas,
    and as long as the cache keeps them (`perf.sessions`).
    """

    share: float = 0.0
    shared_tokens: float = 0.0
    groups: int = 1
    routing: Literal["round-robin", "affinity"] = "round-robin"
    traced: bool = False
    warm: bool = True
    """False: the cold-cache case, no hits at all."""

    def held_ratio(self, replicas: int, cache_tokens: float) -> float:
        """Share of the groups whose prefix one replica holds, if half of its cache is left to prefixes."""
        here = self.groups / replicas if self.routing == "affinity" else self.groups
        need = max(here, 1.0) * self.shared_tokens
        return min(1.0, 0.5 * cache_tokens / need) if need > 0 else 1.0


@dataclass(frozen=True, slots=True)
class ClassLoad:
    """One traffic class at its planned rate."""

    name: str
    rate_per_s: float
    lengths: JointLengths
    hits: PrefixHits = PrefixHits()
    arrivals_cv: float = 1.0
    slos: tuple[Slo, ...] = ()
    priority: int = 0
    trough_ratio: float | None = None
    think_time_s: float = 0.0
    """Mean, of a session: exponential."""

    @property
    def has_sessions(self) -> bool:
        """Whether prompts hold earlier turns that the class's lengths tell apart (a trace's rows do not)."""
        return self.lengths.turns > 1 and not self.lengths.rows

    def here_ratio(self, replicas: int) -> float:
        """Probability that routing brings a session's next turn to the replica of its last one."""
        return 1.0 if self.hits.routing == "affinity" else 1.0 / replicas

    def grid(self, *, replicas: int = 1, cache_tokens: float = math.inf, history: History | None = None) -> Requests:
        """At most a few thousand weighted requests with the class's means kept.

        Hits depend on how many replicas share the traffic and on the cache of one of them. `history`: what turns find
        of their sessions, from the replica's load model, which knows the rate; without it nothing is ever evicted.
        """
        held = self.hits.held_ratio(replicas, cache_tokens)
        if self.has_sessions and history is None:
            history = self._kept_for_ever(replicas)
        return _grid(self.lengths, self.hits, replicas if self.hits.routing == "round-robin" else 1, held, history)

    def prompt_grid(self, grid: Requests, *, replicas: int, cache_tokens: float, history: History | None) -> Requests:
        """The prompts of `grid` where nothing is asked of their answers: of sessions without those, an eighth as many.

        Prompts and answers of a turn are independent, and a search prices the prompts of thousands of replicas.
        """
        if history is None:
            return grid
        return _session_grid(self.lengths, self.hits, self.hits.held_ratio(replicas, cache_tokens), history, answers=1)

    def sample(
        self,
        rng: np.random.Generator,
        count: int,
        *,
        replicas: int = 1,
        cache_tokens: float = math.inf,
        history: History | None = None,
    ) -> Requests:
        """Seeded requests with whole tokens; weights are equal. Turns of sessions are drawn apart from each other
        (`planner.simulate.sessions` has them follow one another)."""
        held = self.hits.held_ratio(replicas, cache_tokens)
        if self.has_sessions:
            return _sample_turns(self, rng, count, held, history or self._kept_for_ever(replicas))
        found = _sample(self.lengths, self.hits, rng, count, replicas)
        if held < 1 and self.hits.shared_tokens:
            # A group's prefix is in the cache or it is not.
            found = replace(found, cached_tokens=np.where(rng.random(count) < held, found.cached_tokens, 0.0))
        return found

    def history_hit_ratio(self, history: History) -> float:
        """Of the tokens of earlier turns in this class's prompts, those found in the cache (whole blocks aside)."""
        turn, earlier, weights = _turn_nodes(self.lengths)
        found, shares = _returning(turn, earlier, self.lengths, history)
        return float(weights @ (found * shares).sum(axis=0)) / float(weights @ earlier)

    def _kept_for_ever(self, replicas: int) -> History:
        return kept_for_ever(self.here_ratio(replicas), self.lengths.thinking is None)

    def cold(self) -> ClassLoad:
        """The same class when nothing is cached."""
        return replace(self, hits=replace(self.hits, warm=False))

    def at(self, rate_per_s: float) -> ClassLoad:
        return replace(self, rate_per_s=rate_per_s)


def _stated(hits: PrefixHits, inputs: Floats) -> Floats:
    """Tokens that every prompt of a warm cache hits, as stated: a share of it, or its leading tokens."""
    if hits.share or hits.shared_tokens:
        return np.maximum(hits.share * inputs, np.minimum(hits.shared_tokens, inputs))
    return np.zeros_like(inputs)


def _whole_blocks(found: Floats, inputs: Floats) -> Floats:
    """Caches match whole blocks, and the prompt's last token is always computed."""
    whole: Floats = np.minimum(np.floor(found / BLOCK_TOKENS) * BLOCK_TOKENS, np.maximum(inputs - 1, 0))
    return whole


def _cached(hits: PrefixHits, inputs: Floats, traced: Floats, replicas: int) -> Floats:
    """Expected cached tokens of prompts that are no session's later turns."""
    if not hits.warm:
        return np.zeros_like(inputs)
    if not hits.traced:
        return _whole_blocks(_stated(hits, inputs), inputs)
    # The first block (512 tokens in Mooncake's traces) is a system prompt that every replica soon holds; what lies
    # deeper is the session's own: under round-robin its last turn is on this replica with probability 1/replicas.
    here = 1.0 if hits.routing == "affinity" else 1.0 / replicas
    first = np.minimum(traced, FIRST_BLOCK_TOKENS)
    return _whole_blocks(first + (traced - first) * here, inputs)


@lru_cache(maxsize=512)
def _grid(
    lengths: JointLengths, hits: PrefixHits, replicas: int, held: float, history: History | None = None
) -> Requests:
    if lengths.rows:
        table = np.array(lengths.rows)
        inputs, traced, outputs, weights = table.T
        thinking = np.zeros_like(inputs)
        cached = _cached(hits, inputs, traced, replicas)
        return Requests(inputs, cached, outputs, thinking, weights / weights.sum())
    if history is not None:
        return _session_grid(lengths, hits, held, history)
    i, o, t, w = _own_lengths(lengths, 20, 14)
    cached = _cached(hits, i, np.zeros_like(i), replicas)
    if held < 1 and hits.shared_tokens:
        cached = cached * held
    return Requests(i, cached, o + t, t, w)


def _own_lengths(
    lengths: JointLengths, inputs: int, outputs: int, thoughts: int = 5
) -> tuple[Floats, Floats, Floats, Floats]:
    """New prompt tokens, answers, thinking, weights."""
    i_v, i_w = lengths.input.grid(inputs)
    o_v, o_w = lengths.output.grid(outputs)
    t_v, t_w = lengths.thinking.grid(thoughts) if lengths.thinking is not None else (np.zeros(1), np.ones(1))
    i, o, t = (a.ravel() for a in np.meshgrid(i_v, o_v, t_v, indexing="ij"))
    w = np.einsum("i,o,t->iot", i_w, o_w, t_w).ravel()
    return i, o, t, w / w.sum()


@lru_cache(maxsize=512)
def _session_grid(
    lengths: JointLengths, hits: PrefixHits, held: float, history: History, *, answers: int = 8
) -> Requests:
    """Turns with what they find of their history.

    Rows, not means: the few prompts that find nothing, and the long histories, make the percentiles of TTFT.
    """
    turn, earlier, turn_w = _turn_nodes(lengths)
    found, shares = _returning(turn, earlier, lengths, history)
    if not hits.warm:
        found, shares = np.zeros((1, len(turn))), np.ones((1, len(turn)))
    keep = shares > 0
    earlier = np.broadcast_to(earlier, shares.shape)[keep]
    found, turn_w = found[keep], (shares * turn_w)[keep]
    i, o, t, w = _own_lengths(lengths, 8, answers, min(answers, 5))
    prompt = i[:, None] + earlier[None, :]
    stated = _stated(hits, prompt) * (held if hits.shared_tokens else 1.0) if hits.warm else np.zeros_like(prompt)
    cached = _whole_blocks(np.maximum(stated, found[None, :]), prompt)
    return Requests(
        prompt.ravel(),
        cached.ravel(),
        np.repeat(o + t, len(found)),
        np.repeat(t, len(found)),
        (w[:, None] * turn_w[None, :] / turn_w.sum()).ravel(),
    )


def _turn_nodes(lengths: JointLengths) -> tuple[Floats, Floats, Floats]:
    """Turn numbers, the tokens of the turns before, and weights; at most five turns stand for all.

    A history is a sum of lengths: a gamma of its mean and variance, in three strata (lower 70%, next 25%, top).
    """
    numbers, turn_w = turn_shares(lengths.turns)
    if len(numbers) > 5:
        pick = np.unique(np.linspace(0, len(numbers) - 1, 5).round().astype(int))
        cell = np.abs(numbers[:, None] - numbers[pick][None, :]).argmin(axis=1)
        w = np.bincount(cell, weights=turn_w).astype(np.float64)
        numbers, turn_w = np.bincount(cell, weights=turn_w * numbers) / w, w
    i, o = lengths.input, lengths.output
    mean = (numbers - 1) * (i.mean + o.mean)
    variance = (numbers - 1) * (i.second_moment - i.mean**2 + o.second_moment - o.mean**2)
    if not variance.any():
        return numbers, mean, turn_w
    z, z_w = np.array([-0.497, 0.978, 2.063]), np.array([0.7, 0.25, 0.05])  # means of a normal's strata
    k = np.maximum(mean**2 / np.maximum(variance, 1e-9), 0.2)[:, None]
    spread = np.maximum(1 - 1 / (9 * k) + z / (3 * np.sqrt(k)), 0.05) ** 3
    nodes = mean[:, None] * spread / (spread @ z_w)[:, None]
    first = numbers == 1
    return (
        np.concatenate([numbers[first], np.repeat(numbers[~first], 3)]),
        np.concatenate([mean[first], nodes[~first].ravel()]),
        np.concatenate([turn_w[first], (turn_w[~first, None] * z_w).ravel()]),
    )


def _returning(turn: Floats, earlier: Floats, lengths: JointLengths, history: History) -> tuple[Floats, Floats]:
    """Of `earlier` tokens those that a turn finds, and how likely: as the session stood at the last turn, at one before
    (their mean), nothing."""
    back = np.arange(1, len(history.found) + 1, dtype=np.float64)[:, None]
    there = turn[None, :] - back
    chance = np.where(there > 1 - 1e-9, np.array(history.found)[:, None], 0.0)
    # The last token of an answer was never fed back: it is not in the cache.
    tail = 1.0 if history.answers else lengths.output.mean
    tokens = np.maximum(earlier * there / np.maximum(turn - 1, 1.0) - tail, 0.0)
    older = chance[1:].sum(axis=0)
    older_tokens = (chance[1:] * tokens[1:]).sum(axis=0) / np.maximum(older, 1e-12)
    shares = np.stack([chance[0], older, np.maximum(1 - chance[0] - older, 0.0)])
    return np.stack([tokens[0], older_tokens, np.zeros_like(turn)]), shares


def _sample(lengths: JointLengths, hits: PrefixHits, rng: np.random.Generator, count: int, replicas: int) -> Requests:
    even = np.full(count, 1.0 / max(count, 1))
    if lengths.rows:
        table = np.array(lengths.rows)
        at = np.searchsorted(np.cumsum(table[:, 3]) / table[:, 3].sum(), rng.random(count), side="right")
        inputs, traced, outputs, _ = table[np.minimum(at, len(table) - 1)].T
        inputs, outputs = np.maximum(np.rint(inputs), 1), np.maximum(np.rint(outputs), 1)
        cached = _luck(hits, rng, inputs, traced=traced, replicas=replicas)
        return Requests(inputs, cached, outputs, np.zeros(count), even)
    inputs, outputs, thinking = _lengths(lengths, rng, count)
    cached = _luck(hits, rng, inputs, traced=np.zeros(count), replicas=replicas)
    return Requests(inputs, cached, outputs + thinking, thinking, even)


def _lengths(lengths: JointLengths, rng: np.random.Generator, count: int) -> tuple[Floats, Floats, Floats]:
    """New prompt tokens, answer and thinking of requests."""
    inputs, outputs = lengths.input.sample(rng, count), lengths.output.sample(rng, count)
    return inputs, outputs, lengths.thinking.sample(rng, count) if lengths.thinking is not None else np.zeros(count)


def _sample_turns(c: ClassLoad, rng: np.random.Generator, count: int, held: float, history: History) -> Requests:
    lengths, hits = c.lengths, c.hits
    inputs, outputs, thinking = _lengths(lengths, rng, count)
    numbers, turn_w = turn_shares(lengths.turns)
    k = numbers[np.minimum(np.searchsorted(np.cumsum(turn_w), rng.random(count), side="right"), len(numbers) - 1)]
    # Earlier turns at their mean size.
    earlier = np.rint((k - 1) * (lengths.input.mean + lengths.output.mean))
    inputs = inputs + earlier
    cached = np.zeros(count)
    if hits.warm:
        found, shares = _returning(k, earlier, lengths, history)
        which = (rng.random(count)[None, :] >= np.cumsum(shares, axis=0)[:2]).sum(axis=0)
        stated = np.where(rng.random(count) < (held if hits.shared_tokens else 1.0), _stated(hits, inputs), 0.0)
        cached = _whole_blocks(np.maximum(stated, found[which, np.arange(count)]), inputs)
    return Requests(inputs, cached, outputs + thinking, thinking, np.full(count, 1.0 / max(count, 1)))


def _luck(hits: PrefixHits, rng: np.random.Generator, inputs: Floats, *, traced: Floats, replicas: int) -> Floats:
    """Cached tokens request by request: what lies deeper than the first block is on this replica or it is not."""
    if hits.routing == "affinity" or replicas == 1 or not hits.traced:
        return _cached(hits, inputs, traced, replicas)
    here = rng.random(len(inputs)) * replicas < 1
    return np.where(
        here,
        _cached(replace(hits, routing="affinity"), inputs, traced, 1),
        _cached(hits, inputs, traced, 1_000_000_000),
    )


def trace_lengths(summary: TraceSummary) -> JointLengths:
    """The rows that a plan embeds, as joint lengths."""
    rows = tuple((float(i), float(c), float(o), float(w)) for i, c, o, w in summary.pairs)
    return JointLengths(
        Constant(summary.input.mean),
        Constant(summary.output.mean),
        rows=rows,
        longest_row=float(summary.input.max + summary.output.max),
    )


def class_load(
    traffic: TrafficClass,
    *,
    slos: Sequence[Slo] = (),
    trace: TraceSummary | None = None,
    rate_per_s: float | None = None,
) -> ClassLoad:
    """An intent's class -> what the load model takes. `slos` are the service's, for a class without its own.

    A rate given here wins over the class's; with neither, a trace's busiest minute is used, else 1/s (the
    question "how much does the fleet carry" scales it).
    """
    prefix = traffic.prefix_cache
    hits = _prefix_hits(prefix)
    if traffic.trace is not None:
        if trace is None:
            raise UserError(
                "trace",
                f"class {traffic.name!r} needs its trace {traffic.trace}",
                None,
                (),
                ("keep the trace file beside the intent",),
            )
        lengths = trace_lengths(trace)
        routed = prefix is not None and prefix.from_trace
        if (prefix is None or routed) and any(row[1] for row in lengths.rows):
            hits = replace(hits, traced=True)
        elif routed:
            raise UserError(
                "prefix-cache",
                f"class {traffic.name!r} takes its prefix hits from {traffic.trace}, which counts none",
                None,
                ("a column prefix_hit_tokens_infinite_cache would say how much of a prompt was there before",),
                ("state them: prefix_cache: {share: 40%, routing: affinity}",),
            )
        if traffic.thinking is not None:
            raise UserError(
                "traffic",
                f"class {traffic.name!r} has both a trace and thinking tokens",
                None,
                ("a trace's outputs already hold them",),
                ("remove thinking",),
            )
        if traffic.sessions is not None:
            raise UserError(
                "traffic",
                f"class {traffic.name!r} has both a trace and sessions",
                None,
                ("a trace's prompts already hold the turns before them",),
                ("remove sessions, or give input and output instead of the trace",),
            )
    else:
        assert traffic.input is not None
        assert traffic.output is not None
        thinking = distribution(traffic.thinking) if traffic.thinking is not None else None
        turns = traffic.sessions.turns if traffic.sessions is not None else 1.0
        lengths = JointLengths(distribution(traffic.input), distribution(traffic.output), thinking, turns)
    rate = rate_per_s if rate_per_s is not None else traffic.rate
    if rate is None:
        rate = busiest_minute(trace) or 1.0
    own = traffic.slo if traffic.slo is not None else tuple(slos)
    return ClassLoad(
        name=traffic.name,
        rate_per_s=rate,
        lengths=lengths,
        hits=hits,
        # Of a replayed trace: its busiest minute as a Poisson stream. The CV of a whole trace's gaps mixes the pace of
        # its hours; what its bursts ask for, a replay says.
        arrivals_cv=traffic.arrivals.cv,
        slos=own,
        priority=traffic.priority,
        trough_ratio=traffic.trough,
        think_time_s=traffic.sessions.think_time if traffic.sessions is not None else 0.0,
    )


def _prefix_hits(prefix: PrefixCache | None) -> PrefixHits:
    if prefix is None:
        return PrefixHits()
    return PrefixHits(
        share=prefix.share or 0.0,
        shared_tokens=float(prefix.shared_tokens or 0),
        groups=prefix.groups,
        routing=prefix.routing,
    )


__all__ = [
    "BLOCK_TOKENS",
    "ClassLoad",
    "JointLengths",
    "PrefixHits",
    "Requests",
    "class_load",
    "strata_edges",
    "trace_lengths",
]
