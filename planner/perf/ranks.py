"""Attention-DP ranks in lock-step: every step of a replica lasts as long as its slowest rank's.

With R ranks a step holds somebody's prompt far more often than one rank's prompts would say, and the longest of
their chunks sets its length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.perf.lengths import Floats
from planner.perf.table import StepTable
from planner.perf.table_math import along, prompt_attention_s
from planner.perf.traffic import Requests


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Prompt chunks beside a number of decodes: what each adds to its step, ascending, and how many a prompt has."""

    extra_s: Floats
    below: Floats
    """Share of chunks up to each."""
    per_prompt: float
    full_s: float


def chunks_of(table: StepTable, g: Requests, *, beside_tokens: float, chunk_tokens: float) -> Chunks:
    """Each prompt's full chunks and its last, partial one."""
    tokens = g.prefill_tokens
    full = np.floor(tokens / chunk_tokens)
    rest = tokens - full * chunk_tokens
    per_token = (
        prompt_attention_s(table, chunk_tokens=chunk_tokens, start_tokens=g.cached_tokens, prefill_tokens=tokens)
        / tokens
    )
    base = float(table.linear_decode(beside_tokens)) if beside_tokens else 0.0
    sizes = np.concatenate([np.full(len(tokens), chunk_tokens), np.maximum(rest, 1.0)])
    weights = np.concatenate([g.weights * full, g.weights * (rest > 0)])
    # A step with prompts in it is never shorter than without, whatever a table says beyond its last knot.
    extra = np.maximum(along(table.linear_mixed, beside_tokens + sizes) - base, 0.0) + np.tile(per_token, 2) * sizes
    keep = weights > 0
    extra, weights = extra[keep], weights[keep]
    order = np.argsort(extra, kind="stable")
    total = float(weights.sum())
    whole = (
        max(float(table.linear_mixed(beside_tokens + chunk_tokens)) - base, 0.0)
        + float(per_token @ g.weights) * chunk_tokens
    )
    return Chunks(extra[order], np.cumsum(weights[order]) / total, total, max(whole, float(extra.max())))


def longest_extra_s(c: Chunks, *, prompts_per_step: float, ranks: int) -> tuple[float, float]:
    """Expected time that the longest of R ranks' chunks adds to a step, and the probability that there is any.

    One rank's step holds a chunk with probability f = 1 - exp(-m), m chunks a step (several share it); then
    E[max] = sum of x (P(X <= x)^R differences) with P(X <= x) = 1 - f + f F(x).
    """
    m = prompts_per_step * c.per_prompt
    f = 1 - float(np.exp(-m)) if c.per_prompt < 1.5 else min(m, 1.0)
    if f <= 0:
        return 0.0, 0.0
    x = np.minimum(c.extra_s * max(m / f, 1.0), c.full_s)
    up_to = (1 - f + f * c.below) ** ranks
    none = (1 - f) ** ranks
    return float(x @ np.diff(up_to, prepend=none)), 1 - none


def lockstep_step_s(c: Chunks, *, decode_s: float, rate_per_s: float, ranks: int) -> float:
    """Mean length of a step when one rank's requests come at this rate.

    Steps with prompts are long, so prompts of other ranks that come meanwhile share them: what is independent is the
    share of time, rho = rate x chunks x (t + x) for each rank, and B = 1 - (1 - rho)^R of the time some rank has a
    prompt. As a share of steps that is phi = B t / (t + x - B x), and T = t + phi x.
    """
    x = float(c.extra_s.mean())
    busy = 0.0
    for _ in range(25):
        longest, busy = longest_extra_s(c, prompts_per_step=rate_per_s * (decode_s + x), ranks=ranks)
        if busy <= 0:
            return decode_s
        x = longest / busy
    return decode_s + x * busy * decode_s / (decode_s + x - busy * x)
