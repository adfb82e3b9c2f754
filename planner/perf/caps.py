"""Token budget and sequence cap from the promises, instead of copied defaults.

A decoding sequence sits through whatever prompt chunk shares its step, so the longest step a promise on p99 ITL
allows is one with a full budget in it; the largest budget that meets it gives the best TTFT. The sequence cap bounds
the tail of the running batch, not its mean: a cap at the mean makes requests queue.
"""

from __future__ import annotations

from planner.perf.table import StepTable, chunk_pairs

BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
"""Budgets asked about whatever the promises are, so that a stricter promise never finds more than a looser one."""
GRAIN = 64


def full_step_s(
    table: StepTable, *, budget_tokens: int, decode_seqs: int, mean_context_tokens: float, prompt_tokens: float
) -> float:
    """One step with the whole budget in use: decodes, and prompt chunks in what they leave.

    The chunk is the last of a prompt of `prompt_tokens` (its attention is the dearest); shorter prompts share it.
    """
    chunk = max(budget_tokens - decode_seqs, 0)
    own = min(float(chunk), max(prompt_tokens, 1.0))
    pairs = chunk_pairs(start_tokens=max(prompt_tokens - own, 0.0), chunk_tokens=own) * (chunk / own) if own else 0.0
    return table.step_s(
        decode_seqs=decode_seqs,
        context_tokens=decode_seqs * mean_context_tokens,
        prefill_tokens=chunk,
        prefill_pairs=pairs,
    )


def budget_for_itl(
    table: StepTable,
    itl_s: float,
    *,
    decode_seqs: int,
    mean_context_tokens: float,
    prompt_tokens: float,
    largest_tokens: int = 65536,
) -> int | None:
    """Largest token budget (a multiple of 64, above `decode_seqs`) whose full step takes at most `itl_s`, or None."""

    def fits(budget: int) -> bool:
        return itl_s >= table.token_s + full_step_s(
            table,
            budget_tokens=budget,
            decode_seqs=decode_seqs,
            mean_context_tokens=mean_context_tokens,
            prompt_tokens=prompt_tokens,
        )

    low, high = -(-(decode_seqs + GRAIN) // GRAIN), largest_tokens // GRAIN
    if low > high or not fits(low * GRAIN):
        return None
    while low < high:
        mid = (low + high + 1) // 2
        low, high = (mid, high) if fits(mid * GRAIN) else (low, mid - 1)
    return low * GRAIN


def seqs_for_itl(table: StepTable, itl_s: float, *, mean_context_tokens: float, largest: int = 4096) -> int:
    """Largest batch whose decode-only step takes at most `itl_s` (a cap above it lets the promise break); 0: none."""
    low, high = 0, largest
    while low < high:
        mid = (low + high + 1) // 2
        took = table.step_s(decode_seqs=mid, context_tokens=mid * mean_context_tokens) + table.token_s
        low, high = (mid, high) if took <= itl_s else (low, mid - 1)
    return low


def budgets(for_itl: int | None, *, decode_seqs: int) -> tuple[int, ...]:
    """The grid and the budget that a promise gave, each able to hold the decodes."""
    found = {b for b in BUDGETS if b > decode_seqs}
    if for_itl is not None:
        found.add(for_itl)
    return tuple(sorted(found))
