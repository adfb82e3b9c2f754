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
from planner.intent.traces import TraceSummary
from planner.perf.lengths import Constant, Distribution, Floats, distribution, strata_edges

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
    Earlier turns of a session hit where routing brings the session back (affinity), else with probability 1/replicas.
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

    def grid(self, *, replicas: int = 1, cache_tokens: float = math.inf) -> Requests:
        """At most a few hundred weighted requests with the class's means kept.

        Hits depend on how many replicas share the traffic and on the cache of one of them.
        """
        held = self.hits.held_ratio(replicas, cache_tokens)
        return _grid(self.lengths, self.hits, replicas if self.hits.routing == "round-robin" else 1, held)

    def sample(
        self, rng: np.random.Generator, count: int, *, replicas: int = 1, cache_tokens: float = math.inf
    ) -> Requests:
        """Seeded requests with whole tokens; weights are equal."""
        held = self.hits.held_ratio(replicas, cache_tokens)
        found = _sample(self.lengths, self.hits, rng, count, replicas)
        if held < 1 and self.hits.shared_tokens:
            # A group's prefix is in the cache or it is not.
            found = replace(found, cached_tokens=np.where(rng.random(count) < held, found.cached_tokens, 0.0))
        return found

    def cold(self) -> ClassLoad:
        """The same class when nothing is cached."""
        return replace(self, hits=replace(self.hits, warm=False))

    def at(self, rate_per_s: float) -> ClassLoad:
        return replace(self, rate_per_s=rate_per_s)


def _turn_weights(turns: float) -> tuple[Floats, Floats]:
    """Turn numbers and their shares when sessions last `turns` on average (the fraction ends one turn earlier)."""
    whole = int(turns)
    numbers = np.arange(1, whole + (2 if turns > whole else 1), dtype=np.float64)
    weights = np.ones(len(numbers))
    if turns > whole:
        weights[-1] = turns - whole
    return numbers, weights / weights.sum()


def _cached(hits: PrefixHits, inputs: Floats, history: Floats, traced: Floats, replicas: int) -> Floats:
    """Expected cached tokens of prompts that begin with `history` earlier tokens of their session."""
    if not hits.warm:
        return np.zeros_like(inputs)
    # Under round-robin a session's last turn is on this replica with probability 1/replicas; under affinity always.
    here = 1.0 if hits.routing == "affinity" else 1.0 / replicas
    if hits.traced:
        # The first block (512 tokens in Mooncake's traces) is a system prompt that every replica soon holds; what
        # lies deeper is the session's own.
        first = np.minimum(traced, 512.0)
        found = first + (traced - first) * here
    else:
        found = (
            np.maximum(hits.share * inputs, np.minimum(hits.shared_tokens, inputs))
            if hits.share or hits.shared_tokens
            else np.zeros_like(inputs)
        )
        found = np.maximum(found, found * (1 - here) + np.maximum(history, found) * here)
    whole: Floats = np.minimum(np.floor(found / BLOCK_TOKENS) * BLOCK_TOKENS, np.maximum(inputs - 1, 0))
    return whole


@lru_cache(maxsize=512)
def _grid(lengths: JointLengths, hits: PrefixHits, replicas: int, held: float) -> Requests:
    if lengths.rows:
        table = np.array(lengths.rows)
        inputs, traced, outputs, weights = table.T
        thinking = np.zeros_like(inputs)
        cached = _cached(hits, inputs, np.zeros_like(inputs), traced, replicas)
        return Requests(inputs, cached, outputs, thinking, weights / weights.sum())
    numbers, turn_w = _turn_weights(lengths.turns)
    many = len(numbers) > 1
    i_v, i_w = lengths.input.grid(12 if many else 20)
    o_v, o_w = lengths.output.grid(10 if many else 14)
    t_v, t_w = lengths.thinking.grid(5) if lengths.thinking is not None else (np.zeros(1), np.ones(1))
    if len(numbers) > 8:  # long sessions: a few turns stand for all
        pick = np.unique(np.linspace(0, len(numbers) - 1, 8).round().astype(int))
        cell = np.abs(numbers[:, None] - numbers[pick][None, :]).argmin(axis=1)
        w = np.bincount(cell, weights=turn_w).astype(np.float64)
        numbers, turn_w = np.bincount(cell, weights=turn_w * numbers) / w, w
    i, o, t, k = (a.ravel() for a in np.meshgrid(i_v, o_v, t_v, numbers, indexing="ij"))
    w4 = np.einsum("i,o,t,k->iotk", i_w, o_w, t_w, turn_w).ravel()
    # Earlier turns stand in the prompt at their mean size: their spread averages out over turns.
    history = (k - 1) * (lengths.input.mean + lengths.output.mean)
    prompt = i + history
    cached = _cached(hits, prompt, history, np.zeros_like(prompt), replicas)
    if held < 1 and hits.shared_tokens:
        cached = cached * held
    return Requests(prompt, cached, o + t, t, w4 / w4.sum())


def _sample(lengths: JointLengths, hits: PrefixHits, rng: np.random.Generator, count: int, replicas: int) -> Requests:
    even = np.full(count, 1.0 / max(count, 1))
    if lengths.rows:
        table = np.array(lengths.rows)
        at = np.searchsorted(np.cumsum(table[:, 3]) / table[:, 3].sum(), rng.random(count), side="right")
        inputs, traced, outputs, _ = table[np.minimum(at, len(table) - 1)].T
        inputs, outputs = np.maximum(np.rint(inputs), 1), np.maximum(np.rint(outputs), 1)
        return Requests(
            inputs,
            _luck(hits, rng, inputs, history=np.zeros(count), traced=traced, replicas=replicas),
            outputs,
            np.zeros(count),
            even,
        )
    inputs, outputs = lengths.input.sample(rng, count), lengths.output.sample(rng, count)
    thinking = lengths.thinking.sample(rng, count) if lengths.thinking is not None else np.zeros(count)
    history = np.zeros(count)
    if lengths.turns > 1:
        numbers, turn_w = _turn_weights(lengths.turns)
        k = numbers[np.minimum(np.searchsorted(np.cumsum(turn_w), rng.random(count), side="right"), len(numbers) - 1)]
        history = np.rint((k - 1) * (lengths.input.mean + lengths.output.mean))
    inputs = inputs + history
    return Requests(
        inputs,
        _luck(hits, rng, inputs, history=history, traced=np.zeros(count), replicas=replicas),
        outputs + thinking,
        thinking,
        even,
    )


def _luck(
    hits: PrefixHits, rng: np.random.Generator, inputs: Floats, *, history: Floats, traced: Floats, replicas: int
) -> Floats:
    """Cached tokens request by request: a session's history is on this replica or it is not."""
    if hits.routing == "affinity" or replicas == 1 or not (hits.traced or history.any()):
        return _cached(hits, inputs, history, traced, replicas)
    here = rng.random(len(inputs)) * replicas < 1
    with_history = _cached(replace(hits, routing="affinity"), inputs, history, traced, 1)
    without = _cached(hits, inputs, history, traced, 1_000_000_000)
    return np.where(here, with_history, without)


def trace_lengths(summary: TraceSummary) -> JointLengths:
    """The rows that a plan embeds, as joint lengths."""
    rows = tuple((float(i), float(c), float(o), float(w)) for i, c, o, w in summary.pairs)
    return JointLengths(
        Constant(summary.input.mean),
        Constant(summary.output.mean),
        rows=rows,
        longest_row=float(summary.input.max + summary.output.max),
    )


def busiest_minute(trace: TraceSummary | None) -> float | None:
    """Requests per second in a trace's busiest minute (its mean, where it is shorter), which is what a rate means."""
    if trace is None or trace.rate_per_s is None:
        return None
    return trace.rate_per_s * trace.peak_to_mean.get("60s", 1.0)


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
    hits = _prefix_hits(prefix, traced=False)
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
        if prefix is None and any(row[1] for row in lengths.rows):
            hits = PrefixHits(traced=True)
        if traffic.thinking is not None:
            raise UserError(
                "traffic",
                f"class {traffic.name!r} has both a trace and thinking tokens",
                None,
                ("a trace's outputs already hold them",),
                ("remove thinking",),
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
    cv = traffic.arrivals.cv
    if traffic.arrivals.process == "replay" and trace is not None:
        cv = max(1.0, trace.interarrival_cv or 1.0)
    return ClassLoad(
        name=traffic.name,
        rate_per_s=rate,
        lengths=lengths,
        hits=hits,
        arrivals_cv=cv,
        slos=own,
        priority=traffic.priority,
        trough_ratio=traffic.trough,
        think_time_s=traffic.sessions.think_time if traffic.sessions is not None else 0.0,
    )


def _prefix_hits(prefix: PrefixCache | None, *, traced: bool) -> PrefixHits:
    if prefix is None:
        return PrefixHits(traced=traced)
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
