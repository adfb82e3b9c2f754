"""Sparse attention with layouts of its own: MiniMax-M3 (blocks of keys), Mistral-Large-4 (latents shared between
layers), dots3-note (sparse latents and windowed latents of another size)."""

from __future__ import annotations

from dataclasses import replace

from planner.perf.arch import Attention, Linear, Mla
from planner.perf.families.base import Fields, Part, group, norms
from planner.perf.families.decoder import Read, Traits, dense_mlp, feed_forwards, label
from planner.perf.families.dense import attention, read_shape
from planner.perf.families.mla import index_layers, mla
from planner.perf.families.moe import moe, moe_layers, read_moe


def minimax_m3(f: Fields, t: Traits) -> Read:
    """MiniMax-M3: grouped attention; in most layers an indexer picks the best blocks of keys (128 tokens each)."""
    nested = f.mapping("sparse_attention_config")
    s = nested or f
    n = f.layers
    if nested is not None and nested.has("sparse_attention_freq"):
        sparse = [x != 0 for x in nested.items("sparse_attention_freq", int, length=n) or []]
    else:
        listed = f.items("layer_types", str, length=n) or ["full_attention"] * n
        sparse = [k == "minimax_m3_sparse" for k in listed]
    full = attention(read_shape(f, qk_norm="head"))
    mixers = [full] * n
    if any(sparse):
        index_heads = s.whole("sparse_num_index_heads", "index_n_heads")
        index_dim = s.whole("sparse_index_dim", "index_head_dim")
        block = s.whole("sparse_block_size", "index_block_size")
        blocks = s.whole("sparse_topk_blocks", "index_topk_blocks")
        assert isinstance(full.mixer, Attention)
        mixer = replace(full.mixer, topk_tokens=block * blocks, indexer_heads=index_heads, indexer_dim=index_dim)
        indexer = (
            Linear("index_q_proj", "indexer", f.hidden, index_heads * index_dim, "replicated"),
            Linear("index_k_proj", "indexer", f.hidden, index_dim, "replicated"),
        )
        picked = Part(full.linears + indexer, mixer, None, full.norm_params + 2 * index_dim, full.other_params)
        mixers = [picked if x else full for x in sparse]
    experts = moe(read_moe(f, router_bias=True))
    dense = dense_mlp(f, replace(t, dense_width=("dense_intermediate_size", "intermediate_size")))
    feeds = [experts if x else dense for x in moe_layers(f)]
    around = norms(f.hidden, 2)
    parts = [m + ff + around for m, ff in zip(mixers, feeds, strict=True)]
    left_out = ("multi-token-prediction layers: their shape is not known for this class",)
    said = ("index keys of the sparse layers are counted as FP8 with one scale, as DeepSeek's",)
    return Read(
        group([(label(p), p) for p in parts]),
        left_out=left_out if f.has("num_mtp_modules") else (),
        approximate=said if any(sparse) else (),
    )


def mistral_large4(f: Fields, t: Traits) -> Read:
    """Mistral-Large-4: MLA without query compression, some layers without rope, latents and selections shared."""
    n, h = f.layers, f.hidden
    sources = f.items("kv_source_layers", int, length=n) or list(range(n))
    if any(not 0 <= s <= i for i, s in enumerate(sources)):
        raise f.error(f"{f.path}kv_source_layers must name an earlier layer or the layer itself")
    roped = f.items("no_rope_layers", int, length=n)
    if roped is None:
        every = f.whole("no_rope_layer_interval", default=4)
        roped = [int((i + 1) % every != 0) for i in range(n)]
    own_index = index_layers(f)
    rope, nope = f.whole("qk_rope_head_dim", low=0), f.whole("qk_nope_head_dim", low=0)
    feeds, around = feed_forwards(f, t), norms(h, 2)
    parts = []
    for i in range(n):
        fields = f if roped[i] else f.over(qk_rope_head_dim=0, qk_nope_head_dim=nope + rope)
        part = mla(fields.over(q_lora_rank=None), indexer=own_index[i], index_cache=own_index[i])
        # A norm in front of the index queries, and a learned temperature (scale and bias) per head.
        extra = Part(norm_params=2 * h) if own_index[i] else Part()
        extra += Part(other_params=_temperatures(f, own_index[i]))
        if sources[i] != i:
            part = _borrowed(part)
        parts.append(part + extra + feeds[i] + around)
    # The rope frequencies are learned, once for all layers.
    return Read(group([(label(p), p) for p in parts]), extra_params=rope // 2)


def _temperatures(f: Fields, indexed: bool) -> int:
    return 2 * (f.heads + (f.whole("index_n_heads") if indexed else 0))


def _borrowed(part: Part) -> Part:
    """The same layer reading an earlier layer's latents: no projection to them, no norm, no cache."""
    m = part.mixer
    assert isinstance(m, Mla)
    kept = tuple(x for x in part.linears if x.name != "kv_a_proj_with_mqa")
    return Part(kept, replace(m, shares_kv=True), None, part.norm_params - m.kv_lora_rank, part.other_params)


def dots3(f: Fields, t: Traits) -> Read:
    """dots3-note: sparse MLA layers, and windowed MLA layers with sizes of their own (`swa_*`)."""
    n = f.layers
    listed = f.items("layer_types", str, length=n)
    if listed is None:
        listed = ["full_attention" if i < 2 or i % 4 == 1 else "sliding_attention" for i in range(n)]
    window = f.whole("sliding_window", "sliding_window_size", default=512)
    head_dim = f.whole("swa_head_dim", default=256)
    nope = f.whole("swa_qk_nope_head_dim", default=192)
    small = f.over(
        num_attention_heads=f.whole("swa_num_attention_heads", default=64),
        q_lora_rank=f.whole("swa_q_lora_rank", default=1024),
        kv_lora_rank=f.whole("swa_kv_lora_rank", default=1024),
        qk_nope_head_dim=nope,
        qk_rope_head_dim=f.whole("swa_qk_rope_head_dim", default=head_dim - nope, low=0),
        v_head_dim=f.whole("swa_v_head_dim", default=128),
        index_topk=None,
    )
    made = {}
    for kind in dict.fromkeys(listed):
        sliding = kind == "sliding_attention"
        fields = small if sliding else f
        part = mla(fields, indexer=not sliding)
        if sliding:
            assert isinstance(part.mixer, Mla)
            part = replace(part, mixer=replace(part.mixer, window_tokens=window))
        # One output gate per head, and a norm on the rope part of the key.
        gate = Linear("g_proj", "attn", fields.hidden, fields.heads, "column", fields.heads)
        made[kind] = part + Part((gate,), norm_params=fields.whole("qk_rope_head_dim", low=0))
    feeds, around = feed_forwards(f, t), norms(f.hidden, 2)
    parts = [made[k] + ff + around for k, ff in zip(listed, feeds, strict=True)]
    return Read(group([(label(p), p) for p in parts]))
