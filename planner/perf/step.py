"""Seconds of one engine step: counts (`groups.py`) over what a GPU reaches (`calibration.py`, kernel tables).

    t = linear(tokens) + decode_attention(seqs, context) + prefill_attention(pairs)

    linear   = sum over matrix groups of smooth_max(bytes / (HBM x eff), FLOP / (peak x eff))
             + collectives(tokens) + element-wise traffic + fixed time of every layer's kernels + the host
    decode   = state per sequence + context x smooth_max(KV bytes / (HBM x eff), FLOP / (peak x eff)), capped by windows
    prefill  = pairs x FLOP / (peak x eff)

Each of the three depends on one thing only, which is what lets a table (`steptable.py`) stand for the model. Matrix
products read weights once whatever the batch; experts are read as far as the batch touches them,
E (1 - (1 - k/E)^B) of them. Works on arrays: one row per step, coefficients stacked over deployments.
Ignores overlap of collectives with compute and L2 reuse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.catalog.kernels import GpuKernels, kernels_for
from planner.perf.calibration import Calibration, Constants
from planner.perf.collectives import Cost, allreduce, alltoall, hop
from planner.perf.deployment import Deployment, Hardware
from planner.perf.groups import MatrixOps, Operations, operations
from planner.perf.identity import ByIdentity

Array = NDArray[np.float64]

# Decode rows that the LM head sees in a step full of prefill: prompts that end in it and running sequences; the
# head stays on its bandwidth roof below a few hundred rows, so the exact number does not matter.
_MIXED_HEAD_ROWS = 32.0
# Attention decode kernels reach about this share of the arithmetic peak when the batch is large (MLA; kernel tables
# give none, chosen as the prefill kernels' large-length figure).
_CONTEXT_CHUNK = 1.0


@dataclass(frozen=True, slots=True)
class Coefficients:
    """One deployment under one calibration, as numbers. Arrays are over matrix groups or context groups."""

    mem_s: Array
    flop_s: Array
    """Seconds per token."""
    tile_s: Array
    """Seconds per touched share of the experts."""
    log_miss: Array
    """log of the chance that one token misses an expert; -inf for dense matrices (always touched)."""
    head: Array
    """1 for the LM head."""
    fixed_s: float
    host_step_s: float
    token_s: float
    """Element-wise traffic, recurrence, all-to-all and all-reduce bytes, per token."""
    sqrt_s: float
    """Collectives: seconds per sqrt(token)."""
    sampled_s: float
    """Per sampled token: logits' gathering, host."""
    waste_s: float
    """Per prefill token: attention tiles that the causal mask leaves half empty."""
    context_s: Array
    """Seconds per cached token and sequence."""
    pair_s: Array
    cap: Array
    state_s: float
    """Per decoding sequence and step."""
    eager_s: float
    """Host floor of a step without CUDA graphs."""
    first_s: float
    """Latency of a prompt's first pass that only its own TTFT sees."""
    smooth: float
    pp: float

    def one(self) -> Stack:
        """A stack of one row."""
        return stack([self])


@dataclass(frozen=True, slots=True)
class Stack:
    """Coefficients of many rows, padded to one width: [rows, groups]."""

    mem_s: Array
    flop_s: Array
    tile_s: Array
    log_miss: Array
    head: Array
    fixed_s: Array
    host_step_s: Array
    token_s: Array
    sqrt_s: Array
    sampled_s: Array
    waste_s: Array
    context_s: Array
    pair_s: Array
    cap: Array
    state_s: Array
    eager_s: Array
    first_s: Array
    smooth: Array
    pp: Array

    def take(self, index: NDArray[np.intp]) -> Stack:
        """Rows by index (repeats allowed)."""
        return Stack(*(getattr(self, f)[index] for f in self.__dataclass_fields__))


_WIDE = ("mem_s", "flop_s", "tile_s", "log_miss", "head", "context_s", "pair_s", "cap")
_FILL = {"log_miss": -math.inf, "cap": math.inf}


def stack(rows: list[Coefficients]) -> Stack:
    """Pad and stack."""
    made: dict[str, Any] = {}
    for name in Stack.__dataclass_fields__:
        if name in _WIDE:
            width = max(len(getattr(r, name)) for r in rows)
            table = np.full((len(rows), max(width, 1)), _FILL.get(name, 0.0))
            for i, r in enumerate(rows):
                v = getattr(r, name)
                table[i, : len(v)] = v
            made[name] = table
        else:
            made[name] = np.array([getattr(r, name) for r in rows])
    return Stack(**made)


def smooth_max(a: Array, b: Array, p: float | Array) -> Array:
    """(a^p + b^p)^(1/p): within 30% of the larger where they are equal, the larger where they are far apart."""
    high = np.maximum(a, b)
    if np.isinf(p).all():
        return high
    low = np.minimum(a, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(high > 0, low / high, 0.0)
        smooth = high * (1.0 + ratio**p) ** (1.0 / p)
    return np.asarray(np.where(np.isinf(p), high, smooth))


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes/s and FLOP/s that one matrix group reaches, and who says so."""

    bytes_per_s: float
    flop_per_s: float
    fixed_s: float
    source: str


def _row(table: GpuKernels, row: str) -> tuple[float, float, float]:
    """(hbm ratio, flop ratio, fixed seconds) of a kernel row, falling back to the nearest format."""
    order = {
        "bf16": ("bf16",),
        "fp8": ("fp8", "fp8_block"),
        "fp8_block": ("fp8_block", "fp8"),
        "fp4": ("fp4", "fp8"),
        "int8": ("int8", "fp8"),
        "int4": ("bf16",),
        "weight_only8": ("bf16",),
    }[row]
    bf16 = table.gemm["bf16"]
    for name in (*order, "bf16"):
        g = table.gemm.get(name)
        if g is not None:
            return g.hbm_ratio or bf16.hbm_ratio or 0.8, g.flop_ratio, g.fixed_s or bf16.fixed_s or 4e-6
    raise AssertionError("every kernel table has bf16")


def rates(op: MatrixOps, hardware: Hardware, c: Constants) -> Rates:
    """What a matrix group reaches on this GPU."""
    rate_name = op.rate
    peak = hardware.peak(rate_name) or hardware.peak("bf16")
    assert peak is not None
    if not c.kernel_tables:
        return Rates(hardware.hbm_bytes_per_s * c.hbm_ratio, peak * c.flop_ratio, 0.0, "spec sheet")
    kernels = kernels_for(hardware.gpu_id, hardware.arch)
    _, flop, fixed = _row(kernels.table, op.row)
    # Streaming large weights is alike in every format: engines overlap what the tables time kernel by kernel. What the
    # formats differ in (quantising activations, scales) is in the fixed time.
    hbm = _row(kernels.table, "bf16")[0] * c.hbm_ratio
    flop *= c.flop_ratio
    if op.experts:
        hbm *= c.moe_hbm_ratio
        flop *= c.moe_flop_ratio
        if op.row in ("fp8", "fp8_block"):
            hbm *= c.moe_fp8_ratio
            flop *= c.moe_fp8_ratio
        if c.moe_narrow and math.isfinite(op.expert_width):
            narrow = op.expert_width / (op.expert_width + c.moe_narrow)
            hbm *= narrow
            flop *= narrow
    if op.row in ("int4", "weight_only8"):
        hbm *= c.int4_ratio
        flop *= c.int4_ratio
    who = f"kernel table of {kernels.gpu_id}" + ("" if kernels.measured else " (nearest measured)")
    return Rates(
        hardware.hbm_bytes_per_s * min(hbm, 1.0), peak * min(flop, 1.0), fixed * c.launch_ratio, f"{who} x fit"
    )


def coefficients(d: Deployment, calib: Calibration) -> Coefficients:
    """Counts and rates -> seconds per unit. Cached: a deployment and a calibration are values."""
    c = calib.constants
    return _CACHE.get(d.arch, (d.weights, d.kv_dtype, d.shape, d.hardware, c), lambda: resolve(operations(d), d, c))


_CACHE: ByIdentity[Coefficients] = ByIdentity(8192)


def resolve(ops: Operations, d: Deployment, c: Constants) -> Coefficients:
    """Counts and rates -> seconds per unit of one deployment."""
    hw, tp, dp = d.hardware, d.shape.tp, d.shape.dp
    n = len(ops.matrices)
    mem, flop, tile, miss, head = np.zeros(n), np.zeros(n), np.zeros(n), np.full(n, -math.inf), np.zeros(n)
    fixed = 0.0
    for i, op in enumerate(ops.matrices):
        r = rates(op, hw, c)
        mem[i] = op.weight_bytes / r.bytes_per_s
        flop[i] = (
            op.flop_per_token
            / r.flop_per_s
            * (c.ep_imbalance_ratio if op.experts and d.shape.ep and tp * dp > 1 else 1.0)
        )
        # Grouped products are fused with routing and activation: their fixed time is the layer's (`moe_layer_s`).
        fixed += op.calls * r.fixed_s if not op.experts else 0.0
        head[i] = float(op.head)
        if op.experts:
            miss[i] = math.log1p(-min(op.active / op.experts, 1.0 - 1e-12)) * c.moe_skew * dp
            tile[i] = op.expert_flop * c.moe_tile_tokens / r.flop_per_s
    fixed += c.launch_ratio * (
        ops.attention_layers * c.attention_layer_s
        + ops.mla_layers * c.mla_layer_s
        + ops.sparse_layers * c.sparse_layer_s
        + ops.recurrent_layers * c.recurrent_layer_s
        + ops.moe_layers * c.moe_layer_s
    )
    if c.kernel_tables:
        table = kernels_for(hw.gpu_id, hw.arch).table
        kv_ratio = min(table.attention.decode_hbm_ratio * c.kv_ratio, 1.0)
        attention_ratio = min(table.attention.prefill_flop_ratio * c.prefill_attention_ratio, 1.0)
        waste_tokens = table.attention.prefill_waste_tokens
        stream = _row(table, "bf16")[0] * c.hbm_ratio
    else:
        kv_ratio, attention_ratio, waste_tokens, stream = c.kv_ratio, c.prefill_attention_ratio, 0.0, c.hbm_ratio
    bf16 = hw.peak("bf16")
    assert bf16 is not None
    bandwidth = hw.hbm_bytes_per_s
    k = len(ops.contexts)
    context, pair, cap = np.zeros(k), np.zeros(k), np.full(k, math.inf)
    waste = 0.0
    for j, a in enumerate(ops.contexts):
        indexing = a.group == "indexer"
        # Index scores are FP8 products on GPUs that have them.
        peak = (hw.peak("fp8") or bf16) if indexing else bf16
        memory_s = a.kv_bytes_per_token / (bandwidth * kv_ratio)
        compute_s = a.decode_flop_per_token / (peak * attention_ratio)
        context[j] = float(smooth_max(np.array(memory_s), np.array(compute_s), c.smooth)) / a.per_tokens
        pair[j] = a.pair_flop / (peak * attention_ratio) / a.per_tokens
        cap[j] = a.cap_tokens
        if not indexing and math.isinf(a.cap_tokens):
            # 1 / MFU = (1 + waste / length) / large, and pairs = length^2 / 2: the second term is per token.
            waste += pair[j] * waste_tokens / 2.0
    reduce, exchange = allreduce(hw, tp), alltoall(hw, tp * dp)
    hops: Cost = hop(hw, tp=tp) if d.shape.pp > 1 else Cost()
    pp = d.shape.pp
    size_r, size_x = ops.hidden_bytes, ops.alltoall_hidden_bytes
    # The fitted ratio is about latency (stragglers, fusing with the norm); bandwidth is what the tables measured.
    ar, ax = ops.allreduce_calls * c.allreduce_ratio, ops.alltoall_calls * c.alltoall_ratio
    ar_bytes = ops.allreduce_calls * min(c.allreduce_ratio, 1.0)
    overheads = 0.0 if not c.kernel_tables else 1.0
    comm_fixed = ar * reduce.alpha_s + ax * exchange.alpha_s + overheads * (pp - 1) * hops.alpha_s
    comm_sqrt = ar * reduce.gamma * math.sqrt(size_r) + ax * exchange.gamma * math.sqrt(size_x)
    comm_token = (
        ar_bytes * reduce.s_per_byte * size_r
        + ax * exchange.s_per_byte * size_x
        + overheads * (pp - 1) * hops.s_per_byte * ops.hidden_bytes
    )
    elementwise = c.traffic_ratio * ops.traffic_bytes_per_token / (bandwidth * min(stream, 1.0))
    recurrence = ops.recurrence_flop_per_token / (bf16 * min(0.3 if c.kernel_tables else 1.0, 1.0))
    gather = ops.logit_bytes_per_token * reduce.s_per_byte * c.allreduce_ratio / 2.0
    pace = c.pace_ratio
    return Coefficients(
        mem_s=mem * pace,
        flop_s=flop * pace,
        tile_s=tile * pace,
        log_miss=miss,
        head=head,
        fixed_s=(fixed + comm_fixed) * pace,
        host_step_s=c.host_step_s * pace,
        token_s=(comm_token + elementwise + recurrence) * pace,
        sqrt_s=comm_sqrt * pace,
        sampled_s=(gather + c.host_seq_s) * pace,
        waste_s=waste * pace,
        context_s=context * pace,
        pair_s=pair * pace,
        cap=cap,
        state_s=ops.state_bytes_per_seq / (bandwidth * min(stream, 1.0)) * pace,
        eager_s=ops.kernels * c.eager_kernel_s * pace,
        first_s=ops.kernels * c.first_kernel_s,
        smooth=c.smooth,
        pp=float(pp),
    )


def linear_s(k: Stack, tokens: Array, *, mixed: bool) -> Array:
    """Everything that depends on the tokens of the step alone. [rows] -> [rows].

    With pipeline stages, each stage works on its own share of the tokens at any time: a round takes all layers at
    tokens / pp, and every sequence gets one token per round.
    """
    m = np.maximum(tokens / k.pp, 1e-9)
    rows = m[:, None]
    sampled = np.minimum(m, _MIXED_HEAD_ROWS) if mixed else m
    width = np.where(k.head > 0, sampled[:, None], rows)
    # A batch smaller than one token cannot be; touched experts follow the real number of tokens.
    touched = -np.expm1(k.log_miss * np.maximum(rows, 1.0))
    t = smooth_max(k.mem_s * touched, k.flop_s * width + k.tile_s * touched, k.smooth[:, None]).sum(axis=1)
    t = t + k.fixed_s + k.host_step_s + k.token_s * m + k.sqrt_s * np.sqrt(m) + k.sampled_s * sampled
    if mixed:
        t = smooth_max(np.asarray(t + k.waste_s * m), k.eager_s, k.smooth)
    return np.asarray(t)


def decode_attention_s(k: Stack, seqs: Array, mean_context: Array) -> Array:
    """Reading every sequence's own cache and state; windows and top-k cap what one sequence reads."""
    seen = np.minimum(mean_context[:, None], k.cap)
    return np.asarray(seqs / k.pp * ((k.context_s * seen).sum(axis=1) + k.state_s))


def prefill_attention_s(k: Stack, pairs: Array) -> Array:
    """Arithmetic of the query-key pairs of the step's prefill.

    A window w caps what each query sees. Of the pairs alone, the chunk is known as one that starts its prompt:
    length L = sqrt(2 pairs), of whose pairs L w - w^2 / 2 lie inside the window.
    """
    length = np.sqrt(2.0 * pairs)[:, None]
    with np.errstate(invalid="ignore"):
        capped = np.where(length > k.cap, length * k.cap - k.cap**2 / 2.0, pairs[:, None])
    return np.asarray((k.pair_s * capped).sum(axis=1) / k.pp)


def step_rows_s(
    k: Stack,
    *,
    decode_seqs: Array,
    context_tokens: Array,
    prefill_tokens: Array | None = None,
    prefill_pairs: Array | None = None,
) -> Array:
    """Seconds of one step per row; rows with prefill tokens count as mixed."""
    mean = context_tokens / np.maximum(decode_seqs, 1e-9)
    decode = decode_attention_s(k, decode_seqs, mean)
    if prefill_tokens is None or not prefill_tokens.any():
        return linear_s(k, decode_seqs, mixed=False) + decode
    pairs = np.zeros_like(prefill_tokens) if prefill_pairs is None else prefill_pairs
    tokens = decode_seqs + prefill_tokens
    linear = np.where(prefill_tokens > 0, linear_s(k, tokens, mixed=True), linear_s(k, tokens, mixed=False))
    return np.asarray(linear + decode + prefill_attention_s(k, pairs))


def step_s(
    d: Deployment,
    calib: Calibration,
    *,
    decode_seqs: float,
    context_tokens: float,
    prefill_tokens: float = 0,
    prefill_pairs: float = 0.0,
) -> float:
    """Seconds of one step of one replica (or attention-DP rank). `context_tokens`: sum over decoding sequences."""
    if decode_seqs + prefill_tokens <= 0:
        return 0.0
    k = coefficients(d, calib).one()
    one = np.ones(1)
    return float(
        step_rows_s(
            k,
            decode_seqs=one * decode_seqs,
            context_tokens=one * context_tokens,
            prefill_tokens=one * prefill_tokens,
            prefill_pairs=one * prefill_pairs,
        )[0]
    )
