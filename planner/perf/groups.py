"""A deployment as operation groups: per GPU, how many bytes and FLOP each group takes, and what it exchanges.

Everything here is counting; no efficiency enters. `step.py` turns counts into seconds. One group is one kind of
matrix in one number format: attention projections, dense MLP, routed experts, shared expert, router, LM head, ...
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.perf.arch import Attention, CompressedAttention, LayerGroup, Linear, Mla, Recurrent, Scheme
from planner.perf.deployment import Deployment, Hardware
from planner.perf.identity import ByIdentity
from planner.perf.quantities import matrix_bytes

# Number format -> (rate it computes at where native, row of the kernel table for streaming).
_COMPUTE: dict[Scheme, tuple[str, str]] = {
    "bf16": ("bf16", "bf16"),
    "fp8_block128": ("fp8", "fp8_block"),
    "fp8_channel": ("fp8", "fp8"),
    "fp8_tensor": ("fp8", "fp8"),
    "int8_channel": ("int8", "int8"),
    "int4_g128": ("bf16", "int4"),
    "int4_g32": ("bf16", "int4"),
    "nvfp4": ("fp4", "fp4"),
    # MXFP4 weights meet FP8 activations in today's kernels (gpt-oss), so arithmetic runs at the FP8 rate.
    "mxfp4": ("fp8", "fp4"),
    "mxfp8": ("fp8", "fp8"),
}
_WEIGHT_ONLY = {"nvfp4": "int4", "mxfp4": "int4"}


def compute_format(scheme: Scheme, hardware: Hardware) -> tuple[str, str]:
    """(rate, kernel row): the format's own where the GPU has it, else bf16 arithmetic on packed weights."""
    rate, row = _COMPUTE[scheme]
    native = hardware.peak(rate) is not None
    if scheme == "mxfp4":
        native = hardware.peak("fp4") is not None and native
    if native:
        return rate, row
    return "bf16", _WEIGHT_ONLY.get(scheme, "bf16" if rate == "bf16" else "weight_only8")


@dataclass(frozen=True, slots=True)
class MatrixOps:
    """Matrices of one group and format on one GPU, all layers together."""

    group: str
    rate: str
    """Number format of the arithmetic: bf16, fp8, int8, fp4."""
    row: str
    """Row of the kernel table: its streaming efficiency and fixed time."""
    weight_bytes: float
    flop_per_token: float
    calls: float
    """Kernel launches per step."""
    experts: int = 0
    """Experts of the layer (all ranks); 0 for a dense matrix."""
    active: int = 0
    expert_width: float = math.inf
    """Width of an expert's slice on this GPU."""
    expert_flop: float = 0.0
    """FLOP that one token costs in every local expert, summed: the price of padding each expert by one token."""
    head: bool = False
    """Runs on the tokens that are sampled, not on all."""


@dataclass(frozen=True, slots=True)
class ContextOps:
    """Attention of layers of one kind on one GPU: what one cached token costs one sequence, up to a cap."""

    group: str
    kv_bytes_per_token: float
    decode_flop_per_token: float
    pair_flop: float
    """Prefill: FLOP per query-key pair."""
    cap_tokens: float = math.inf
    per_tokens: float = 1.0
    """Context tokens behind one cached entry (compressed attention)."""


@dataclass(frozen=True, slots=True)
class Operations:
    """One decode or prefill step of one deployment, counted. Per GPU of the replica."""

    matrices: tuple[MatrixOps, ...]
    contexts: tuple[ContextOps, ...]
    state_bytes_per_seq: float
    """Recurrent state read and written per sequence and step."""
    recurrence_flop_per_token: float
    attention_layers: float
    mla_layers: float
    sparse_layers: float
    recurrent_layers: float
    moe_layers: float
    allreduce_calls: float
    alltoall_calls: float
    alltoall_hidden_bytes: float
    """Bytes one token sends per all-to-all call."""
    hidden_bytes: float
    """One hidden vector, 2 bytes an element."""
    layers: float
    logit_bytes_per_token: float
    """Logits gathered over TP per sampled token."""
    traffic_bytes_per_token: float
    """Activations that one token's kernels read and write: products' inputs and outputs, norms, experts' gathering."""
    kernels: float
    """Kernel launches of one step: what the host issues where no CUDA graph replays them."""


def shard_ratio(linear: Linear, tp: int) -> float:
    """Share of the matrix that one rank holds: 1/tp, all of it where replicated, one KV head at least."""
    if linear.shard == "replicated" or tp == 1:
        return 1.0
    if linear.units is not None and linear.replicate_units:
        return max(1.0 / tp, 1.0 / linear.units)
    return 1.0 / tp


def _calls(linears: list[Linear]) -> int:
    """Kernels of one layer's matrices of one group: those with the same input run fused."""
    return len({(x.inputs, x.shard == "row") for x in linears})


def _group_matrices(g: LayerGroup, d: Deployment) -> list[MatrixOps]:
    found = []
    groups: dict[tuple[str, str, str], list[tuple[Linear, float]]] = {}
    for x in g.linears:
        scheme = d.weights.scheme_of(x)
        stored = matrix_bytes(scheme, x.inputs, x.outputs) * x.copies
        groups.setdefault((x.group, *compute_format(scheme, d.hardware)), []).append((x, stored))
    tp, ranks, n = d.shape.tp, d.shape.tp * d.shape.dp, g.count
    for (name, rate, row), members in groups.items():
        if name == "routed_expert" and g.moe is not None:
            moe = g.moe
            one = sum(x.inputs * x.outputs for x, _ in members)
            # Tokens of all attention-DP ranks meet the experts: per token of one rank, dp x active / ranks.
            found.append(
                MatrixOps(
                    name,
                    rate,
                    row,
                    sum(b for _, b in members) / ranks * n,
                    2.0 * one * moe.active * d.shape.dp / ranks * n,
                    2.0 * n,
                    moe.experts,
                    moe.active,
                    float(moe.expert_width if d.shape.ep else moe.expert_width / ranks),
                    2.0 * one * moe.experts / ranks * n,
                )
            )
            continue
        local = sum(b * shard_ratio(x, tp) for x, b in members)
        active = sum(x.inputs * x.outputs * x.active * shard_ratio(x, tp) for x, _ in members)
        found.append(
            MatrixOps(name, rate, row, local * n, 2.0 * active * n, float(_calls([x for x, _ in members]) * n))
        )
    return found


def _context(g: LayerGroup, d: Deployment) -> list[ContextOps]:
    m, n, tp = g.mixer, g.count, d.shape.tp
    element = 1.0 if d.kv_dtype == "fp8" else 2.0
    if isinstance(m, Attention):
        heads, kv = m.q_heads / tp, max(m.kv_heads / tp, 1.0)
        width = m.qk_head_dim + m.v_head_dim
        return [
            ContextOps(
                "attention",
                kv * width * element * n,
                2.0 * heads * width * n,
                2.0 * heads * width * n,
                float(m.window_tokens or math.inf),
            )
        ]
    if isinstance(m, Mla):
        heads = m.q_heads / tp
        latent = m.kv_lora_rank + m.rope_dim
        cap = float(m.topk_tokens or math.inf)
        found = [
            ContextOps(
                "attention",
                latent * element * n,
                2.0 * heads * (2 * m.kv_lora_rank + m.rope_dim) * n,
                2.0 * heads * (m.nope_dim + m.rope_dim + m.v_head_dim) * n,
                cap,
            )
        ]
        if m.indexer_heads:
            scoring = 2.0 * m.indexer_heads * m.indexer_dim * n
            found.append(ContextOps("indexer", (m.indexer_dim + 4.0) * n, scoring, scoring))
        return found
    if isinstance(m, CompressedAttention):
        heads = m.q_heads / tp
        flop = 4.0 * heads * m.head_dim * n
        found = [ContextOps("attention", m.head_dim * element * n, flop, flop, float(m.window_tokens))]
        if m.compress_ratio:
            cap = float(m.topk_entries) * m.compress_ratio if m.topk_entries else math.inf
            found.append(ContextOps("attention", m.head_dim * element * n, flop, flop, cap, float(m.compress_ratio)))
            if m.indexer_heads:
                scoring = 2.0 * m.indexer_heads * m.indexer_dim * n
                found.append(
                    ContextOps(
                        "indexer", (m.indexer_dim + 4.0) * n, scoring, scoring, math.inf, float(m.compress_ratio)
                    )
                )
        return found
    return []


# Small kernels of one layer besides its matrix products (norms, rope, cache write, attention, activation; absorbed
# products and their copies; top-k and its gather; scan and convolution; routing, sorting, gathering): orders of size
# read off public engines' traces, used only as the unit of `Constants.eager_kernel_s`.
_ATTENTION_KERNELS, _MLA_KERNELS, _SPARSE_KERNELS, _RECURRENT_KERNELS, _MOE_KERNELS = 8.0, 24.0, 8.0, 10.0, 12.0


def _traffic(g: LayerGroup, d: Deployment) -> float:
    """Bytes of activations per token of one attention-DP rank, all layers of the group."""
    tp, ranks = d.shape.tp, d.shape.tp * d.shape.dp
    elements = 6.0 * d.arch.hidden
    for x in g.linears:
        if x.group == "routed_expert":
            continue
        share = shard_ratio(x, tp)
        elements += x.inputs * (share if x.shard == "row" else 0.5) + x.outputs * (1.0 if x.shard == "row" else share)
    if g.moe is not None:
        # Every chosen copy is gathered, written, read, and combined; widths split over TP or copies over EP.
        copies = g.moe.active * (d.shape.dp / ranks if d.shape.ep else float(d.shape.dp))
        width = g.moe.expert_width if d.shape.ep else g.moe.expert_width / ranks
        elements += copies * 4.0 * (d.arch.hidden + width)
    return 2.0 * elements * g.count


_CACHE: ByIdentity[Operations] = ByIdentity(8192)


def operations(d: Deployment) -> Operations:
    """Count one step of a replica (one attention-DP rank of it where dp > 1)."""
    return _CACHE.get(d.arch, (d.weights, d.kv_dtype, d.shape, d.hardware), lambda: _count(d))


def _count(d: Deployment) -> Operations:
    tp, dp, ep = d.shape.tp, d.shape.dp, d.shape.ep
    matrices: dict[tuple[str, str, str, int, int, float], MatrixOps] = {}

    def add(op: MatrixOps) -> None:
        key = (op.group, op.rate, op.row, op.experts, op.active, op.expert_width)
        have = matrices.get(key)
        matrices[key] = (
            op
            if have is None
            else MatrixOps(
                op.group,
                op.rate,
                op.row,
                have.weight_bytes + op.weight_bytes,
                have.flop_per_token + op.flop_per_token,
                have.calls + op.calls,
                op.experts,
                op.active,
                op.expert_width,
                have.expert_flop + op.expert_flop,
                op.head,
            )
        )

    contexts: list[ContextOps] = []
    count = dict.fromkeys(("attention", "mla", "sparse", "recurrent", "moe", "reduce", "exchange"), 0.0)
    state, recurrence, traffic = 0.0, 0.0, 0.0
    for g in d.arch.layers:
        for op in _group_matrices(g, d):
            add(op)
        contexts += _context(g, d)
        traffic += _traffic(g, d)
        n, m = float(g.count), g.mixer
        if isinstance(m, Recurrent):
            count["recurrent"] += n
            # Read and written once per step and sequence.
            state += n * 2.0 * (m.state_elements * m.state_dtype_bytes + m.conv_elements * m.conv_dtype_bytes) / tp
            recurrence += n * m.flop_per_token / tp
        elif isinstance(m, (Mla, CompressedAttention)):
            count["mla"] += n
            if m.indexer_heads:
                count["sparse"] += n
        elif m is not None:
            count["attention"] += n
        rows = {x.group for x in g.linears if x.shard == "row"}
        if tp > 1:
            count["reduce"] += n * bool(rows & {"attn", "linear_attn", "other"})
            # Experts and shared expert are summed before one all-reduce; attention DP has an all-to-all instead.
            count["reduce"] += (
                n * bool(rows & {"dense_mlp", "shared_expert", "routed_expert"}) * (g.moe is None or dp == 1)
            )
        if g.moe is not None:
            count["moe"] += n
            count["exchange"] += 2.0 * n * (dp > 1)
    head_scheme = d.weights.scheme_of(d.arch.lm_head)
    rate, row = compute_format(head_scheme, d.hardware)
    head = d.arch.lm_head
    add(
        MatrixOps(
            "lm_head",
            rate,
            row,
            matrix_bytes(head_scheme, head.inputs, head.outputs) / tp,
            2.0 * head.inputs * head.outputs / tp,
            1.0,
            head=True,
        )
    )
    hidden_bytes = 2.0 * d.arch.hidden
    moe = next((g.moe for g in d.arch.layers if g.moe is not None), None)
    # A token goes to at most `active` other ranks; FP8 on the way out, 2 bytes back.
    ranks = tp * dp
    reached = 0.0 if moe is None or ranks == 1 else (ranks - 1) * (1.0 - (1.0 - 1.0 / ranks) ** moe.active)
    return Operations(
        matrices=tuple(sorted(matrices.values(), key=lambda o: (o.group, o.rate, o.row))),
        contexts=tuple(contexts),
        state_bytes_per_seq=state,
        recurrence_flop_per_token=recurrence,
        attention_layers=count["attention"],
        mla_layers=count["mla"],
        sparse_layers=count["sparse"],
        recurrent_layers=count["recurrent"],
        moe_layers=count["moe"],
        allreduce_calls=count["reduce"] + (1.0 if tp > 1 else 0.0),
        alltoall_calls=count["exchange"] if ep or dp > 1 else 0.0,
        alltoall_hidden_bytes=0.75 * hidden_bytes * min(reached, float(moe.active if moe else 0)) if moe else 0.0,
        hidden_bytes=hidden_bytes,
        layers=float(d.arch.layer_count),
        logit_bytes_per_token=2.0 * head.outputs * (tp - 1) / tp if tp > 1 else 0.0,
        traffic_bytes_per_token=traffic,
        kernels=sum(o.calls for o in matrices.values())
        + count["attention"] * _ATTENTION_KERNELS
        + count["mla"] * _MLA_KERNELS
        + count["sparse"] * _SPARSE_KERNELS
        + count["recurrent"] * _RECURRENT_KERNELS
        + count["moe"] * _MOE_KERNELS
        + count["reduce"]
        + count["exchange"],
    )
