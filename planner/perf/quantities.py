"""Parameters, bytes and arithmetic of a model, for any precision and parallel layout.

Everything is a sum over `ModelArch`'s layers; integers stay exact as long as possible. Conventions:

- whole model: one copy of everything, nothing padded. Per GPU: the most loaded rank, with what it holds more than its
  share (KV heads when there are more ranks than heads, latents, norms, routers, padded vocabulary, redundant experts).
- `wide` values (norms, biases, embedding, whatever a plan leaves alone) take 2 bytes: engines load float32 as bfloat16.
- an `active` parameter is one that a token's forward pass reads. Three conventions are in use, told apart by
  `embed` and `head`: DeepSeek and Qwen count both, gpt-oss and Nemotron leave the embedding out, GLM-4.5 and MiniMax
  leave out both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from planner.perf.arch import (
    Attention,
    CompressedAttention,
    LayerGroup,
    Linear,
    Mixer,
    Mla,
    ModelArch,
    Recurrent,
    Scheme,
    Shape,
    WeightPlan,
)

WIDE_BYTES: Final = 2
VOCAB_PADDING: Final = 64
"""vLLM and SGLang pad the vocabulary to a multiple of this before splitting it (DEFAULT_VOCAB_PADDING_SIZE)."""
INDEX_KEY_SCALE_BYTES: Final = 4
"""An index key is stored in FP8 with one float32 scale, whatever the KV precision (132 B for 128 elements)."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a weight matrix is stored: `bits` per weight, and a scale per block of `rows` outputs x `cols` inputs.

    rows or cols 0 means the whole dimension. `matrix_bytes` is added once per matrix (global scales).
    """

    bits: int
    rows: int = 1
    cols: int = 0
    scale_bytes: float = 0.0
    matrix_bytes: int = 0
    activation_bits: int = 16
    """What the multiplication runs in where the GPU has it natively: W4A16 formats multiply in bf16."""


SCHEMES: Final[dict[Scheme, Format]] = {
    "bf16": Format(16),
    "fp8_block128": Format(8, 128, 128, 4, activation_bits=8),
    "fp8_channel": Format(8, 1, 0, 4, activation_bits=8),
    "fp8_tensor": Format(8, 0, 0, 0, 8, activation_bits=8),  # one weight and one input scale
    "int8_channel": Format(8, 1, 0, 4, activation_bits=8),
    "int4_g128": Format(4, 1, 128, 2.5),  # bf16 scale and a 4-bit zero point per group
    "int4_g32": Format(4, 1, 32, 2),  # symmetric: scale only
    "nvfp4": Format(4, 1, 16, 1, 8, activation_bits=4),  # FP8 scale per 16, two float32 per matrix
    "mxfp4": Format(4, 1, 32, 1, activation_bits=4),
    "mxfp8": Format(8, 1, 32, 1, activation_bits=8),
}


def uniform(scheme: Scheme) -> WeightPlan:
    """Every matrix in `scheme` except embedding, head, router and indexer, which checkpoints keep wide."""
    return WeightPlan(scheme, (("lm_head", "bf16"), ("indexer", "bf16")))


def experts_only(scheme: Scheme) -> WeightPlan:
    """Routed experts in `scheme`, all else wide (gpt-oss, Kimi-K2.5)."""
    return WeightPlan("bf16", (("routed_expert", scheme),))


def matrix_bytes(scheme: Scheme, inputs: int, outputs: int) -> float:
    """Bytes of one stored matrix with its scales; blocks that are cut short count whole.

    >>> matrix_bytes("fp8_block128", 2880, 4096)  # 23 x 32 blocks
    11799424
    """
    f = SCHEMES[scheme]
    elements = inputs * outputs * f.bits
    data = elements // 8 if elements % 8 == 0 else elements / 8
    if f.scale_bytes == 0:
        return data + f.matrix_bytes
    blocks = -(-outputs // (f.rows or outputs)) * -(-inputs // (f.cols or inputs))
    scales = blocks * f.scale_bytes
    return data + (int(scales) if scales == int(scales) else scales) + f.matrix_bytes


# ---------------------------------------------------------------- parameters


def _layers(arch: ModelArch, mtp: bool) -> tuple[LayerGroup, ...]:
    return arch.layers + (arch.mtp if mtp else ())


def params_total(arch: ModelArch, *, mtp: bool = False) -> int:
    """Parameters of the text model; a tied head counts once. `mtp` adds the multi-token-prediction layers as stored."""
    total = arch.embed.params + arch.final_norm_params + arch.extra_params
    if not arch.tied_embeddings:
        total += arch.lm_head.params
    elif arch.lm_head.bias:
        total += arch.lm_head.outputs
    for g in _layers(arch, mtp):
        total += g.count * (sum(x.params for x in g.linears) + g.norm_params + g.other_params)
    return total


def params_active(arch: ModelArch, *, embed: bool = True, head: bool = True) -> int:
    """Parameters one token goes through (k of E experts); see the module's note on `embed` and `head`.

    A tied table counts as the embedding.
    """
    total = arch.final_norm_params + (arch.embed.params if embed else 0)
    total += arch.lm_head.params if head and not arch.tied_embeddings else 0
    for g in arch.layers:
        each = sum(x.params // x.copies * x.active if x.copies > 1 else x.params for x in g.linears)
        total += g.count * (each + g.norm_params + g.other_params)
    return total + arch.extra_params - arch.table_params


def group_params(arch: ModelArch, *, mtp: bool = False) -> dict[str, int]:
    """Parameters by group; biases count with their matrix, small vectors as `other`."""
    found: dict[str, int] = {"embed": arch.embed.params, "norm": arch.final_norm_params, "other": arch.extra_params}
    if not arch.tied_embeddings:
        found["lm_head"] = arch.lm_head.params
    for g in _layers(arch, mtp):
        for x in g.linears:
            found[x.group] = found.get(x.group, 0) + g.count * x.params
        found["norm"] += g.count * g.norm_params
        found["other"] += g.count * g.other_params
    return {k: v for k, v in found.items() if v}


# ---------------------------------------------------------------- weights


def weight_bytes(arch: ModelArch, plan: WeightPlan, *, mtp: bool = False) -> int:
    """Bytes of the whole model as `plan` stores it (the checkpoint's size, but for file headers)."""
    total: float = WIDE_BYTES * (arch.final_norm_params + arch.extra_params)
    total += _stored(arch.embed, plan.scheme_of(arch.embed))
    if not arch.tied_embeddings:
        total += _stored(arch.lm_head, plan.scheme_of(arch.lm_head))
    for g in arch.layers:
        total += g.count * _group_bytes(g, plan.scheme_of)
    for g in arch.mtp if mtp else ():
        total += g.count * _group_bytes(g, plan.mtp_scheme_of)
    return round(total)


def _stored(x: Linear, scheme: Scheme) -> float:
    each = matrix_bytes(scheme, x.inputs, x.outputs) + (WIDE_BYTES * x.outputs if x.bias else 0)
    return x.copies * each


def _group_bytes(g: LayerGroup, scheme_of: Callable[[Linear], Scheme]) -> float:
    return sum(_stored(x, scheme_of(x)) for x in g.linears) + WIDE_BYTES * (g.norm_params + g.other_params)


def stage_layers(layers: int, pp: int) -> tuple[range, ...]:
    """Which layers each pipeline stage holds: a remainder goes to the later stages but the last (vLLM get_pp_indices).

    >>> [len(r) for r in stage_layers(61, 4)]
    [15, 15, 16, 15]
    """
    counts = [layers // pp] * pp
    for i in range(2, layers % pp + 2):
        counts[-i] += 1
    starts = [sum(counts[:i]) for i in range(pp)]
    return tuple(range(s, s + c) for s, c in zip(starts, counts, strict=True))


def _by_stage(
    arch: ModelArch,
    pp: int,
    layer: Callable[[LayerGroup], float],
    *,
    mtp: bool = False,
    first: float = 0,
    last: float = 0,
) -> tuple[float, ...]:
    """Adds up a per-layer quantity by stage; `first` and `last` are what the end stages hold besides."""
    each = [(frozenset(g.indices), layer(g)) for g in arch.layers]
    stages = []
    for stage in stage_layers(arch.layer_count, pp):
        if pp == 1:
            stages.append(sum(len(indices) * value for indices, value in each))
        else:
            stages.append(sum(sum(i in indices for i in stage) * value for indices, value in each))
    stages[0] += first
    stages[-1] += last + (sum(g.count * layer(g) for g in arch.mtp) if mtp else 0)
    return tuple(stages)


def weight_bytes_by_stage(
    arch: ModelArch, plan: WeightPlan, shape: Shape, *, redundant_experts: int = 0, mtp: bool = False
) -> tuple[float, ...]:
    """Weight bytes of the most loaded GPU of each pipeline stage.

    Attention, dense and shared matrices split over TP and stand on every attention-DP rank; routed experts split over
    TP x DP ranks, or are dealt out whole with EP. The first stage holds the embedding, the last one the head; tied
    tables stand on both.
    """

    mtp_groups = frozenset(id(g) for g in arch.mtp)

    def layer(g: LayerGroup) -> float:
        scheme_of = plan.mtp_scheme_of if id(g) in mtp_groups else plan.scheme_of
        held = sum(_rank_bytes(x, scheme_of(x), shape, redundant_experts) for x in g.linears)
        return held + WIDE_BYTES * (g.norm_params + g.other_params)

    embed = _rank_bytes(arch.embed, plan.scheme_of(arch.embed), shape, 0) + WIDE_BYTES * arch.extra_params
    head = _rank_bytes(arch.lm_head, plan.scheme_of(arch.lm_head), shape, 0)
    if arch.tied_embeddings:
        head = 0 if shape.pp == 1 else _rank_bytes(arch.embed, plan.scheme_of(arch.embed), shape, 0)
    last = head + WIDE_BYTES * arch.final_norm_params
    return _by_stage(arch, shape.pp, layer, mtp=mtp, first=embed, last=last)


def weight_bytes_per_gpu(
    arch: ModelArch, plan: WeightPlan, shape: Shape, *, redundant_experts: int = 0, mtp: bool = False
) -> float:
    """Weight bytes of the most loaded GPU of the replica."""
    return max(weight_bytes_by_stage(arch, plan, shape, redundant_experts=redundant_experts, mtp=mtp))


def rank_share(x: Linear, shape: Shape, *, redundant_experts: int = 0) -> tuple[int, int, int]:
    """(inputs, outputs, copies) of a matrix on the most loaded rank."""
    ranks, copies = shape.tp, x.copies
    if x.group == "routed_expert":
        ranks = shape.tp * shape.dp
        if shape.ep:
            copies = -(-(x.copies + redundant_experts) // ranks)
            ranks = 1
    if x.shard == "replicated" or ranks == 1:
        return x.inputs, _padded(x) if x.shard == "vocab" and shape.tp > 1 else x.outputs, copies
    if x.shard == "vocab":
        return x.inputs, -(-_padded(x) // ranks), copies
    whole = x.inputs if x.shard == "row" else x.outputs
    # Whole units stay together; more ranks than units replicate (KV heads), and other rules refuse the rest.
    part = -(-whole // ranks) if x.units is None else -(-x.units // ranks) * (whole // x.units)
    return (part, x.outputs, copies) if x.shard == "row" else (x.inputs, part, copies)


def _padded(x: Linear) -> int:
    return -(-x.outputs // VOCAB_PADDING) * VOCAB_PADDING


def _rank_bytes(x: Linear, scheme: Scheme, shape: Shape, redundant_experts: int) -> float:
    inputs, outputs, copies = rank_share(x, shape, redundant_experts=redundant_experts)
    return copies * (matrix_bytes(scheme, inputs, outputs) + (WIDE_BYTES * outputs if x.bias else 0))


# ---------------------------------------------------------------- cache and state


def _element_bytes(kv_dtype: str) -> int:
    return {"bf16": 2, "fp8": 1}[kv_dtype]


def _index_key_bytes(m: Mla | Attention | CompressedAttention) -> int:
    return m.indexer_dim + INDEX_KEY_SCALE_BYTES if m.indexer_dim else 0


def layer_kv_bytes_per_token(mixer: Mixer | None, kv_dtype: str, *, tp: int = 1, engine: bool = False) -> float:
    """Bytes that one token adds to one layer's cache on one rank of `tp`.

    GQA: 2 x kv_heads/tp (at least one head) x head_dim. MLA: the latent, whole on every rank, and the index key
    where there is an indexer. `engine`: as vLLM and SGLang store sparse MLA in FP8, a record of 512 + 16 scale +
    2 x 64 rope bytes (656) instead of 576. Recurrent and compressed layers have no per-token rate: 0.
    """
    e = _element_bytes(kv_dtype)
    match mixer:
        case Attention():
            if mixer.shares_kv:
                return 0
            heads = mixer.kv_heads if tp == 1 else -(-mixer.kv_heads // tp)
            return heads * (mixer.qk_head_dim + mixer.v_head_dim) * e + _index_key_bytes(mixer)
        case Mla():
            if mixer.shares_kv:
                return _index_key_bytes(mixer) if mixer.indexer_cache else 0
            record = (mixer.kv_lora_rank + mixer.rope_dim) * e
            if engine and kv_dtype == "fp8" and mixer.topk_tokens:
                # fp8 latent, one float32 scale per 128 of it, rope part kept in bf16
                record = mixer.kv_lora_rank + mixer.kv_lora_rank // 128 * 4 + 2 * mixer.rope_dim
            return record + (_index_key_bytes(mixer) if mixer.indexer_cache else 0)
        case _:
            return 0


def kv_bytes_per_token(arch: ModelArch, kv_dtype: str) -> float:
    """Bytes one more token adds to the caches of all layers, one copy, windows not yet full.

    Sequence-compressed caches (DeepSeek-V4) have no such rate and count 0: ask `cache_bytes`.
    """
    return sum(g.count * layer_kv_bytes_per_token(g.mixer, kv_dtype) for g in arch.layers)


def kv_bytes_per_token_by_stage(
    arch: ModelArch, kv_dtype: str, shape: Shape, *, mtp: bool = False
) -> tuple[float, ...]:
    """The same on one GPU of each pipeline stage, as engines store it; long-context rate for compressed caches."""

    def layer(g: LayerGroup) -> float:
        if isinstance(g.mixer, CompressedAttention):
            m = g.mixer
            return (_entry_bytes(m, kv_dtype, engine=True) / m.compress_ratio) if m.compress_ratio else 0
        return layer_kv_bytes_per_token(g.mixer, kv_dtype, tp=shape.tp, engine=True)

    return _by_stage(arch, shape.pp, layer, mtp=mtp)


def kv_bytes_per_token_per_gpu(arch: ModelArch, kv_dtype: str, shape: Shape, *, mtp: bool = False) -> float:
    """KV bytes of one token on the most loaded GPU (the stage with most attention layers)."""
    return max(kv_bytes_per_token_by_stage(arch, kv_dtype, shape, mtp=mtp))


COMPRESSED_FP8_RECORD_BYTES: Final = 584
"""vLLM's FP8 record of one DeepSeek-V4 entry of 512 elements (facts: quantisation.md section 5)."""


def _entry_bytes(m: CompressedAttention, kv_dtype: str, *, engine: bool = False, index: bool = True) -> float:
    own = m.head_dim * _element_bytes(kv_dtype)
    if engine and kv_dtype == "fp8" and m.head_dim == 512:
        own = COMPRESSED_FP8_RECORD_BYTES
    return own + (_index_key_bytes(m) if index else 0)


def layer_cache_bytes(
    mixer: Mixer | None, kv_dtype: str, context_tokens: int, *, tp: int = 1, engine: bool = False
) -> float:
    """Bytes of one layer's cache for one sequence of `context_tokens`, windows capped, states included."""
    match mixer:
        case Attention():
            held = min(context_tokens, mixer.window_tokens or context_tokens)
            return held * layer_kv_bytes_per_token(mixer, kv_dtype, tp=tp, engine=engine)
        case Mla():
            held = min(context_tokens, mixer.window_tokens or context_tokens)
            return held * layer_kv_bytes_per_token(mixer, kv_dtype, tp=tp, engine=engine)
        case CompressedAttention():
            window = min(context_tokens, mixer.window_tokens)
            entries = context_tokens // mixer.compress_ratio if mixer.compress_ratio else 0
            return window * _entry_bytes(mixer, kv_dtype, engine=engine, index=False) + entries * _entry_bytes(
                mixer, kv_dtype, engine=engine
            )
        case Recurrent():
            return layer_state_bytes(mixer, tp=tp)
        case None:
            return 0


def cache_bytes(arch: ModelArch, kv_dtype: str, context_tokens: int) -> float:
    """Bytes of one sequence's caches and states at a context length, all layers, one copy."""
    return sum(g.count * layer_cache_bytes(g.mixer, kv_dtype, context_tokens) for g in arch.layers)


def cache_bytes_by_stage(
    arch: ModelArch, kv_dtype: str, shape: Shape, context_tokens: int, *, mtp: bool = False
) -> tuple[float, ...]:
    """One sequence's caches and states on one GPU of each pipeline stage, as engines store them."""

    def layer(g: LayerGroup) -> float:
        return layer_cache_bytes(g.mixer, kv_dtype, context_tokens, tp=shape.tp, engine=True)

    return _by_stage(arch, shape.pp, layer, mtp=mtp)


def cache_bytes_per_gpu(
    arch: ModelArch, kv_dtype: str, shape: Shape, context_tokens: int, *, mtp: bool = False
) -> float:
    """One sequence's caches and states on the most loaded GPU."""
    return max(cache_bytes_by_stage(arch, kv_dtype, shape, context_tokens, mtp=mtp))


def layer_state_bytes(m: Recurrent, *, tp: int = 1) -> float:
    """State of one sequence in one layer on one rank: heads split over TP; B/C groups split, or stand on every rank."""
    heads = -(-m.heads // tp)
    state = (
        m.state_elements // m.heads * heads if m.state_elements % m.heads == 0 else m.state_elements * heads / m.heads
    )
    own = m.conv_elements - m.conv_group_elements
    conv = own // m.heads * heads if own % m.heads == 0 else own * heads / m.heads
    if m.conv_group_elements:
        groups = m.groups or 1
        conv += m.conv_group_elements // groups * -(-groups // tp)
    total = state * m.state_dtype_bytes + conv * m.conv_dtype_bytes
    return int(total) if total == int(total) else total


def state_bytes_per_sequence(arch: ModelArch) -> float:
    """Fixed state of one sequence, all recurrent layers, one copy."""
    return sum(g.count * layer_state_bytes(g.mixer) for g in arch.layers if isinstance(g.mixer, Recurrent))


def state_bytes_per_sequence_per_gpu(arch: ModelArch, shape: Shape) -> float:
    """Fixed state of one sequence on the most loaded GPU."""

    def layer(g: LayerGroup) -> float:
        return layer_state_bytes(g.mixer, tp=shape.tp) if isinstance(g.mixer, Recurrent) else 0

    return max(_by_stage(arch, shape.pp, layer))


# ---------------------------------------------------------------- arithmetic


def linear_flop_per_token(arch: ModelArch, *, head: bool = True) -> float:
    """Arithmetic of all matrices for one token: 2 per weight it goes through. The embedding is a lookup."""
    total = arch.lm_head.weights if head else 0
    for g in arch.layers:
        total += g.count * sum(x.inputs * x.outputs * x.active for x in g.linears)
    return 2 * total


def layer_attention_flop(mixer: Mixer | None, context_tokens: int) -> float:
    """QK and PV (or the recurrence) of one layer for one new token that sees `context_tokens`.

    GQA: 2 x heads x (qk + v) per token seen. MLA as decoding runs it, absorbed: 2 x heads x (latent + rope + latent).
    Sparse layers see at most their top-k and pay the indexer for the whole context.
    """
    n = context_tokens
    match mixer:
        case Attention():
            seen = min(n, mixer.window_tokens or n, mixer.topk_tokens or n)
            attend = 2 * mixer.q_heads * (mixer.qk_head_dim + mixer.v_head_dim) * seen
            return attend + 2 * mixer.indexer_heads * mixer.indexer_dim * n
        case Mla():
            seen = min(n, mixer.topk_tokens or n, mixer.window_tokens or n)
            attend = 2 * mixer.q_heads * (2 * mixer.kv_lora_rank + mixer.rope_dim) * seen
            return attend + 2 * mixer.indexer_heads * mixer.indexer_dim * n
        case CompressedAttention():
            entries = n // mixer.compress_ratio if mixer.compress_ratio else 0
            seen = min(n, mixer.window_tokens) + min(entries, mixer.topk_entries or entries)
            return 4 * mixer.q_heads * mixer.head_dim * seen + 2 * mixer.indexer_heads * mixer.indexer_dim * entries
        case Recurrent():
            return mixer.flop_per_token
        case None:
            return 0


def attention_flop_per_token(arch: ModelArch, context_tokens: int) -> float:
    """Attention and recurrences of all layers for one new token at a context length (decode)."""
    return sum(g.count * layer_attention_flop(g.mixer, context_tokens) for g in arch.layers)
