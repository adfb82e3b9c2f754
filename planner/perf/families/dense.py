"""Softmax attention with its own K and V (MHA, GQA, MQA) and the plain feed-forward network.

    q: hidden -> heads x head_dim     k, v: hidden -> kv_heads x head_dim     o: heads x v_head_dim -> hidden
    mlp: hidden -> width (twice where gated) -> hidden

Sources: class definitions in transformers 5.24.0, checked against the element counts of the published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.perf.arch import Attention, Group, Linear
from planner.perf.families.base import Fields, Part

QkNorm = Literal["none", "head", "full", "per_head"]
"""No norm on q and k; one scale per element of a head, shared by heads; one over all heads at once; one row per
head. The last two have as many parameters, heads x head_dim."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What one softmax attention layer is made of, whatever the config calls it."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window_tokens: int | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: QkNorm = "none"
    output_gate: bool = False
    """The query projection also makes an element-wise gate on the output (Qwen3-Next): twice as wide."""
    head_gate: bool = False
    """One gate per head from a small matrix of its own (Step, Laguna)."""
    sinks: bool = False
    """One learned sink logit per head (gpt-oss)."""
    k_is_v: bool = False
    """No value projection: values are the keys (Gemma-4's global layers). The cache still holds both."""
    shares_kv: bool = False
    norm_bias: bool = False


def attention(s: AttentionShape) -> Part:
    q_out = s.heads * s.head_dim * (2 if s.output_gate else 1)
    linears = [Linear("q_proj", "attn", s.hidden, q_out, "column", s.heads, bias=s.qkv_bias)]
    if not s.shares_kv:
        linears.append(_kv("k_proj", s, s.head_dim))
        if not s.k_is_v:
            linears.append(_kv("v_proj", s, s.v_head_dim))
    if s.head_gate:
        linears.append(Linear("g_proj", "attn", s.hidden, s.heads, "column", s.heads))
    linears.append(Linear("o_proj", "attn", s.heads * s.v_head_dim, s.hidden, "row", s.heads, bias=s.o_bias))
    kv_norm_heads = 0 if s.shares_kv else s.kv_heads
    norm = {
        "none": 0,
        "head": s.head_dim * (1 if s.shares_kv else 2),
        "full": (s.heads + kv_norm_heads) * s.head_dim,
        "per_head": (s.heads + kv_norm_heads) * s.head_dim,
    }[s.qk_norm]
    mixer = Attention(s.heads, s.kv_heads, s.head_dim, s.v_head_dim, s.window_tokens, s.shares_kv)
    return Part(
        tuple(linears),
        mixer=mixer,
        norm_params=norm * (2 if s.norm_bias else 1),
        other_params=s.heads if s.sinks else 0,
    )


def _kv(name: str, s: AttentionShape, head_dim: int) -> Linear:
    out = s.kv_heads * head_dim
    return Linear(name, "attn", s.hidden, out, "column", s.kv_heads, bias=s.qkv_bias, replicate_units=True)


def read_shape(
    f: Fields,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    qk_norm: QkNorm = "none",
    window_tokens: int | None = None,
    sinks: bool = False,
    output_gate: bool = False,
    forced_kv: int | None = None,
    default_head_dim: int | None = None,
    norm_bias: bool = False,
) -> AttentionShape:
    """Heads and widths as nearly every config gives them."""
    heads = f.heads
    kv_heads = forced_kv or f.whole(
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "multi_query_group_num",
        "num_attention_groups",
        default=heads,
    )
    if heads % kv_heads:
        raise f.error(f"{heads} attention heads do not divide into {kv_heads} KV heads")
    head_dim = f.whole_or_none("head_dim", "attention_head_dim", "kv_channels", high=10**5)
    if head_dim is None:
        head_dim = default_head_dim
    if head_dim is None:
        head_dim = f.divided(f.hidden, heads, f"{f.path}hidden_size by num_attention_heads (no head_dim given)")
    return AttentionShape(
        hidden=f.hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=f.whole("v_head_dim", default=head_dim, high=10**5),
        window_tokens=window_tokens,
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        qk_norm=qk_norm,
        sinks=sinks,
        output_gate=output_gate,
        norm_bias=norm_bias,
    )


def mlp(hidden: int, width: int, *, gated: bool = True, bias: bool = False, where: Group = "dense_mlp") -> Part:
    """A feed-forward network; without a gate there are two matrices instead of three."""
    up = [Linear("up_proj", where, hidden, width, "column", bias=bias)]
    if gated:
        up.insert(0, Linear("gate_proj", where, hidden, width, "column", bias=bias))
    return Part((*up, Linear("down_proj", where, width, hidden, "row", bias=bias)))
