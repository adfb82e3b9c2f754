"""DeepSeek-V4: one key-value head of 512 whose cache is a short window plus entries that each stand for 4 or 128
tokens; the finely compressed layers pick their best entries with an indexer; residual streams are mixed by
hyper-connections (mHC); the first layers route by a fixed table.

Read from the class in transformers 5.24.0. Approximate: the compressors' tail buffers (up to one open window of inputs
per layer) are not counted in the cache.
"""

from __future__ import annotations

from planner.perf.arch import CompressedAttention, LayerGroup, Linear
from planner.perf.families.base import Fields, Part, group, norms
from planner.perf.families.decoder import MTP_NAMES, Read, Traits
from planner.perf.families.hybrid import hyper_connections, hyper_head
from planner.perf.families.moe import moe, read_moe

FINE, COARSE = "compressed_sparse_attention", "heavily_compressed_attention"
SAID = ("sequence-compressed caches: the compressors' tail buffers are not counted",)


def deepseek_v4(f: Fields, t: Traits) -> Read:
    h, n = f.hidden, f.layers
    ratios = _ratios(f)
    hashed = _hashed(f)
    streams = f.whole("hc_mult", default=4, high=64)
    around = norms(h, 2) + hyper_connections(h, streams, count=2)
    routed, by_table = moe(read_moe(f, router_bias=True)), moe(read_moe(f, router_bias=False))
    table = f.whole("vocab_size") * f.whole("num_experts_per_tok")
    fine = _fine_ratio(f)
    mixers = {r: _attention(f, r, indexed=r == fine) for r in dict.fromkeys(ratios)}
    parts = []
    for ratio, by_hash in zip(ratios, hashed, strict=True):
        name = f"compressed {ratio}" if ratio else "window"
        parts.append(
            (f"{name}+{'hash ' if by_hash else ''}moe", mixers[ratio] + (by_table if by_hash else routed) + around)
        )
    count = f.whole(*MTP_NAMES, default=0, low=0, high=64)
    mtp: tuple[LayerGroup, ...] = ()
    if count:
        join = [Linear(x, "other", h, h, "replicated", quantisable=False) for x in ("e_proj", "h_proj")]
        tail = Part(tuple(join), norm_params=3 * h, other_params=hyper_head(h, streams))
        mtp = group([("mtp", _attention(f, 0, indexed=False) + routed + around + tail)] * count, first_index=n)
    return Read(
        group(parts),
        mtp,
        extra_params=hyper_head(h, streams),
        table_params=sum(hashed) * table,
        approximate=SAID,
    )


def _fine_ratio(f: Fields) -> int:
    rates = f.mapping("compress_rates")
    return rates.whole(FINE, default=4) if rates else f.whole("compress_rate_csa", default=4)


def _ratios(f: Fields) -> list[int]:
    """Tokens per cached entry and layer; 0 for a layer with its window only."""
    n = f.layers
    given = f.items("compress_ratios", int)
    if given is not None:
        # Entries past the layers belong to the MTP layers.
        if len(given) < n or any(r < 0 for r in given):
            raise f.error(f"{f.path}compress_ratios needs {n} entries of 0 or more")
        return given[:n]
    rates = f.mapping("compress_rates")
    coarse = rates.whole(COARSE, default=128) if rates else f.whole("compress_rate_hca", default=128)
    known = {FINE: _fine_ratio(f), COARSE: coarse, "sliding_attention": 0}
    listed = f.items("layer_types", str)
    if listed is None:
        listed = [COARSE] * min(n, 2) + [FINE if i % 2 else COARSE for i in range(max(n - 2, 0))]
    if len(listed) < n or any(k not in known for k in listed):
        raise f.error(f"{f.path}layer_types needs {n} entries of {', '.join(known)}")
    return [known[k] for k in listed[:n]]


def _hashed(f: Fields) -> list[bool]:
    n = f.layers
    listed = f.items("mlp_layer_types", str)
    if listed is not None:
        if len(listed) < n or set(listed) - {"hash_moe", "moe"}:
            raise f.error(f"{f.path}mlp_layer_types needs {n} entries of hash_moe or moe")
        return [k == "hash_moe" for k in listed[:n]]
    first = f.whole("num_hash_layers", default=3, low=0)
    return [i < first for i in range(n)]


def _attention(f: Fields, ratio: int, *, indexed: bool) -> Part:
    h, heads, d = f.hidden, f.heads, f.whole("head_dim")
    q_lora, groups, o_lora = f.whole("q_lora_rank"), f.whole("o_groups"), f.whole("o_lora_rank")
    per_group = f.divided(heads * d, groups, "attention width by o_groups")
    linears = [
        Linear("wq_a", "attn", h, q_lora, "replicated"),
        Linear("wq_b", "attn", q_lora, heads * d, "column", heads),
        Linear("wkv", "attn", h, d, "replicated"),
        Linear("wo_a", "attn", per_group, groups * o_lora, "column", groups),
        Linear("wo_b", "attn", groups * o_lora, h, "row", groups),
    ]
    norm, other = q_lora + d, heads
    index_heads = index_dim = 0
    topk = None
    if ratio:
        # Finely compressed entries overlap: each token feeds two of them, so the projections are twice as wide.
        width = d * (2 if indexed else 1)
        linears += [Linear(x, "attn", h, width, "replicated") for x in ("compressor_kv", "compressor_gate")]
        norm, other = norm + d, other + ratio * width
    if indexed:
        index_heads, index_dim, topk = f.whole("index_n_heads"), f.whole("index_head_dim"), f.whole("index_topk")
        linears += [
            Linear("wq_b", "indexer", q_lora, index_heads * index_dim, "replicated"),
            Linear("compressor_kv", "indexer", h, 2 * index_dim, "replicated"),
            Linear("compressor_gate", "indexer", h, 2 * index_dim, "replicated"),
            Linear("weights_proj", "indexer", h, index_heads, "replicated", quantisable=False),
        ]
        norm, other = norm + index_dim, other + ratio * 2 * index_dim
    window = f.whole("sliding_window")
    mixer = CompressedAttention(heads, d, window, ratio, topk, index_heads, index_dim)
    return Part(tuple(linears), mixer=mixer, norm_params=norm, other_params=other)
