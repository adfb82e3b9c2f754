"""Batch caps from promises: sequences from ITL and the cache, token budgets from ITL beside a fixed grid.

The cap bounds the tail of the running batch: the largest batch whose decode step still meets the tightest promise on
gaps, within what the cache holds at mean lengths, rounded down to a size that the engine captures as a CUDA graph
(between sizes a batch costs as much as the next larger one, above the largest it falls off the graph).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.perf.caps import budget_for_itl, seqs_for_itl
from planner.perf.deployment import Hardware
from planner.perf.table import StepTable
from planner.perf.traffic import ClassLoad

LEAST_SEQS = 8
"""A replica that cannot even hold this many in step is looked at with this cap, so that its best figures are known."""


@dataclass(frozen=True, slots=True)
class Mix:
    """What caps need to know of a class group."""

    mean_context_tokens: float
    """Of a sequence caught decoding."""
    mean_prompt_tokens: float
    """Tokens to prefill."""
    gap_limit_s: float | None
    """Tightest promise on a gap, margins taken off; none where nothing limits gaps."""


def mix_of(classes: Sequence[ClassLoad], margins: dict[str, float]) -> Mix:
    """The group's mean lengths, by rate, and its tightest limit on a gap."""
    total = sum(c.rate_per_s for c in classes)
    context = prompt = 0.0
    limits = []
    for c in classes:
        grid = c.grid()
        share = c.rate_per_s / total
        context += share * (grid.mean(grid.input_tokens) + grid.mean(grid.output_tokens) / 2)
        prompt += share * grid.mean(grid.prefill_tokens)
        for slo in c.slos:
            limit = slo.limit_s / (1 + margins.get(slo.metric, 0.0))
            if slo.metric in ("itl", "tpot"):
                limits.append(limit)
            elif slo.metric == "e2e":
                # The whole answer within the limit: its gaps can average no more than this.
                limits.append(limit / max(1.0, grid.mean(grid.output_tokens)))
    return Mix(context, prompt, min(limits) if limits else None)


def largest_graph(hardware: Hardware) -> int:
    """Largest decode batch that engines capture: 512, on Blackwell and later 1,024 (vllm 0.33.0 defaults)."""
    return 1024 if hardware.capability is not None and hardware.capability >= (10, 0) else 512


def graph_size(seqs: int, largest: int) -> int:
    """The largest captured size at or below `seqs`: 1, 2, 4, then steps of 8, above 256 steps of 16.

    >>> graph_size(123, 512), graph_size(300, 512), graph_size(3, 512), graph_size(9999, 512)
    (120, 288, 2, 512)
    """
    seqs = min(seqs, largest)
    if seqs >= 256:
        return seqs - seqs % 16
    if seqs >= 8:
        return seqs - seqs % 8
    return max(1, 4 if seqs >= 4 else 2 if seqs >= 2 else 1)


def seqs_cap(table: StepTable, mix: Mix, *, kv_sequences: float, largest: int) -> int:
    """The largest `max_num_seqs` of one replica (or attention-DP rank) whose full batch meets the promise on gaps."""
    most = min(float(largest), kv_sequences)
    if mix.gap_limit_s is not None:
        allowed = seqs_for_itl(table, mix.gap_limit_s, mean_context_tokens=mix.mean_context_tokens, largest=largest)
        most = min(most, float(max(allowed, LEAST_SEQS)))
    return graph_size(max(1, int(most)), largest)


SEQS = (8, 32, 128, 512)
"""Caps asked about whatever the promises are, beside every budget that holds them."""
BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
RATIO = 1.08
"""Between neighbouring limits that caps are sized for."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """(max_num_seqs, max_num_batched_tokens) to ask about."""

    sized: tuple[tuple[int, int], ...]
    """Those that the promise on gaps gives: likely the best."""
    others: tuple[tuple[int, int], ...]


def cap_pairs(
    table: StepTable,
    mix: Mix,
    *,
    kv_sequences: float,
    largest: int,
    tokens_per_sequence: int = 1,
    fixed_seqs: int | None = None,
    fixed_tokens: int | None = None,
    coarse: bool = False,
) -> Pairs:
    """Caps of one replica (or attention-DP rank): a fixed grid, and what each limit up to the promised one gives.

    `coarse`: every fourth limit and every second budget of the grid, for questions of many services; both nest.

    Limits come from one series, 1 ms x RATIO^i, so what a stricter promise asks about a looser one asks about too:
    a looser promise never finds less. The grid is cut at the largest batch whose decode step meets the promise.
    """
    cap = graph_size(max(1, int(min(float(largest), kv_sequences))), largest)
    limit = math.inf if mix.gap_limit_s is None else mix.gap_limit_s
    found: dict[tuple[int, int], None] = {}
    first: tuple[tuple[int, int], ...] = ()
    sizes = {fixed_seqs} if fixed_seqs else {s for s in SEQS[:1] if s <= cap} | {min(cap, LEAST_SEQS)}
    last: tuple[int, tuple[int, ...]] | None = None
    budgets = BUDGETS[1::2] if coarse else BUDGETS
    for limit_s in _limits(limit, every=4 if coarse else 1):
        allowed = seqs_for_itl(table, limit_s, mean_context_tokens=mix.mean_context_tokens, largest=largest)
        seqs = fixed_seqs or min(cap, graph_size(max(allowed, LEAST_SEQS), largest))
        if not fixed_seqs:
            sizes |= {s for s in SEQS if s <= seqs} | ({cap} if seqs == cap else set())
        own = _budgets_at(table, mix, limit_s, decodes=seqs * tokens_per_sequence)
        if (seqs, own) == last and seqs == (fixed_seqs or cap) and own and min(own) == BUDGETS[-1]:
            break
        last = (seqs, own)
        first = tuple((seqs, b) for b in own) or ((seqs, BUDGETS[2]),)
        found.update(dict.fromkeys(first))
    for s in sorted(sizes):
        found.update(dict.fromkeys((s, b) for b in budgets))
    if fixed_tokens is not None:
        found, first = dict.fromkeys((s, fixed_tokens) for s, _ in found), ()
    held = [p for p in found if p[1] >= p[0] * tokens_per_sequence]
    return Pairs(tuple(p for p in held if p in first), tuple(p for p in held if p not in first))


def _limits(most_s: float, *, every: int = 1) -> Iterator[float]:
    """1 ms x RATIO^i up to a limit; up to a minute where there is none. `every`: only each so manyth."""
    limit_s = 1e-3
    while limit_s <= min(most_s, 60.0):
        yield limit_s
        limit_s *= RATIO**every


def _budgets_at(table: StepTable, mix: Mix, limit_s: float, *, decodes: int) -> tuple[int, ...]:
    """Budgets whose full step meets the limit beside half a batch and a full one."""
    found = (
        budget_for_itl(
            table,
            limit_s,
            decode_seqs=max(1, beside),
            mean_context_tokens=mix.mean_context_tokens,
            prompt_tokens=mix.mean_prompt_tokens,
            largest_tokens=BUDGETS[-1],
        )
        for beside in (decodes // 2, decodes)
    )
    return tuple(dict.fromkeys(b for b in found if b is not None and b > decodes))
