"""Batch caps from promises: sequences from ITL and the cache, token budgets from ITL beside a fixed grid.

The cap bounds the tail of the running batch: the largest batch whose decode step still meets the tightest promise on
gaps, within what the cache holds at mean lengths, rounded down to a size that the engine captures as a CUDA graph
(between sizes a batch costs as much as the next larger one, above the largest it falls off the graph).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.perf.caps import budget_for_itl, budgets, seqs_for_itl
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
    """`max_num_seqs` of one replica (or attention-DP rank)."""
    most = min(float(largest), kv_sequences)
    if mix.gap_limit_s is not None:
        allowed = seqs_for_itl(table, mix.gap_limit_s, mean_context_tokens=mix.mean_context_tokens, largest=largest)
        most = min(most, float(max(allowed, LEAST_SEQS)))
    return graph_size(max(1, int(most)), largest)


def token_budgets(
    table: StepTable, mix: Mix, *, seqs: int, tokens_per_sequence: int = 1
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Budgets to ask about: those that the promise on gaps gives, beside a full batch and half of one; and the grid."""
    decodes = seqs * tokens_per_sequence
    own: list[int] = []
    if mix.gap_limit_s is not None:
        for beside in (decodes // 2, decodes):
            found = budget_for_itl(
                table,
                mix.gap_limit_s,
                decode_seqs=max(1, beside),
                mean_context_tokens=mix.mean_context_tokens,
                prompt_tokens=mix.mean_prompt_tokens,
                largest_tokens=16384,
            )
            if found is not None and found > decodes:
                own.append(found)
    grid = budgets(None, decode_seqs=decodes)
    return tuple(dict.fromkeys(own)), tuple(b for b in grid if b not in own)
