"""Multi-head latent attention: K and V of all heads come from one small latent per token, which is all that is cached.

    q:  hidden -> q_lora -> heads x (nope + rope)   (or straight from hidden)
    kv: hidden -> kv_lora + rope (cached)  -> heads x (nope + v)
    o:  heads x v -> hidden

DeepSeek-V3.2 and GLM-5 (DSA) add an indexer that scores the whole context with a small key per token and lets
attention read the best `index_topk` tokens only. A layer marked "shared" reuses the selection of an earlier one.
"""

from __future__ import annotations

from planner.perf.arch import Linear, Mla
from planner.perf.families.base import Fields, Part


def mla(f: Fields, *, indexer: bool = False, index_cache: bool = True, output_gate: bool = False) -> Part:
    """One MLA layer as DeepSeek, Kimi, GLM, Mistral and Ling write it."""
    hidden, heads = f.hidden, f.heads
    kv_lora = f.whole("kv_lora_rank")
    q_lora = f.whole_or_none("q_lora_rank", low=0) or None
    rope = f.whole("qk_rope_head_dim", low=0)
    nope = f.whole("qk_nope_head_dim", low=0)
    v = f.whole("v_head_dim")
    if rope + nope == 0:
        raise f.error("qk_nope_head_dim and qk_rope_head_dim are both zero")
    q_out = heads * (nope + rope)
    if q_lora:
        linears = [
            Linear("q_a_proj", "attn", hidden, q_lora, "replicated"),
            Linear("q_b_proj", "attn", q_lora, q_out, "column", heads),
        ]
    else:
        linears = [Linear("q_proj", "attn", hidden, q_out, "column", heads)]
    linears += [
        Linear("kv_a_proj_with_mqa", "attn", hidden, kv_lora + rope, "replicated"),
        Linear("kv_b_proj", "attn", kv_lora, heads * (nope + v), "column", heads),
        Linear("o_proj", "attn", heads * v, hidden, "row", heads),
    ]
    if output_gate:
        linears.append(Linear("g_proj", "attn", hidden, heads * v, "column", heads))
    norm = (q_lora or 0) + kv_lora
    topk = f.whole_or_none("index_topk")
    if topk is None:
        return Part(tuple(linears), mixer=Mla(heads, kv_lora, rope, nope, v), norm_params=norm)
    index_heads, index_dim = f.whole("index_n_heads"), f.whole("index_head_dim")
    if indexer:
        linears += [
            Linear("wq_b", "indexer", q_lora or hidden, index_heads * index_dim, "replicated"),
            Linear("wk", "indexer", hidden, index_dim, "replicated"),
            Linear("weights_proj", "indexer", hidden, index_heads, "replicated", quantisable=False),
        ]
        norm += 2 * index_dim  # a layer norm on the index keys: scale and shift
    mixer = Mla(heads, kv_lora, rope, nope, v, topk, index_heads if indexer else 0, index_dim, index_cache)
    return Part(tuple(linears), mixer=mixer, norm_params=norm)


def index_layers(f: Fields) -> list[bool]:
    """Which layers run an indexer of their own (the rest reuse a selection).

    GLM-5.2 lists them (`indexer_types`), or gives a frequency; DeepSeek-V3.2 has one in every layer.
    """
    n = f.layers
    kinds = f.items("indexer_types", str, length=n)
    if kinds is None:
        if f.has("index_topk_pattern"):
            letters = f.text("index_topk_pattern")
            if len(letters) != n or set(letters) - {"F", "S"}:
                raise f.error(f"{f.path}index_topk_pattern must have a letter F or S for each of {n} layers")
            return [c == "F" for c in letters]
        every, offset = f.whole("index_topk_freq", default=1), f.whole("index_skip_topk_offset", default=2, low=0)
        return [max(i - offset + 1, 0) % every == 0 for i in range(n)]
    for k in kinds:
        if k not in ("full", "shared"):
            raise f.error(f"{f.path}indexer_types holds {k!r}, not full or shared")
    return [k == "full" for k in kinds]
