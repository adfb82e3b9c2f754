"""`plan explain`: where a step's milliseconds and a GPU's gigabytes go, and what growing the batch buys.

The arithmetic is the step model's own (`perf.breakdown`, `perf.step`); here it is only laid out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.candidates.ask import Ask
from planner.candidates.replica import calibration_of
from planner.errors import UserError, did_you_mean
from planner.perf.breakdown import StepBreakdown, step_groups
from planner.perf.calibration import Calibration
from planner.perf.deployment import Deployment
from planner.perf.table import chunk_pairs
from planner.plan.document import Plan, PoolDoc, ServiceDoc
from planner.plan.models import model_named
from planner.report.build import mean_context_tokens, pool_deployment
from planner.report.console import paragraph, shape_text, table
from planner.units import show_bytes, show_count, show_time

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CHUNKS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One step of the sweep: a decode batch, or a chunk of one prompt."""

    size: int
    seconds: float
    tokens_per_s: float
    weights_s: float
    """Reading weights."""
    cache_s: float
    """Reading the cache (decode) or attending within the chunk (prefill)."""
    compute_s: float
    """Arithmetic of the matrices."""
    binds: str
    mfu: float


@dataclass(frozen=True, slots=True)
class PoolExplanation:
    """One pool, explained."""

    pool: str
    shape: str
    calibration: str
    warning: str | None
    decode: StepBreakdown | None
    """A step of the mean running batch."""
    mixed: StepBreakdown | None
    """A step full of prompt, beside that batch."""
    running: int
    context_tokens: int
    chunk_tokens: int
    memory: tuple[tuple[str, float], ...]
    batch_sweep: tuple[SweepRow, ...]
    crossover: int | None
    """Batch at which the matrices' arithmetic takes as long as reading them."""
    prefill_sweep: tuple[SweepRow, ...]
    cap: int
    cache_holds: float
    reasons: tuple[tuple[str, str], ...]


def explain(plan: Plan, *, pool: str | None = None) -> tuple[PoolExplanation, ...]:
    """Every pool of a plan, or the one asked for."""
    names = [p.name for s in plan.services for p in s.pools]
    if pool is not None and pool not in names:
        raise UserError("unknown-pool", f"no pool {pool!r} in this plan", None, (), did_you_mean(pool, names))
    return tuple(
        _explain(plan, service, p) for service in plan.services for p in service.pools if pool in (None, p.name)
    )


def _explain(plan: Plan, service: ServiceDoc, pool: PoolDoc) -> PoolExplanation:
    asked = next(s for s in plan.intent.services if s.name == service.name)
    ask = Ask(asked, plan.fleet, model=model_named(plan, asked.model), engine_version=service.engine_version)
    d = pool_deployment(ask, service, pool)
    calib = calibration_of(d)
    running = max(1, round(pool.running_mean))
    context = round(mean_context_tokens(pool))
    chunk = max(1, pool.max_num_batched_tokens - (running if pool.role == "aggregated" else 0))
    start = (
        context / 2
        if pool.role == "prefill"
        else sum(c.input_mean_tokens for c in pool.classes) / len(pool.classes) / 2
    )
    pairs = chunk_pairs(start_tokens=max(0.0, start - chunk / 2), chunk_tokens=chunk)
    decode = mixed = None
    if pool.role != "prefill":
        decode = step_groups(d, calib, decode_seqs=running, context_tokens=running * context)
    if pool.role != "decode":
        seqs = running if pool.role == "aggregated" else 0
        mixed = step_groups(
            d, calib, decode_seqs=seqs, context_tokens=seqs * context, prefill_tokens=chunk, prefill_pairs=pairs
        )
    sweep = batch_sweep(d, calib, context_tokens=context)
    m = pool.memory
    return PoolExplanation(
        pool=pool.name,
        shape=f"{shape_text(pool)}, {service.model.precision}",
        calibration=f"{calib.name}, fitted {calib.fit_date} on {calib.rows} rows" if calib.rows else calib.name,
        warning=calib.warning,
        decode=decode,
        mixed=mixed,
        running=running,
        context_tokens=context,
        chunk_tokens=chunk,
        memory=(
            ("weights", m.weights),
            ("KV cache", m.kv_cache),
            ("activations", m.activations),
            ("CUDA graphs", m.cuda_graphs),
            ("context and communication", m.overhead),
            ("usable", m.usable),
            ("total as torch sees it", m.total),
        ),
        batch_sweep=sweep,
        crossover=next((r.size for r in sweep if r.compute_s >= r.weights_s), None),
        prefill_sweep=prefill_sweep(d, calib),
        cap=pool.max_num_seqs,
        cache_holds=pool.kv_sequences,
        reasons=tuple(pool.reasons.items()),
    )


def _row(b: StepBreakdown, size: int, tokens: float, context_name: str) -> SweepRow:
    matrices = [g for g in b.groups if g.memory_s or g.compute_s]
    context = sum(g.seconds for g in b.groups if g.name.startswith(("attention over", "sparse", "recurrent")))
    weights, work = sum(g.memory_s for g in matrices), sum(g.compute_s for g in matrices)
    other = b.seconds - sum(g.seconds for g in matrices) - context
    parts = (("weights", weights), (context_name, context), ("arithmetic", work), ("overheads", other))
    return SweepRow(
        size, b.seconds, tokens / b.seconds, weights, context, work, max(parts, key=lambda t: t[1])[0], b.mfu
    )


def batch_sweep(d: Deployment, calib: Calibration, *, context_tokens: float) -> tuple[SweepRow, ...]:
    """Decode steps of growing batches at one context: tokens/s grow until arithmetic or the cache catches up."""
    return tuple(
        _row(step_groups(d, calib, decode_seqs=b, context_tokens=b * context_tokens), b, b * d.shape.dp, "cache")
        for b in BATCHES
    )


def prefill_sweep(d: Deployment, calib: Calibration) -> tuple[SweepRow, ...]:
    """The same matrices in prefill: one prompt brings the batch along."""
    found = []
    for chunk in CHUNKS:
        pairs = chunk_pairs(start_tokens=0, chunk_tokens=chunk)
        b = step_groups(d, calib, decode_seqs=0, context_tokens=0, prefill_tokens=chunk, prefill_pairs=pairs)
        found.append(_row(b, chunk, chunk * d.shape.dp, "attention"))
    return tuple(found)


def explain_json(found: Sequence[PoolExplanation]) -> list[dict[str, Any]]:
    """Plain data, times in seconds and sizes in bytes."""
    return [asdict(x) for x in found]


def explain_text(found: Sequence[PoolExplanation], *, width: int = 100) -> str:
    """For a terminal of `width` columns."""
    width = max(60, min(width, 140))
    return "\n\n".join(_text(x, width) for x in found)


def _text(x: PoolExplanation, width: int) -> str:
    blocks = [
        f"POOL  {x.pool}: {x.shape}",
        "\n".join(paragraph("MODEL", [x.calibration, *([x.warning] if x.warning else [])], width)),
    ]
    if x.decode is not None:
        head = f"A decode step: {x.running} sequences of {x.context_tokens:,} tokens, {show_time(x.decode.seconds)}"
        blocks.append(f"{head} (MBU {x.decode.mbu:.0%}, MFU {x.decode.mfu:.0%})\n" + groups_text(x.decode, width))
    if x.mixed is not None:
        beside = f" beside {x.running} sequences" if x.decode is not None else ""
        head = f"A step full of prompt: {x.chunk_tokens:,} tokens{beside}, {show_time(x.mixed.seconds)}"
        blocks.append(f"{head} (MBU {x.mixed.mbu:.0%}, MFU {x.mixed.mfu:.0%})\n" + groups_text(x.mixed, width))
    total = dict(x.memory)["total as torch sees it"]
    rows = [
        (name, show_bytes(v) if v else "-", f"{v / total:.0%}", "#" * round(30 * v / total)) for name, v in x.memory
    ]
    blocks.append("One GPU's memory\n" + table(("", "", "", ""), rows, width=width, right=(1, 2)))
    crossing = (
        f"arithmetic catches up with reading weights at a batch of {x.crossover}"
        if x.crossover
        else "arithmetic does not catch up with reading weights in this sweep"
    )
    blocks.append(
        f"Grow the batch ({x.context_tokens:,} tokens each): {crossing};\n"
        f"the cap is {x.cap}, the cache holds {x.cache_holds:,.0f}; every sequence brings its own cache to read\n"
        + _sweep(x.batch_sweep, "batch", "cache", width, most=x.cache_holds)
    )
    blocks.append(
        "Then switch to prefill: one prompt is a batch of its own tokens\n"
        + _sweep(x.prefill_sweep, "tokens", "attention", width)
    )
    blocks.append("\n".join(paragraph("WHY", [f"{k}: {v}" for k, v in x.reasons], width)))
    return "\n\n".join(blocks)


def groups_text(b: StepBreakdown, width: int) -> str:
    """The groups of one step, longest first."""
    rows = []
    for g in sorted(b.groups, key=lambda g: -g.seconds):
        if g.seconds < 0.0005 * b.seconds:
            continue
        rows.append(
            (
                g.name,
                show_time(g.seconds),
                f"{g.seconds / b.seconds:.0%}",
                show_bytes(g.read_bytes) if g.read_bytes else "-",
                f"{g.flop / 1e9:,.3g}" if g.flop else "-",
                g.roof,
                f"{g.efficiency:.0%}" if g.efficiency else "-",
                g.source,
            )
        )
    return table(
        ("group", "time", "share", "read", "GFLOP", "roof", "of peak", "source"),
        rows,
        width=width,
        right=(1, 2, 3, 4, 6),
    )


def _sweep(rows: Sequence[SweepRow], size: str, cache: str, width: int, *, most: float = float("inf")) -> str:
    shown = [
        (
            f"{r.size:,}" + ("*" if r.size > most else ""),
            show_time(r.seconds),
            show_count(r.tokens_per_s),
            show_time(r.weights_s),
            show_time(r.cache_s),
            show_time(r.compute_s),
            r.binds,
            f"{r.mfu:.0%}",
        )
        for r in rows
    ]
    headers = (size, "step", "tokens/s", "weights", cache, "arithmetic", "most of it", "MFU")
    text = table(headers, shown, width=width, right=(0, 1, 2, 3, 4, 5, 7))
    return text + ("\n* more than the cache holds" if rows[-1].size > most else "")
