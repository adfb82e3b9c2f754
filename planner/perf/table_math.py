"""Step tables over arrays: the same arithmetic as `StepTable`, many batch sizes or chunks at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.perf.identity import ByIdentity
from planner.perf.lengths import Floats
from planner.perf.pool import PoolSpec
from planner.perf.table import Curve, StepTable


def _pieces(curve: Curve) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Left ends, values there, rises, runs, and the inner knots that tell the pieces apart."""
    x, y = np.asarray(curve.x, dtype=np.float64), np.asarray(curve.y, dtype=np.float64)
    return x[:-1], y[:-1], np.diff(y), np.diff(x), x[1:-1]


# Arrays of the curves in use: thousands of evaluations share a few tables.
_PIECES: ByIdentity[tuple[Floats, Floats, Floats, Floats, Floats]] = ByIdentity()


def along(curve: Curve, at: Any) -> Floats:
    """A curve at many points, extended with its first and last slopes as `Curve` does."""
    points = np.asarray(at, dtype=np.float64)
    if len(curve.x) == 1:
        return np.full(points.shape, curve.y[0])
    x, y, rise, run, inner = _PIECES.get(curve, (), lambda: _pieces(curve))
    i = inner.searchsorted(points, side="right")
    found: Floats = y[i] + (points - x[i]) * rise[i] / run[i]
    return found


def attention_s(table: StepTable, seqs: Floats, mean_context_tokens: float) -> Floats:
    """Decode attention of whole batches at one mean context, interpolated between batch knots."""
    knots = np.asarray(table.batch_knots, dtype=np.float64)
    per_step = np.array([c(mean_context_tokens) for c in table.decode_attention]) * knots
    if len(knots) == 1:
        alone: Floats = seqs * per_step[0] / knots[0]
        return alone
    i = knots[1:-1].searchsorted(seqs, side="right")
    inside = per_step[i] + (seqs - knots[i]) * (per_step[i + 1] - per_step[i]) / (knots[i + 1] - knots[i])
    return np.where(seqs <= knots[0], seqs * per_step[0] / knots[0], inside)


def decode_s(pool: PoolSpec, seqs: Floats, mean_context_tokens: float) -> Floats:
    """Decode-only steps of `seqs` sequences (verification and drafts included where the pool speculates)."""
    t = along(pool.table.linear_decode, seqs * pool.tokens_per_sequence) + attention_s(
        pool.table, seqs, mean_context_tokens
    )
    return t + (pool.drafting.draft_s if pool.drafting is not None else 0.0)


def prompt_extra_s(
    table: StepTable,
    *,
    decode_tokens: float,
    chunk_tokens: float,
    start_tokens: Floats,
    prefill_tokens: Floats,
    step_tokens: Floats | None = None,
) -> Floats:
    """Seconds that prompts add to the steps they ride in, over those steps without them.

    Per chunk: linear_mixed(decodes + chunk) - linear_decode(decodes) + prefill_attention(pairs).
    `step_tokens`: prefill tokens of a typical step (prompts shorter than a chunk share steps, so the fixed part of
    a mixed step is shared too); none: each prompt has its steps to itself.
    """
    whole = np.minimum(step_tokens if step_tokens is not None else prefill_tokens, chunk_tokens)
    base = float(table.linear_decode(decode_tokens)) if decode_tokens > 0 else 0.0
    # Never below zero, whatever a table says beyond its last knot.
    linear = np.maximum(along(table.linear_mixed, decode_tokens + whole) - base, 0.0) / whole * prefill_tokens
    return linear + prompt_attention_s(
        table, chunk_tokens=chunk_tokens, start_tokens=start_tokens, prefill_tokens=prefill_tokens
    )


def prompt_steps_s(
    table: StepTable, *, decode_tokens: float, chunk_tokens: float, prefill_tokens: Floats, together: Any = 1.0
) -> Floats:
    """What prompts add to the matrices' part of steps, chunk by chunk: full chunks, and the rest in a step of its own.

    `together`: prompts that come at once and share these steps, each its part.
    """
    tokens = prefill_tokens * together
    base = float(table.linear_decode(decode_tokens)) if decode_tokens > 0 else 0.0
    full = np.floor(tokens / chunk_tokens)
    rest = tokens - full * chunk_tokens
    whole = max(float(table.linear_mixed(decode_tokens + chunk_tokens)) - base, 0.0)
    last = np.maximum(along(table.linear_mixed, decode_tokens + rest) - base, 0.0)
    found: Floats = (full * whole + np.where(rest > 0, last, 0.0)) / together
    return found


def prompt_attention_s(
    table: StepTable, *, chunk_tokens: float, start_tokens: Floats, prefill_tokens: Floats
) -> Floats:
    """Prefill attention of whole prompts, chunk by chunk; full chunks at their mean pairs."""
    full = np.floor(prefill_tokens / chunk_tokens)
    rest = prefill_tokens - full * chunk_tokens
    # Mean start of the full chunks, then the last, partial one.
    mean_start = start_tokens + np.maximum(full - 1, 0) / 2 * chunk_tokens
    pairs = chunk_tokens * mean_start + chunk_tokens * (chunk_tokens + 1) / 2
    rest_pairs = rest * (start_tokens + full * chunk_tokens) + rest * (rest + 1) / 2
    return np.where(full > 0, full * along(table.prefill_attention, pairs), 0.0) + np.where(
        rest > 0, along(table.prefill_attention, rest_pairs), 0.0
    )
