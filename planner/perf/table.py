"""The step table: what `perf` hands to the load model and the simulation.

One engine step that runs `d` decode sequences (with `C` tokens of context between them) and `p` prefill tokens
(each attending to earlier ones, `pairs` query-key pairs in all) takes

    t = linear(d + p) + decode_attention(d, C) + prefill_attention(pairs)

`linear` holds everything that depends on the tokens in the step alone: matrices, collectives, launches, the host.
Each part is piecewise linear, so a run of steps between two events has a closed form and costs the simulation one
evaluation, not one per token. Exactness against the step model is a test.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Curve:
    """A piecewise linear function through (x, y), extended with its last slope."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.x) == len(self.y) >= 1
        assert all(a < b for a, b in zip(self.x, self.x[1:], strict=False))

    def __call__(self, at: float) -> float:
        x, y = self.x, self.y
        if len(x) == 1:
            return y[0]
        i = min(max(bisect_right(x, at) - 1, 0), len(x) - 2)
        return y[i] + (at - x[i]) * (y[i + 1] - y[i]) / (x[i + 1] - x[i])


@dataclass(frozen=True, slots=True)
class StepTable:
    """Seconds of one step of one replica (or one attention-DP rank of it).

    linear_decode: tokens in the step -> s, for steps without prefill (under CUDA graphs: padded sizes, so a curve
        through the captured sizes, with the cliff above the largest).
    linear_mixed: the same for steps that hold prefill tokens.
    decode_attention: mean context per sequence -> s per sequence, one curve per batch knot; between knots the
        time per step (not per sequence) is interpolated.
    prefill_attention: query-key pairs of one chunk -> s.
    request_s: host time per request that enters (tokenise, schedule, HTTP), added to its TTFT, not to the step.
    token_s: host time per streamed token outside the step (detokenise, HTTP), part of every gap a client sees.
    stream_s: host time per concurrent stream, added to TTFT.
    """

    linear_decode: Curve
    linear_mixed: Curve
    batch_knots: tuple[int, ...]
    decode_attention: tuple[Curve, ...]
    prefill_attention: Curve
    request_s: float = 0.0
    token_s: float = 0.0
    stream_s: float = 0.0
    # Interpolated decode curves by batch size, filled on use: a cache, not state (results do not depend on it).
    _cache: dict[int, Curve] = field(default_factory=dict, repr=False, compare=False, hash=False)

    def decode_curve(self, decode_seqs: int) -> Curve:
        """Mean context -> seconds of the whole batch's decode attention at exactly this batch size."""
        found = self._cache.get(decode_seqs)
        if found is not None:
            return found
        knots = self.batch_knots
        if decode_seqs <= knots[0] or len(knots) == 1:
            c = self.decode_attention[0]
            made = Curve(c.x, tuple(v * decode_seqs for v in c.y))
        else:
            i = min(max(bisect_right(knots, decode_seqs) - 1, 0), len(knots) - 2)
            low, high = self.decode_attention[i], self.decode_attention[i + 1]
            w = (decode_seqs - knots[i]) / (knots[i + 1] - knots[i])
            xs = tuple(sorted({*low.x, *high.x}))
            made = Curve(xs, tuple((1 - w) * low(x) * knots[i] + w * high(x) * knots[i + 1] for x in xs))
        self._cache[decode_seqs] = made
        return made

    def step_s(
        self, *, decode_seqs: int, context_tokens: float, prefill_tokens: int = 0, prefill_pairs: float = 0.0
    ) -> float:
        """Seconds of one step. `context_tokens` is the sum over the decoding sequences."""
        tokens = decode_seqs + prefill_tokens
        if tokens == 0:
            return 0.0
        t = (self.linear_mixed if prefill_tokens else self.linear_decode)(tokens)
        if decode_seqs:
            t += self.decode_curve(decode_seqs)(context_tokens / decode_seqs)
        if prefill_tokens:
            t += self.prefill_attention(prefill_pairs)
        return t

    def decode_run_s(self, *, decode_seqs: int, context_tokens: float, steps: int) -> float:
        """Seconds of `steps` decode-only steps in a row; every sequence grows by one token per step."""
        curve = self.decode_curve(decode_seqs)
        total = steps * self.linear_decode(decode_seqs)
        mean, left, xs = context_tokens / decode_seqs, steps, curve.x
        while left > 0:
            i = bisect_right(xs, mean)
            here = left if i >= len(xs) else max(1, min(left, -int(-(xs[i] - mean) // 1)))
            # Within one linear piece the sum of an arithmetic series is count x the value at its middle.
            total += here * curve(mean + (here - 1) / 2)
            mean += here
            left -= here
        return total


def chunk_pairs(*, start_tokens: float, chunk_tokens: float) -> float:
    """Query-key pairs of one prefill chunk: each of its tokens sees all before it and itself.

    pairs = chunk * start + chunk * (chunk + 1) / 2

    >>> chunk_pairs(start_tokens=0, chunk_tokens=4)
    10.0
    """
    return chunk_tokens * start_tokens + chunk_tokens * (chunk_tokens + 1) / 2
