"""What keeps a configuration from running at all, said before anything is predicted of it.

Layout, context and memory. Measured rows did run, whatever our rules say, so that a file of them is held to less than
a configuration somebody asks about: rules that public runs are known to break are warnings there and not applied here.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.errors import UserError
from planner.estimate.names import context_of
from planner.estimate.resolve import Resolved, capacity_of
from planner.estimate.rows import Row
from planner.perf.rules import Refusal, check_shape

# Public runs of each exist: padded FP8 blocks, tensor parallelism across nodes, formats of releases that the catalogue
# dates later, engines on GPUs it has no word on. A single estimate tells; none is refused.
TOLD = frozenset({"fp8-block", "tp-link", "ep-link", "precision", "kv-dtype"})
# Expert-parallel pools with redundant experts (EPLB) run on numbers of ranks that do not divide the experts.
MEASURED = TOLD | {"experts"}

# Older configs state 2,048 or 4,096 and were run well beyond (ALiBi, scaled RoPE): in a measured file only a limit at
# least this long is held against a row.
MEASURED_CONTEXT_TOKENS = 32_768
# A measured row is refused only where the cache holds less than this share of one request: our memory model is off by
# up to 40% for one public run (DeepSeek-V3.2 on 8 H20), and it ran.
MEASURED_FIT_RATIO = 0.5


def _refusals(r: Resolved) -> Iterator[Refusal]:
    for d in (r.deployment, r.prefill):
        if d is not None:
            yield from check_shape(d)


def check_asked(row: Row, r: Resolved) -> tuple[str, ...]:
    """UserError where the configuration cannot run; else what would have to be true for it to run, as warnings."""
    told = []
    for refusal in _refusals(r):
        if refusal.code not in TOLD:
            helps = (f"would do: {refusal.would_do}",) if refusal.would_do else ()
            raise UserError(refusal.code, refusal.message, None, (), helps)
        told.append(refusal.message)
    _check_context(row, least=0)
    longest = row.reserved_tokens
    if not capacity_of(row, r.deployment).fits_one(int(longest)):
        raise UserError(
            "request-too-long",
            f"the cache of {r.deployment.shape.label} on {r.deployment.hardware.gpu_id} holds {r.kv_tokens:,.0f} "
            f"tokens, less than one request of {longest:,.0f}",
            None,
            (),
            ("shorten --isl or --osl, or raise --tp",),
        )
    return tuple(dict.fromkeys(told))


def check_measured(row: Row, r: Resolved) -> None:
    """The same for a row of a file, with the rules that measured rows are known to break left out."""
    for refusal in _refusals(r):
        if refusal.code not in MEASURED:
            raise UserError(refusal.code, refusal.message)
    _check_context(row, least=MEASURED_CONTEXT_TOKENS)
    if r.kv_tokens < MEASURED_FIT_RATIO * row.reserved_tokens and not capacity_of(row, r.deployment).fits_one(
        int(row.reserved_tokens)
    ):
        raise UserError(
            "request-too-long",
            f"the cache holds {r.kv_tokens:,.0f} tokens, less than one request of {row.reserved_tokens:,.0f}",
        )


def _check_context(row: Row, *, least: int) -> None:
    limit = context_of(row.model)
    if limit is not None and limit >= least and row.reserved_tokens > limit:
        raise UserError(
            "context",
            f"{row.reserved_tokens:,.0f} tokens of prompt and answer exceed the {limit:,} that {row.model} takes",
            None,
            (),
            (f"keep --isl and --osl together at {limit:,} or less",),
        )
