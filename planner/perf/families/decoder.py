"""The usual decoder: per layer a mixer, a feed-forward network and norms; what a class does that its config.json
does not say stands in its `Traits` row (`catalog` of classes in `classes.py`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from planner.perf.arch import LayerGroup, Linear
from planner.perf.families.base import Fields, Part, group, norms
from planner.perf.families.dense import AttentionShape, QkNorm, attention, mlp, read_shape
from planner.perf.families.mla import index_layers, mla
from planner.perf.families.moe import has_experts, moe, moe_layers, read_moe
from planner.perf.families.window import Rule, windows

Flag = bool | tuple[str, bool]
"""Fixed by the class, or read from a config field with a default."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What the class's code decides. Defaults are Llama's."""

    mixer: Literal["softmax", "mla"] = "softmax"
    qkv_bias: Flag = False
    o_bias: Flag = False
    mlp_bias: Flag = False
    qk_norm: QkNorm = "none"
    gate_fields: tuple[str, ...] = ()
    """Fields that say whether attention's output is gated: true or "per-head", or "per-element"."""
    gate_default: bool = False
    head_dim: int | None = None
    """The class's own head size, where neither head_dim nor hidden / heads decides."""
    window_kv_factor: int = 1
    """KV heads of windowed layers per KV head of the others, where the config does not say (MiMo-V2)."""
    activation_params: int = 0
    """Learned numbers of the activation function (Apertus's xIELU)."""
    qk_norm_field: tuple[str, bool] | None = None
    """Where a field switches the q/k norm off, e.g. ("use_qk_norm", True)."""
    gated: bool = True
    norms_per_layer: int = 2
    norm_bias: bool = False
    tied: bool = False
    """tie_word_embeddings where the config leaves it out."""
    head_bias: Flag = False
    window: Rule = "all"
    window_period: int = 0
    sinks: Flag = False
    window_sinks: Flag | None = None
    """Sinks of the windowed layers where they differ."""
    forced_kv: int | None = None
    """KV heads that the class fixes whatever the config says (multi-query)."""
    first_dense: int = 0
    """Dense layers before the experts where the config does not say."""
    # experts
    router_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    default_shared: int = 0
    step_from_one: bool = False
    """An expert step of n means layers n-1, 2n-1, ... (Qwen, Llama-4); otherwise 0, n, 2n, ..."""
    dense_width: tuple[str, ...] = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim")
    """Names of the dense layers' width, best first; four times hidden where none is there and `four_hidden`."""
    four_hidden: bool = False
    # multi-token prediction
    mtp: Literal["none", "layer"] = "none"
    mtp_copies_embeddings: bool = False
    """The checkpoint stores a second embedding and head with its MTP layer (engines share them with the model)."""
    position_rows: int | None = None
    """Learned position embeddings (GPT-2, OPT): a row per position and this many more."""
    embed_norm: bool = False
    """A norm behind the embedding (Bloom)."""
    final_norm: bool = True


def flag(f: Fields, how: Flag) -> bool:
    return how if isinstance(how, bool) else f.flag(how[0], default=how[1])


@dataclass(frozen=True, slots=True)
class Read:
    """What a family module hands back; `classes.finish` adds embedding and head."""

    layers: tuple[LayerGroup, ...]
    mtp: tuple[LayerGroup, ...] = ()
    extra_params: int = 0
    """Parameters outside layers that are neither embedding, head nor final norm."""
    table_params: int = 0
    """Fixed lookup tables (DeepSeek-V4's hash routing): stored, but not counted as active."""
    left_out: tuple[str, ...] = ()
    approximate: tuple[str, ...] = ()


def mixers(f: Fields, t: Traits) -> list[Part]:
    if t.mixer == "mla":
        own_index = index_layers(f)
        dsa = f.has("index_topk", "index_n_heads")
        return [mla(f, indexer=dsa and own, index_cache=own) for own in own_index]
    n, layer_windows = f.layers, windows(f, t.window, period=t.window_period)
    heads = f.items("num_attention_heads_per_layer", int, length=n) or [None] * n
    made: dict[tuple[int | None, int | None], Part] = {}
    for key in dict.fromkeys(zip(heads, layer_windows, strict=True)):
        own_heads, window = key
        fields = _windowed(f, t) if window is not None else f
        if own_heads is not None:
            fields = fields.over(num_attention_heads=own_heads)
        made[key] = attention(_shape(fields, t, window))
    return [made[key] for key in zip(heads, layer_windows, strict=True)]


def _shape(f: Fields, t: Traits, window: int | None) -> AttentionShape:
    switched_off = t.qk_norm_field is not None and not f.flag(t.qk_norm_field[0], default=t.qk_norm_field[1])
    gate = f.raw(*t.gate_fields) if t.gate_fields else None
    gate = t.gate_default if gate is None else gate
    shape = read_shape(
        f,
        qkv_bias=flag(f, t.qkv_bias),
        o_bias=flag(f, t.o_bias),
        qk_norm="none" if switched_off else t.qk_norm,
        window_tokens=window,
        sinks=flag(f, t.sinks if window is None else t.window_sinks if t.window_sinks is not None else t.sinks),
        forced_kv=t.forced_kv,
        default_head_dim=t.head_dim,
        norm_bias=t.norm_bias and t.qk_norm != "per_head",
    )
    return replace(shape, head_gate=gate is True or gate == "per-head", output_gate=gate == "per-element")


WINDOWED = {
    "num_attention_heads": ("swa_num_attention_heads", "num_sliding_attention_heads"),
    "num_key_value_heads": ("swa_num_key_value_heads",),
    "head_dim": ("swa_head_dim",),
    "v_head_dim": ("swa_v_head_dim",),
}
"""Sizes of the windowed layers, where they have their own (MiMo-V2, Step-3.7)."""


def _windowed(f: Fields, t: Traits) -> Fields:
    own = {name: f.raw(*others) for name, others in WINDOWED.items() if f.has(*others)}
    if t.window_kv_factor > 1 and "num_key_value_heads" not in own:
        own["num_key_value_heads"] = t.window_kv_factor * f.whole("num_key_value_heads")
    other = f.mapping("attention_other_setting")
    if other is not None:
        theirs = {"num_attention_heads": "num_attention_heads", "num_key_value_heads": "num_attention_groups"}
        own |= {
            name: other.raw(there) for name, there in (theirs | {"head_dim": "head_dim"}).items() if other.has(there)
        }
    return f.over(**own) if own else f


def dense_mlp(f: Fields, t: Traits) -> Part:
    width = 4 * f.hidden if t.four_hidden and not f.has(*t.dense_width) else f.whole(*t.dense_width)
    made = mlp(f.hidden, width, gated=t.gated, bias=flag(f, t.mlp_bias))
    return made + Part(other_params=t.activation_params)


def feed_forwards(f: Fields, t: Traits) -> list[Part]:
    if not has_experts(f):
        return [dense_mlp(f, t)] * f.layers
    routed = moe(
        read_moe(
            f,
            gated=t.gated,
            router_bias=t.router_bias,
            expert_bias=t.expert_bias,
            shared_gate=t.shared_gate,
            default_shared=t.default_shared,
        )
    )
    sparse = moe_layers(f, first_dense=t.first_dense, step_from_one=t.step_from_one)
    dense = dense_mlp(f, t) if not all(sparse) else Part()
    return [routed if s else dense for s in sparse]


def read(f: Fields, t: Traits) -> Read:
    around = norms(f.hidden, t.norms_per_layer, bias=t.norm_bias)
    parts = [m + ff + around for m, ff in zip(mixers(f, t), feed_forwards(f, t), strict=True)]
    layers = group([(label(p), p) for p in parts])
    mtp: tuple[LayerGroup, ...] = ()
    if t.mtp == "layer":
        # It is like the last layer, but runs an indexer of its own even where the last layer borrows one.
        last = parts[-1]
        if t.mixer == "mla" and f.has("index_topk", "index_n_heads"):
            last = mla(f, indexer=True) + feed_forwards(f, t)[-1] + around
        mtp = mtp_layer(f, last, copies=copies(f, t))
    extra = norms(f.hidden, 1, bias=True).norm_params if t.embed_norm else 0
    if t.position_rows is not None:
        extra += (f.whole("max_position_embeddings", "n_positions", default=2048) + t.position_rows) * f.hidden
    return Read(layers, mtp, extra, left_out=_mtp_left_out(f, t))


def _mtp_left_out(f: Fields, t: Traits) -> tuple[str, ...]:
    if t.mtp == "none" and f.whole(*MTP_NAMES, "num_mtp_modules", default=0, low=0, high=64):
        return ("multi-token-prediction layers: their shape is not known for this class",)
    return ()


def copies(f: Fields, t: Traits) -> bool:
    return t.mtp_copies_embeddings and not f.flag("_mtp_shares_embed", default=False)


def label(part: Part) -> str:
    """A short name of a layer's kind, for people and for stages: `full+dense`, `window 128+moe`."""
    m = part.mixer
    names = []
    if m is not None:
        kind = type(m).__name__.lower()
        window = getattr(m, "window_tokens", None)
        names.append({"attention": f"window {window}" if window else "full"}.get(kind, getattr(m, "kind", kind)))
    if part.moe:
        names.append("moe")
    elif any(x.group in ("dense_mlp", "shared_expert") for x in part.linears):
        names.append("dense")
    return "+".join(names) or "nothing"


MTP_NAMES = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")


def mtp_layer(f: Fields, layer: Part, *, copies: bool) -> tuple[LayerGroup, ...]:
    """Multi-token prediction as DeepSeek-V3 writes it: per predicted token one more decoder layer (like the last
    one), a projection of [hidden state, embedding] to hidden, and norms on both and on the output."""
    count = f.whole(*MTP_NAMES, default=0, low=0, high=64)
    if not count:
        return ()
    h, n = f.hidden, f.layers
    join = Part((Linear("eh_proj", "other", 2 * h, h, "replicated", quantisable=False),), norm_params=3 * h)
    made = group([("mtp", layer + join)] * count, first_index=n)
    if not copies:
        return made
    vocab = f.whole("vocab_size")
    stored = (
        Linear("embed_tokens", "embed", h, vocab, "vocab", active=0, quantisable=False),
        Linear("shared_head", "lm_head", h, vocab, "vocab", quantisable=False),
    )
    return made + tuple(LayerGroup("mtp copies", (n + i,), None, None, stored) for i in range(count))
