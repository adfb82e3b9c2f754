"""Hybrids: some layers attend, the others are recurrent. One reader per way the configs write it."""

from __future__ import annotations

from collections.abc import Sequence

from planner.perf.arch import Linear
from planner.perf.families.base import MOST_LAYERS, Fields, Part, group, norms
from planner.perf.families.decoder import MTP_NAMES, Read, Traits, feed_forwards, flag, label, mtp_layer
from planner.perf.families.dense import attention, mlp, read_shape
from planner.perf.families.mla import index_layers, mla
from planner.perf.families.moe import moe, read_moe
from planner.perf.families.recurrent import gdn, kda, lightning, mamba2, shortconv

_ATTENTION = {"full_attention", "attention", "indexed_attention"}
_RECURRENT = {"linear_attention", "mamba", "conv", "kda", "lightning_attention"}


def kinds(f: Fields, default: Sequence[bool] | None = None, *, name: str = "layer_types") -> list[bool]:
    """Which layers attend, from the list of kinds or the class's own rule."""
    listed = f.items(name, str, length=f.layers)
    if listed is None:
        if default is None:
            raise f.error(f"{f.path}{name} is missing", "give the kind of each layer")
        return list(default)
    for k in listed:
        if k not in _ATTENTION | _RECURRENT:
            raise f.error(f"{f.path}{name} holds {k!r}, which is neither attention nor a known recurrence")
    return [k in _ATTENTION for k in listed]


def _every(f: Fields, step: int) -> list[bool]:
    return [(i + 1) % step == 0 for i in range(f.layers)]


def _read(f: Fields, mixers: list[Part], feeds: list[Part], around: Part, *, mtp: bool = False) -> Read:
    parts = [m + ff + around for m, ff in zip(mixers, feeds, strict=True)]
    return Read(group([(label(p), p) for p in parts]), mtp_layer(f, parts[-1], copies=False) if mtp else ())


def qwen_next(f: Fields, t: Traits) -> Read:
    """Qwen3-Next, Qwen3.5 and later: gated delta nets, every fourth layer gated attention; MTP with attention."""
    step = f.whole("full_attention_interval", default=4, high=4096)
    attends = kinds(f, _every(f, step))
    full = attention(
        read_shape(
            f,
            qkv_bias=flag(f, t.qkv_bias),
            o_bias=flag(f, t.o_bias),
            qk_norm="head",
            output_gate=f.flag("attn_output_gate", default=True),
        )
    )
    recurrent = gdn(f) if not all(attends) else Part()
    feeds, around = feed_forwards(f, t), norms(f.hidden, 2)
    parts = [(full if a else recurrent) + ff + around for a, ff in zip(attends, feeds, strict=True)]
    return Read(group([(label(p), p) for p in parts]), mtp_layer(f, full + feeds[-1] + around, copies=False))


def kimi_linear(f: Fields, t: Traits) -> Read:
    """Kimi-Linear, Kimi-K3: KDA, every fourth layer MLA without positions; layers are listed counting from one."""
    linear = f.mapping("linear_attn_config")
    n = f.layers
    if linear is None:
        step = f.whole("layer_group_size", "full_attention_interval", default=4)
        attends = kinds(f, _every(f, step))
        heads = f.whole("linear_num_heads", default=f.heads)
        head_dim = f.whole("linear_head_dim", "head_dim")
        kernel = f.whole("linear_conv_kernel_dim", "short_conv_kernel_size", default=4, high=1000)
        full_gate = False
    else:
        listed = linear.items("full_attn_layers", int)
        if listed is None:
            raise linear.error(f"{linear.path}full_attn_layers is missing")
        if any(not 1 <= i <= n for i in listed):
            raise linear.error(f"{linear.path}full_attn_layers names a layer outside 1 to {n}")
        attends = [i + 1 in set(listed) for i in range(n)]
        heads, head_dim = linear.whole("num_heads"), linear.whole("head_dim")
        kernel = linear.whole("short_conv_kernel_size", default=4, high=1000)
        full_gate = linear.flag("use_full_rank_gate", default=False)
    full = mla(f, output_gate=f.flag("mla_use_output_gate", default=False))
    recurrent = kda(f, heads=heads, head_dim=head_dim, kernel=kernel, full_gate=full_gate)
    return _read(f, [full if a else recurrent for a in attends], feed_forwards(f, t), norms(f.hidden, 2))


def bailing(f: Fields, t: Traits) -> Read:
    """Ling-3: KDA with full-rank gates, every sixth layer MLA with one gate per head."""
    attends = kinds(f, _every(f, f.whole("layer_group_size", default=6)))
    heads, head_dim = f.heads, f.whole("head_dim", default=128)
    kernel = f.whole("short_conv_kernel_size", default=4, high=1000)
    full = mla(f)
    full += Part((Linear("g_proj", "attn", f.hidden, f.heads, "column", f.heads),))
    recurrent = kda(f, heads=heads, head_dim=head_dim, kernel=kernel, full_gate=True, full_forget=True)
    feeds, around = feed_forwards(f, t), norms(f.hidden, 2)
    return _read(f, [full if a else recurrent for a in attends], feeds, around)


def glm_next(f: Fields, t: Traits) -> Read:
    """GLM-5.3-Flash: KDA, every fourth layer sparse MLA without rope; several residual streams (hyper-connections)."""
    attends = kinds(f, _every(f, 4))
    own = index_layers(f)
    nested = f.mapping("linear_attn_config")
    heads = (nested or f).whole("linear_num_heads", "num_heads")
    head_dim = (nested or f).whole("linear_head_dim", "head_dim")
    kernel = (nested or f).whole("linear_conv_kernel_dim", "short_conv_kernel_size", default=4, high=1000)
    recurrent = kda(f, heads=heads, head_dim=head_dim, kernel=kernel)
    full = [mla(f, indexer=o, index_cache=o) + (_pooled(f) if o else Part()) for o in own]
    feeds = feed_forwards(f.over(first_k_dense_replace=f.whole("first_k_dense_replace", default=3, low=0)), t)
    streams = f.whole("hc_mult", default=1, high=64)
    around = norms(f.hidden, 2) + hyper_connections(f.hidden, streams, count=2)
    read = _read(f, [full[i] if a else recurrent for i, a in enumerate(attends)], feeds, around)
    approximate = (
        ("index keys counted per token: pooling by index_kpool is not modelled",) if f.has("index_kpool") else ()
    )
    return Read(read.layers, approximate=approximate)


def _pooled(f: Fields) -> Part:
    """The small gate that pools `index_kpool` index keys into one."""
    pool, dim = f.whole("index_kpool", default=1, high=10**6), f.whole("index_head_dim")
    if pool <= 1:
        return Part()
    return Part((Linear("kpool_gate", "indexer", f.hidden, dim, "replicated"),), other_params=pool * dim)


def hyper_connections(hidden: int, streams: int, *, count: int) -> Part:
    """Manifold-constrained hyper-connections: per sub-layer a small map over `streams` residual streams (mHC)."""
    if streams <= 1:
        return Part()
    outputs = (2 + streams) * streams
    return Part(other_params=count * (streams * hidden * outputs + outputs + 3))


def hyper_head(hidden: int, streams: int) -> int:
    """Parameters of the map that merges the streams before the head."""
    return streams * streams * hidden + streams + 1 if streams > 1 else 0


def nemotron_h(f: Fields, t: Traits) -> Read:
    """Nemotron-H and Nemotron-3: every layer is one thing (Mamba-2, attention, MLP or MoE) with one norm."""
    parts = {
        "mamba": lambda: mamba2(
            f,
            heads=f.whole("mamba_num_heads"),
            head_dim=f.whole("mamba_head_dim"),
            state_dim=f.whole("ssm_state_size"),
            groups=f.whole("n_groups", default=1),
            kernel=f.whole("conv_kernel", default=4, high=1000),
            conv_bias=f.flag("use_conv_bias", default=True),
            proj_bias=f.flag("use_bias", "mamba_proj_bias", default=False),
        ),
        "attention": lambda: attention(
            read_shape(
                f,
                default_head_dim=128,
                qkv_bias=f.flag("attention_bias", default=False),
                o_bias=f.flag("attention_bias", default=False),
            )
        ),
        "mlp": lambda: mlp(f.hidden, f.whole("intermediate_size"), gated=False, bias=f.flag("mlp_bias", default=False)),
        "moe": lambda: moe(read_moe(f, gated=False, router_bias=True)),
    }
    letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}

    def layers(pattern: str, listed: str) -> list[str] | None:
        names = f.items(listed, str)
        if names is None and f.has(pattern):
            if len(f.text(pattern)) > MOST_LAYERS:
                raise f.error(f"{f.path}{pattern} has {len(f.text(pattern))} letters, more than any model has layers")
            names = [letters.get(c, c) for c in f.text(pattern) if c != "|"]
        unknown = sorted(set(names or ()) - set(parts))
        if unknown:
            raise f.error(f"{f.path}{listed} (or {pattern}) holds {unknown[0]!r}, not one of {', '.join(parts)}")
        return names

    names = layers("hybrid_override_pattern", "layers_block_type")
    if not names:
        raise f.error(f"{f.path}hybrid_override_pattern (or layers_block_type) is missing")
    if f.has("num_hidden_layers") and f.layers != len(names):
        raise f.error(f"{f.path}hybrid_override_pattern has {len(names)} layers, num_hidden_layers is {f.layers}")
    made = {k: parts[k]() + norms(f.hidden, 1) for k in dict.fromkeys(names)}
    mtp_names = layers("mtp_hybrid_override_pattern", "mtp_layers_block_type") if f.has(*MTP_NAMES) else None
    mtp = []
    if mtp_names and f.whole(*MTP_NAMES, default=0, low=0, high=64):
        mtp = [parts[k]() + norms(f.hidden, 1) for k in mtp_names] * f.whole(*MTP_NAMES, high=64)
        join = Part((Linear("eh_proj", "other", 2 * f.hidden, f.hidden, "replicated", quantisable=False),))
        mtp[0] += join + norms(f.hidden, 3)
    return Read(group([(k, made[k]) for k in names]), group([("mtp", p) for p in mtp], first_index=len(names)))


def _mamba_of(f: Fields) -> Part:
    """Mamba-2 with the field names of Bamba, Granite-4 and Falcon-H1."""
    heads = f.whole("mamba_n_heads")
    inner = f.whole("mamba_d_ssm", default=f.whole("mamba_expand", default=2) * f.hidden)
    head_dim = f.raw("mamba_d_head")
    if head_dim in (None, "auto"):
        dim = f.divided(inner, heads, f"{f.path}mamba inner width by mamba_n_heads")
    else:
        dim = f.whole("mamba_d_head")
    return mamba2(
        f,
        heads=heads,
        head_dim=dim,
        state_dim=f.whole("mamba_d_state"),
        groups=f.whole("mamba_n_groups", default=1),
        kernel=f.whole("mamba_d_conv", default=4, high=1000),
        conv_bias=f.flag("mamba_conv_bias", default=True),
        proj_bias=f.flag("mamba_proj_bias", "projectors_bias", default=False),
        norm=f.flag("mamba_rms_norm", default=True),
    )


def granite(f: Fields, t: Traits) -> Read:
    """Granite-4: Mamba-2 and attention; a shared MLP in every layer, and experts where there are any."""
    attends = kinds(f, name="layers_block_type" if f.has("layers_block_type") else "layer_types")
    bias = f.flag("attention_bias", default=False)
    full = attention(read_shape(f, qkv_bias=bias, o_bias=bias)) if any(attends) else Part()
    recurrent = _mamba_of(f) if not all(attends) else Part()
    width = f.whole("shared_intermediate_size", default=0, low=0)
    if f.whole("num_local_experts", default=0, low=0):
        feed = moe(read_moe(f))
    else:
        feed = mlp(f.hidden, width or f.whole("intermediate_size"), where="shared_expert")
    return _read(f, [full if a else recurrent for a in attends], [feed] * f.layers, norms(f.hidden, 2))


def bamba(f: Fields, t: Traits) -> Read:
    """Bamba: Mamba-2, attention at listed layers, dense MLPs."""
    listed = set(f.items("attn_layer_indices", int) or ())
    bias = f.flag("attention_bias", default=False)
    full = attention(read_shape(f, qkv_bias=bias, o_bias=bias))
    recurrent = _mamba_of(f)
    feed = mlp(f.hidden, f.whole("intermediate_size"), bias=f.flag("mlp_bias", default=False))
    return _read(
        f, [full if i in listed else recurrent for i in range(f.layers)], [feed] * f.layers, norms(f.hidden, 2)
    )


def falcon_h1(f: Fields, t: Traits) -> Read:
    """Falcon-H1: Mamba-2 and attention side by side in every layer, then an MLP. Counted as two half layers."""
    bias = f.flag("attention_bias", default=False)
    first = attention(read_shape(f, qkv_bias=bias, o_bias=bias)) + norms(f.hidden, 1)
    feed = mlp(f.hidden, f.whole("intermediate_size"), bias=f.flag("mlp_bias", default=False))
    second = _mamba_of(f.over(mamba_rms_norm=f.flag("mamba_rms_norm", default=False))) + feed + norms(f.hidden, 1)
    halves = [("full half", first), ("mamba2+dense half", second)] * f.layers
    said = ("attention and Mamba run side by side: each layer counts as two, one after the other",)
    return Read(group(halves), approximate=said)


def lfm2(f: Fields, t: Traits) -> Read:
    """LFM2: gated short convolutions and grouped attention; dense layers first, then experts in the MoE variant."""
    default = None
    if f.has("full_attn_idxs"):
        listed = set(f.items("full_attn_idxs", int) or ())
        default = [i in listed for i in range(f.layers)]
    attends = kinds(f, default)
    full = attention(read_shape(f, qk_norm="head"))
    recurrent = shortconv(
        f, kernel=f.whole("conv_L_cache", default=3, high=1000), bias=f.flag("conv_bias", default=False)
    )
    if not f.has("moe_intermediate_size"):
        width = f.whole("block_ff_dim", "intermediate_size")
        if f.flag("block_auto_adjust_ff_dim", default=True):
            # The class shrinks the given width to two thirds, scales it and rounds it up.
            width = int(2 * width / 3)
            width = int(f.number("block_ffn_dim_multiplier", default=1.0) * width)
            multiple = f.whole("block_multiple_of", default=256)
            width = -(-width // multiple) * multiple
        feeds = [mlp(f.hidden, width)] * f.layers
    else:
        feeds = feed_forwards(f, t)
    return _read(f, [full if a else recurrent for a in attends], feeds, norms(f.hidden, 2))


def minimax_text(f: Fields, t: Traits) -> Read:
    """MiniMax-Text-01 and M1: lightning attention, every eighth layer softmax attention, experts everywhere."""
    listed = f.items("attn_type_list", int, length=f.layers)
    attends = [x == 1 for x in listed] if listed is not None else kinds(f, _every(f, 8))
    full = attention(read_shape(f))
    shape = read_shape(f)
    recurrent = lightning(f, heads=shape.heads, head_dim=shape.head_dim)
    feed = moe(read_moe(f))
    return _read(f, [full if a else recurrent for a in attends], [feed] * f.layers, norms(f.hidden, 2))
