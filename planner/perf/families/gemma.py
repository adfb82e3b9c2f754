"""Gemma-4: two kinds of attention with different head sizes, keys that serve as values, layers that reuse an earlier
cache, embeddings per layer, and experts beside a dense network.

Global layers have `global_head_dim` and their own number of KV heads, and with `attention_k_eq_v` no value
projection (the cache still holds K and V). The last `num_kv_shared_layers` have no K and V of their own.
"""

from __future__ import annotations

from planner.perf.arch import Linear
from planner.perf.families.base import Fields, Part, group, norms
from planner.perf.families.decoder import Read, Traits, label
from planner.perf.families.dense import AttentionShape, attention, mlp
from planner.perf.families.moe import moe, read_moe


def gemma4(f: Fields, t: Traits) -> Read:
    h, n = f.hidden, f.layers
    listed = f.items("layer_types", str, length=n)
    sliding = [k == "sliding_attention" for k in listed] if listed else [(i + 1) % 6 != 0 for i in range(n)]
    sliding[-1] = False  # the class makes the last layer global whatever the list says
    shared_from = n - f.whole("num_kv_shared_layers", default=0, low=0, high=n)
    double = f.flag("use_double_wide_mlp", default=False)
    beside = _beside(f)
    parts = []
    for i in range(n):
        reuses = i >= shared_from
        width = f.whole("intermediate_size") * (2 if double and reuses else 1)
        feed = mlp(h, width) + norms(h, 4) + Part(other_params=1)
        parts.append(attention(_shape(f, sliding=sliding[i], reuses=reuses)) + feed + beside)
    layers = group([(label(p), p) for p in parts])
    per_layer = f.whole("hidden_size_per_layer_input", default=0, low=0)
    extra, said = 0, tuple[str, ...]()
    if per_layer:
        # A second table, looked up like an embedding, and the projection that feeds it to the layers.
        rows = f.whole("vocab_size_per_layer_input", default=f.whole("vocab_size"))
        extra = n * per_layer * (rows + h) + per_layer
        said = ("the per-layer embedding table counts as active and as held by every GPU",)
    return Read(layers, extra_params=extra, approximate=said)


def _shape(f: Fields, *, sliding: bool, reuses: bool) -> AttentionShape:
    head_dim, kv = f.whole("head_dim", default=256), f.whole("num_key_value_heads", default=f.heads)
    k_is_v = False
    if not sliding:
        head_dim = f.whole("global_head_dim", default=512)
        # The unified class has no flag and always lets global layers differ.
        k_is_v = f.flag("attention_k_eq_v", default=False)
        if f.has("num_global_key_value_heads") and k_is_v:
            kv = f.whole("num_global_key_value_heads")
    if f.heads % kv:
        raise f.error(f"{f.heads} attention heads do not divide into {kv} KV heads")
    bias = f.flag("attention_bias", default=False)
    return AttentionShape(
        hidden=f.hidden,
        heads=f.heads,
        kv_heads=kv,
        head_dim=head_dim,
        v_head_dim=head_dim,
        window_tokens=f.whole("sliding_window", default=512) if sliding else None,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        k_is_v=k_is_v,
        shares_kv=reuses,
    )


def _beside(f: Fields) -> Part:
    """What some variants add to every layer: experts with their own norms, and the per-layer input."""
    h = f.hidden
    part = Part()
    if f.flag("enable_moe_block", default=False):
        routed = moe(read_moe(f))
        # The router scales its input per element and its output per expert.
        part += routed + norms(h, 3) + Part(other_params=h + (routed.moe.experts if routed.moe else 0))
    if per_layer := f.whole("hidden_size_per_layer_input", default=0, low=0):
        gate = Linear("per_layer_input_gate", "other", h, per_layer, "replicated")
        back = Linear("per_layer_projection", "other", per_layer, h, "replicated")
        part += Part((gate, back)) + norms(h, 1)
    return part
