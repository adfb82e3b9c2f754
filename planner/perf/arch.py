"""What a model is made of: every weight matrix, every attention layer, as exact integers.

A family module (`planner/perf/families/`) turns a config.json into a `ModelArch`; everything else (parameters,
weight bytes, KV cache, state, FLOPs, step times, rules) is arithmetic on it, written once in `quantities.py`,
`memory.py`, `rules.py` and `step.py`. Nothing here reads files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Group = Literal[
    "embed",
    "lm_head",
    "attn",
    "linear_attn",
    "indexer",
    "dense_mlp",
    "shared_expert",
    "routed_expert",
    "router",
    "norm",
    "other",
]
Shard = Literal["column", "row", "replicated", "vocab"]
"""How tensor parallelism splits a matrix: by outputs, by inputs, not at all, or by (padded) vocabulary rows."""


@dataclass(frozen=True, slots=True)
class Linear:
    """One weight matrix y = W x of one layer (or `copies` of it: experts).

    `units` is the number of indivisible parts along the split dimension (query heads, KV heads, 128-wide blocks
    do not count here); with more ranks than units the units are replicated, which is how engines treat KV heads.
    """

    name: str
    group: Group
    inputs: int
    outputs: int
    shard: Shard = "column"
    units: int | None = None
    copies: int = 1
    """How many such matrices stand in the layer (routed experts: E)."""
    active: int = 1
    """How many of the copies one token goes through (routed experts: k); 0 for a lookup such as the embedding."""
    bias: bool = False
    replicate_units: bool = False
    """True where more ranks than units replicate (KV heads); False where that is an error (query heads)."""
    quantisable: bool = True
    """False for what no checkpoint quantises (router, embedding), whatever its scheme says."""

    @property
    def weights(self) -> int:
        """Elements of all copies, without biases."""
        return self.inputs * self.outputs * self.copies

    @property
    def params(self) -> int:
        """Parameters of all copies, biases included."""
        return self.weights + (self.outputs * self.copies if self.bias else 0)


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with its own K and V (MHA, GQA, MQA), possibly windowed."""

    q_heads: int
    kv_heads: int
    qk_head_dim: int
    v_head_dim: int
    window_tokens: int | None = None
    """Sliding window or chunk: a token attends to at most this many, and the cache never holds more."""
    shares_kv: bool = False
    """True for a layer that reads an earlier layer's cache and keeps none of its own."""
    topk_tokens: int | None = None
    """Sparse attention over the best blocks of the context (MiniMax-M3): at most this many tokens are read."""
    indexer_heads: int = 0
    indexer_dim: int = 0
    """Width of the small key per token that the indexer keeps and scores; 0 without one."""


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention: one latent of `kv_lora_rank + rope_dim` per token, the same for every head and
    every tensor-parallel rank. Sparse variants (DSA) attend to the `topk_tokens` best of the context, which an
    indexer with its own small key cache picks."""

    q_heads: int
    kv_lora_rank: int
    rope_dim: int
    nope_dim: int
    v_head_dim: int
    topk_tokens: int | None = None
    indexer_heads: int = 0
    indexer_dim: int = 0
    indexer_cache: bool = True
    """False for a layer that reuses another layer's selection and keeps no index keys."""
    window_tokens: int | None = None
    """Sliding window over the latents (dots3)."""
    shares_kv: bool = False
    """True for a layer that reads an earlier layer's latents and keeps none of its own."""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A layer with a fixed state per sequence and no KV: Mamba-2, gated delta net, KDA, lightning, short conv."""

    kind: Literal["mamba2", "gdn", "kda", "lightning", "shortconv"]
    heads: int
    state_elements: int
    """Elements of the recurrent state of one sequence in one layer (kept in `state_dtype_bytes` each)."""
    conv_elements: int
    """Elements of the convolution's tail of one sequence in one layer."""
    flop_per_token: float
    """Arithmetic of the recurrence itself for one token, without its projections."""
    groups: int | None = None
    """Mamba-2's B/C groups: they must divide by TP or be one."""
    conv_group_elements: int = 0
    """The part of `conv_elements` that belongs to the groups, not to the heads."""
    state_dtype_bytes: float = 4.0
    conv_dtype_bytes: float = 2.0


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """DeepSeek-V4 style: caches compressed along the sequence. Approximate (see families/deepseek_v4.py)."""

    q_heads: int
    head_dim: int
    window_tokens: int
    compress_ratio: int
    """Tokens that one cached entry stands for; 0 means window only."""
    topk_entries: int | None = None
    indexer_heads: int = 0
    indexer_dim: int = 0


Mixer = Attention | Mla | Recurrent | CompressedAttention


@dataclass(frozen=True, slots=True)
class Moe:
    """The routing of a mixture-of-experts layer; its matrices are in the layer's `linears`."""

    experts: int
    active: int
    expert_width: int
    shared_width: int = 0


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` layers that are alike. `where` are their indices, so that pipeline stages can be cut exactly."""

    name: str
    indices: tuple[int, ...]
    mixer: Mixer | None
    moe: Moe | None
    linears: tuple[Linear, ...]
    norm_params: int = 0
    other_params: int = 0
    """Small vectors that are neither norms nor biases: sinks, A_log, dt bias, conv kernels; never quantised."""

    @property
    def count(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, slots=True)
class ModelArch:
    """A decoder as arithmetic sees it."""

    name: str
    family: str
    """The family module that read it: dense, moe, mla, window, hybrid, ..."""
    architecture: str
    """The config's own class name, e.g. LlamaForCausalLM."""
    hidden: int
    vocab: int
    max_context_tokens: int
    layers: tuple[LayerGroup, ...]
    embed: Linear
    lm_head: Linear
    tied_embeddings: bool
    final_norm_params: int
    mtp: tuple[LayerGroup, ...] = ()
    """Multi-token-prediction layers: loaded only when speculation uses them."""
    left_out: tuple[str, ...] = ()
    """What the config describes and this arithmetic leaves out (a vision tower), said wherever it matters."""
    approximate: tuple[str, ...] = ()
    """Why figures of this model are approximate, if they are."""
    native_dtype: str = "bfloat16"
    extra_params: int = 0
    """Parameters outside layers that are neither embedding, head nor final norm; never quantised or split."""
    table_params: int = 0
    """Fixed lookup tables: stored as the rest of `extra_params`, not counted as active."""

    @property
    def layer_count(self) -> int:
        return sum(g.count for g in self.layers)

    @property
    def moe(self) -> bool:
        return any(g.moe for g in self.layers)


Scheme = Literal[
    "bf16",
    "fp8_block128",
    "fp8_channel",
    "fp8_tensor",
    "int8_channel",
    "int4_g128",
    "int4_g32",
    "nvfp4",
    "mxfp4",
    "mxfp8",
]
"""Number formats of weights. Bits and scales are in `quantities.SCHEMES`."""


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """Which matrix is stored how: the first rule whose name pattern or group matches wins, else `default`.

    A rule is (what, scheme): `what` is a group name ("routed_expert") or a matrix name ("q_proj", "group:name").
    """

    default: Scheme
    rules: tuple[tuple[str, Scheme], ...] = ()
    mtp: Scheme | None = None
    """How multi-token-prediction layers are stored where that differs (most NVFP4 checkpoints leave them wide)."""

    def scheme_of(self, linear: Linear) -> Scheme:
        if not linear.quantisable:
            return "bf16"
        for what, scheme in self.rules:
            if what in (linear.group, linear.name, f"{linear.group}:{linear.name}"):
                return scheme
        return self.default

    def mtp_scheme_of(self, linear: Linear) -> Scheme:
        """The same for a matrix of an MTP layer."""
        if self.mtp is None or not linear.quantisable:
            return self.scheme_of(linear)
        return self.mtp


@dataclass(frozen=True, slots=True)
class Shape:
    """How one replica is laid out over GPUs. GPUs = tp x pp x dp.

    `dp` > 1 means attention data parallelism inside the replica (each rank its own requests and KV, experts shared);
    plain copies of a dense model are replicas, not dp. `ep` True spreads experts over tp x dp ranks instead of
    splitting each.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: bool = False

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def label(self) -> str:
        """The shape as people write it, e.g. `tp8`, `tp4 pp2`, `dp8 ep`."""
        parts = [f"tp{self.tp}"] if self.tp > 1 or self.dp == 1 else []
        if self.pp > 1:
            parts.append(f"pp{self.pp}")
        if self.dp > 1:
            parts.append(f"dp{self.dp}")
        if self.ep:
            parts.append("ep")
        return " ".join(parts)
