"""Layers with a fixed state per sequence instead of a cache: Mamba-2, gated delta net, KDA, lightning attention and
short convolutions.

The recurrence of one token updates and reads a state of heads x key_dim x value_dim: decay, outer product added, and
query product, about 6 operations per state element. States are kept in float32 (`mamba_ssm_dtype`), the tail of the
short convolution (kernel - 1 inputs) in the model's own precision.
"""

from __future__ import annotations

from typing import Final

from planner.perf.arch import Linear, Recurrent
from planner.perf.families.base import Fields, Part

FLOP_PER_STATE_ELEMENT = 6
G: Final = "linear_attn"
_DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


def _state_dtype_bytes(f: Fields) -> float:
    named = f.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype", default="float32").removeprefix("torch.")
    if named not in _DTYPE_BYTES:
        raise f.error(f"state precision {named!r} is not one of {', '.join(_DTYPE_BYTES)}")
    return _DTYPE_BYTES[named]


def gdn(f: Fields) -> Part:
    """Gated delta net (Qwen3-Next, Qwen3.5 and later): grouped keys, one decay and one strength per value head."""
    h = f.hidden
    k_heads, v_heads = f.whole("linear_num_key_heads"), f.whole("linear_num_value_heads")
    dk, dv = f.whole("linear_key_head_dim"), f.whole("linear_value_head_dim")
    kernel = f.whole("linear_conv_kernel_dim", default=4, high=1000)
    if v_heads % k_heads:
        raise f.error(f"{v_heads} linear value heads do not divide into {k_heads} key heads")
    conv = 2 * k_heads * dk + v_heads * dv
    linears = (
        Linear("in_proj_qkv", G, h, conv, "column", k_heads),
        Linear("in_proj_z", G, h, v_heads * dv, "column", v_heads),
        Linear("in_proj_b", G, h, v_heads, "column", v_heads),
        Linear("in_proj_a", G, h, v_heads, "column", v_heads),
        Linear("out_proj", G, v_heads * dv, h, "row", v_heads),
    )
    state = v_heads * dk * dv
    mixer = Recurrent(
        "gdn",
        v_heads,
        state,
        conv * (kernel - 1),
        float(FLOP_PER_STATE_ELEMENT * state),
        state_dtype_bytes=_state_dtype_bytes(f),
    )
    # Convolution, decay rate and time-step bias per head; a gated norm over one value head.
    return Part(linears, mixer=mixer, norm_params=dv, other_params=conv * kernel + 2 * v_heads)


def kda(
    f: Fields, *, heads: int, head_dim: int, kernel: int, full_gate: bool = False, full_forget: bool = False
) -> Part:
    """Kimi delta attention: a delta net whose decay is per channel. Gates are low rank unless `full_*`."""
    h, d = f.hidden, heads * head_dim

    def gate(name: str, full: bool) -> list[Linear]:
        if full:
            return [Linear(f"{name}_proj", G, h, d, "column", heads)]
        return [
            Linear(f"{name}_a_proj", G, h, head_dim, "replicated"),
            Linear(f"{name}_b_proj", G, head_dim, d, "column", heads),
        ]

    linears = [Linear(n, G, h, d, "column", heads) for n in ("q_proj", "k_proj", "v_proj")]
    linears += [*gate("f", full_forget), Linear("b_proj", G, h, heads, "column", heads), *gate("g", full_gate)]
    linears.append(Linear("o_proj", G, d, h, "row", heads))
    state = heads * head_dim * head_dim
    mixer = Recurrent(
        "kda",
        heads,
        state,
        3 * d * (kernel - 1),
        float(FLOP_PER_STATE_ELEMENT * state),
        state_dtype_bytes=_state_dtype_bytes(f),
    )
    return Part(tuple(linears), mixer=mixer, norm_params=head_dim, other_params=3 * d * kernel + d + heads)


def mamba2(
    f: Fields,
    *,
    heads: int,
    head_dim: int,
    state_dim: int,
    groups: int,
    kernel: int,
    conv_bias: bool = True,
    proj_bias: bool = False,
    norm: bool = True,
) -> Part:
    """Mamba-2: one projection makes gate, input, B, C and time step; B and C are shared by the heads of a group."""
    h, inner, shared = f.hidden, heads * head_dim, 2 * groups * state_dim
    linears = (
        Linear("in_proj", G, h, 2 * inner + heads, "column", heads, bias=proj_bias),
        # B and C: the same matrix in the checkpoint, but groups are replicated where there are more ranks than groups.
        Linear("in_proj", G, h, shared, "column", groups, bias=proj_bias, replicate_units=True),
        Linear("out_proj", G, inner, h, "row", heads, bias=proj_bias),
    )
    state = heads * head_dim * state_dim
    mixer = Recurrent(
        "mamba2",
        heads,
        state,
        (inner + shared) * (kernel - 1),
        float(FLOP_PER_STATE_ELEMENT * state),
        groups=groups,
        conv_group_elements=shared * (kernel - 1),
        state_dtype_bytes=_state_dtype_bytes(f),
    )
    conv = (inner + shared) * (kernel + (1 if conv_bias else 0))
    return Part(linears, mixer=mixer, norm_params=inner if norm else 0, other_params=conv + 3 * heads)


def lightning(f: Fields, *, heads: int, head_dim: int) -> Part:
    """Lightning attention (MiniMax-Text-01): plain linear attention with a fixed decay and an output gate."""
    h, d = f.hidden, heads * head_dim
    linears = (
        Linear("qkv_proj", G, h, 3 * d, "column", heads),
        Linear("output_gate", G, h, d, "column", heads),
        Linear("out_proj", G, d, h, "row", heads),
    )
    state = heads * head_dim * head_dim
    mixer = Recurrent("lightning", heads, state, 0, float(FLOP_PER_STATE_ELEMENT * state))
    return Part(linears, mixer=mixer, norm_params=d)


def shortconv(f: Fields, *, kernel: int, bias: bool) -> Part:
    """Gated short convolution (LFM2): no recurrence, only the last kernel - 1 inputs are kept."""
    h = f.hidden
    linears = (
        Linear("in_proj", G, h, 3 * h, "column", h, bias=bias),
        Linear("out_proj", G, h, h, "row", h, bias=bias),
    )
    mixer = Recurrent("shortconv", h, 0, h * (kernel - 1), float(2 * h * kernel))
    return Part(linears, mixer=mixer, other_params=h * (kernel + (1 if bias else 0)))
