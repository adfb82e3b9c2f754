"""What a review shows besides the plan: where a step's time goes, over batch, context, precision and layout.

A frozen value made of the planner's own step model; the page interpolates nothing and recomputes nothing. `steps`
and `pool_evidence` take deployments; `build.py` finds them for a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.perf.calibration import Calibration
from planner.perf.deployment import Deployment
from planner.perf.groups import operations
from planner.perf.memory import Memory
from planner.perf.step import Array, Stack, coefficients, decode_attention_s, linear_s, prefill_attention_s
from planner.perf.table import chunk_pairs
from planner.report.charts import FrontierPoint, RooflinePoint, SweepPoint

BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
CHUNKS = (16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
CONTEXTS = (256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@dataclass(frozen=True, slots=True)
class Steps:
    """One layout at one precision: seconds of steps, split by cause. Per replica (or attention-DP rank).

    A step's matrices take about the longer of reading weights and doing arithmetic (`linear_s` has the model's own
    smooth maximum and everything fixed); reading the KV cache (or prompt attention) comes on top.
    """

    precision: str
    layout: str
    """`tp4`, `dp8 ep`."""
    gpus: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    chunks: tuple[int, ...]
    weights_s: tuple[float, ...]
    """By batch: reading the weights that the batch touches."""
    compute_s: tuple[float, ...]
    """By batch: arithmetic of the matrices."""
    fixed_s: tuple[float, ...]
    """By batch: launches, links, host."""
    linear_s: tuple[float, ...]
    """By batch: all of a step but the cache."""
    kv_s: tuple[tuple[float, ...], ...]
    """By batch, then context: reading the cache."""
    prefill_weights_s: tuple[float, ...]
    """By chunk of prompt tokens."""
    prefill_compute_s: tuple[float, ...]
    prefill_fixed_s: tuple[float, ...]
    prefill_linear_s: tuple[float, ...]
    prefill_attention_s: tuple[float, ...]
    """By chunk, for a prompt that starts with it."""
    fits: tuple[int, ...] | None
    """By context: sequences that the cache holds; none where memory was not asked."""

    @property
    def key(self) -> str:
        return f"{self.precision} {self.layout}"

    @property
    def crossover(self) -> int | None:
        """The least batch whose arithmetic takes as long as reading its weights; none within the table."""
        pairs = zip(self.batches, self.weights_s, self.compute_s, strict=True)
        return next((b for b, w, c in pairs if c >= w), None)

    @property
    def prefill_crossover(self) -> int | None:
        """The same for chunks of prompt tokens."""
        pairs = zip(self.chunks, self.prefill_weights_s, self.prefill_compute_s, strict=True)
        return next((b for b, w, c in pairs if c >= w), None)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A configuration that lost, and why."""

    service: str
    label: str
    gpus: int | None
    dollars_per_hour: float | None
    why_it_lost: str


@dataclass(frozen=True, slots=True)
class PoolEvidence:
    """Everything about one pool that its figures in the plan do not say."""

    pool: str
    gpu: str
    planned: str
    """Key of the planned steps among `steps`."""
    steps: tuple[Steps, ...]
    context_tokens: int
    """Mean context of a running sequence, the nearest of the table."""
    sweep: tuple[SweepPoint, ...]
    roofline: tuple[RooflinePoint, ...]
    peak_flop_per_s: float
    peak_format: str
    hbm_bytes_per_s: float
    frontier: tuple[FrontierPoint, ...]
    calibration: str
    warning: str | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """The whole of it."""

    pools: tuple[PoolEvidence, ...]
    alternatives: tuple[Alternative, ...] = ()


def _rows(k: Stack, count: int) -> Stack:
    return k.take(np.zeros(count, dtype=np.intp))


def _parts(k: Stack, tokens: Array, *, mixed: bool) -> tuple[Array, Array, Array]:
    """(weights, arithmetic, linear) seconds by tokens in the step: the two roofs that `linear_s` joins."""
    m = np.maximum(tokens / k.pp, 1e-9)
    head_rows = np.minimum(m, 32.0) if mixed else m
    width = np.where(k.head > 0, head_rows[:, None], m[:, None])
    touched = -np.expm1(k.log_miss * np.maximum(m[:, None], 1.0))
    weights = (k.mem_s * touched).sum(axis=1)
    compute = (k.flop_s * width + k.tile_s * touched).sum(axis=1)
    return weights, compute, linear_s(k, tokens, mixed=mixed)


def _fixed(weights: Array, compute: Array, linear: Array, smooth: float) -> Array:
    """What of `linear` is neither reading nor arithmetic: launches, links, host. Never below zero."""
    high, low = np.maximum(weights, compute), np.minimum(weights, compute)
    joined = high if np.isinf(smooth) else high * (1 + np.where(high > 0, low / high, 0.0) ** smooth) ** (1 / smooth)
    return np.asarray(np.maximum(linear - joined, 0.0))


def steps(
    d: Deployment,
    calibration: Calibration,
    *,
    memory: Memory | None = None,
    contexts: Sequence[int] = CONTEXTS,
    most_seqs: int = 1024,
) -> Steps:
    """Tables of one deployment."""
    own = coefficients(d, calibration)
    k, smooth = own.one(), own.smooth
    batches = tuple(b for b in BATCHES if b <= max(most_seqs, BATCHES[7]))
    b = np.array(batches, dtype=np.float64)
    rows = _rows(k, len(batches))
    weights, compute, linear = _parts(rows, b, mixed=False)
    kv = [decode_attention_s(rows, b, np.full(len(batches), float(c))) for c in contexts]
    chunks = np.array(CHUNKS, dtype=np.float64)
    chunk_rows = _rows(k, len(CHUNKS))
    p_weights, p_compute, p_linear = _parts(chunk_rows, chunks, mixed=True)
    pairs = np.array([chunk_pairs(start_tokens=0, chunk_tokens=c) for c in CHUNKS])
    return Steps(
        precision=d.precision,
        layout=d.shape.label,
        gpus=d.shape.gpus,
        batches=batches,
        contexts=tuple(contexts),
        chunks=CHUNKS,
        weights_s=_tuple(weights),
        compute_s=_tuple(compute),
        fixed_s=_tuple(_fixed(weights, compute, linear, smooth)),
        linear_s=_tuple(linear),
        kv_s=tuple(tuple(float(column[i]) for column in kv) for i in range(len(batches))),
        prefill_weights_s=_tuple(p_weights),
        prefill_compute_s=_tuple(p_compute),
        prefill_fixed_s=_tuple(_fixed(p_weights, p_compute, p_linear, smooth)),
        prefill_linear_s=_tuple(p_linear),
        prefill_attention_s=_tuple(prefill_attention_s(chunk_rows, pairs)),
        fits=None if memory is None else tuple(int(memory.max_sequences(c)) for c in contexts),
    )


def _tuple(values: Array) -> tuple[float, ...]:
    return tuple(float(v) for v in values)


def sweep(s: Steps, context_tokens: int, ranks: int = 1) -> tuple[SweepPoint, ...]:
    """A decode step by batch size at one context, parts adding up to the step.

    Where arithmetic is longer than reading the weights, what it adds on top is its part.
    """
    column = s.contexts.index(context_tokens)
    found = []
    for i, batch in enumerate(s.batches):
        matrices = s.linear_s[i] - s.fixed_s[i]
        weights = min(s.weights_s[i], matrices)
        total = s.linear_s[i] + s.kv_s[i][column]
        found.append(
            SweepPoint(batch, weights, matrices - weights, s.kv_s[i][column], s.fixed_s[i], ranks * batch / total)
        )
    return tuple(found)


def roofline(
    d: Deployment, s: Steps, context_tokens: int, batches: Sequence[int], chunks: Sequence[int]
) -> tuple[RooflinePoint, ...]:
    """Matrix steps under the roofs: arithmetic per byte of weights and cache read, and per second of the whole step."""
    ops = operations(d)
    flop = sum(o.flop_per_token for o in ops.matrices)
    found = []

    def read(tokens: float) -> float:
        touched = (1 - (1 - o.active / o.experts) ** (tokens * d.shape.dp) if o.experts else 1.0 for o in ops.matrices)
        return sum(o.weight_bytes * t for o, t in zip(ops.matrices, touched, strict=True))

    kv_bytes = sum(a.kv_bytes_per_token * min(context_tokens, a.cap_tokens) / a.per_tokens for a in ops.contexts)
    kv_flop = sum(a.decode_flop_per_token * min(context_tokens, a.cap_tokens) / a.per_tokens for a in ops.contexts)
    column = s.contexts.index(context_tokens)
    for batch in batches:
        i = s.batches.index(batch)
        work = batch * (flop + kv_flop)
        moved = read(batch) + batch * kv_bytes
        time = s.linear_s[i] + s.kv_s[i][column]
        found.append(RooflinePoint(f"decode, batch {batch}", work / moved, work / time))
    for chunk in chunks:
        i = s.chunks.index(chunk)
        pair_flop = sum(a.pair_flop / a.per_tokens for a in ops.contexts)
        work = chunk * flop + pair_flop * chunk_pairs(start_tokens=0, chunk_tokens=chunk)
        moved = read(chunk) + chunk * kv_bytes / max(context_tokens, 1)
        time = s.prefill_linear_s[i] + s.prefill_attention_s[i]
        found.append(RooflinePoint(f"prefill, {chunk:,} tokens", work / moved, work / time))
    return tuple(found)


def frontier(
    every: Sequence[Steps], context_tokens: int, *, ranks: dict[str, int], planned: str, running: float
) -> tuple[FrontierPoint, ...]:
    """Speed of one user against yield of one GPU, over batches and layouts, as far as the cache holds them."""
    found = []
    for s in every:
        column = s.contexts.index(context_tokens)
        most = s.fits[column] if s.fits is not None else s.batches[-1]
        copies = ranks.get(s.key, 1)
        for i, batch in enumerate(s.batches):
            if batch > most:
                break
            step = s.linear_s[i] + s.kv_s[i][column]
            found.append(FrontierPoint(f"{s.key} batch {batch}", 1 / step, copies * batch / step / s.gpus))
        if s.key == planned and running >= 1:
            step = float(
                np.interp(running, s.batches, [a + b[column] for a, b in zip(s.linear_s, s.kv_s, strict=True)])
            )
            label = f"{s.key} batch {running:.0f}"
            found.append(FrontierPoint(label, 1 / step, copies * running / step / s.gpus, "chosen"))
    return tuple(found)


def nearest(value: float, among: Sequence[int]) -> int:
    """The table's entry closest to `value` by ratio.

    >>> nearest(3100, CONTEXTS)
    4096
    """
    return min(among, key=lambda x: abs(np.log(x / max(value, 1e-9))))


def pool_evidence(
    *,
    pool: str,
    planned: Deployment,
    every: Sequence[tuple[Deployment, Memory | None]],
    calibration: Calibration,
    context_tokens: float,
    running: float,
    budget_tokens: int,
    cap_seqs: int,
    role: str = "aggregated",
) -> PoolEvidence:
    """All tables and points of one pool. `every` holds the planned deployment and its neighbours."""
    context = max(1, round(context_tokens))
    contexts = tuple(sorted({*CONTEXTS, context}))
    tables = tuple(steps(d, calibration, memory=m, contexts=contexts) for d, m in every)
    key = f"{planned.precision} {planned.shape.label}"
    mine = next(s for s in tables if s.key == key)
    at = nearest(max(running, 1.0), mine.batches)
    chunk = nearest(budget_tokens, mine.chunks)
    peak_format = max(planned.hardware.peak_flop_per_s, key=lambda p: (_rank(planned, p[0]), p[1]))[0]
    peak = planned.hardware.peak(peak_format)
    assert peak is not None
    # The planned precision against one other: more lines than that cannot be told apart.
    others = dict.fromkeys(s.precision for s in tables if s.precision != planned.precision)
    shown = {planned.precision, *list(others)[:1]}
    compared = [s for s in tables if s.precision in shown]
    ranks = {f"{d.precision} {d.shape.label}": d.shape.dp for d, _ in every}
    points = roofline(
        planned,
        mine,
        context,
        tuple(dict.fromkeys((1, at, nearest(cap_seqs, mine.batches)))) if role != "prefill" else (),
        tuple(dict.fromkeys((nearest(256, mine.chunks), chunk))) if role != "decode" else (),
    )
    return PoolEvidence(
        pool=pool,
        gpu=planned.hardware.gpu_id,
        planned=key,
        steps=tables,
        context_tokens=context,
        sweep=sweep(mine, context, planned.shape.dp),
        roofline=points,
        peak_flop_per_s=peak,
        peak_format=peak_format,
        hbm_bytes_per_s=planned.hardware.hbm_bytes_per_s,
        frontier=frontier(compared, context, ranks=ranks, planned=key, running=running) if role != "prefill" else (),
        calibration=calibration.name,
        warning=calibration.warning,
    )


def _rank(d: Deployment, number_format: str) -> int:
    """2 for the format that most of the arithmetic runs in, so that the roof is the one that applies."""
    by_format: dict[str, float] = {}
    for o in operations(d).matrices:
        by_format[o.rate] = by_format.get(o.rate, 0.0) + o.flop_per_token
    return 2 if number_format == max(by_format, key=lambda f: by_format[f]) else 0
