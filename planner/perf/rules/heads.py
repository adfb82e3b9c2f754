"""heads: attention, KV and state heads over tensor-parallel ranks.

    query heads % tp = 0          KV heads % tp = 0, or tp % KV heads = 0 (then each is kept tp / heads times)
    state heads % tp = 0          B/C groups % tp = 0, or one group (kept on every rank)

MLA has one latent for all heads: it stands whole on every rank and sets no limit of its own.
Sources: vllm 0.33.0 config/model.py and QKVParallelLinear; mamba_mixer2.py; sglang 0.5.23 the same.
"""

from __future__ import annotations

from planner.perf.arch import Attention, Recurrent
from planner.perf.rules.base import Layout


class Heads:
    code = "heads"

    def check(self, layout: Layout) -> str | None:
        tp = layout.shape.tp
        for g in layout.groups:
            heads = getattr(g.mixer, "q_heads", None)
            if heads is not None and heads % tp:
                return f"{heads} attention heads do not divide by tp {tp}"
        return None


class KvHeads:
    code = "kv-heads"

    def check(self, layout: Layout) -> str | None:
        tp = layout.shape.tp
        for g in layout.groups:
            if isinstance(g.mixer, Attention) and g.mixer.kv_heads % tp and tp % g.mixer.kv_heads:
                return f"{g.mixer.kv_heads} KV heads neither divide by tp {tp} nor repeat evenly over it"
        return None


class StateHeads:
    code = "state-heads"

    def check(self, layout: Layout) -> str | None:
        tp = layout.shape.tp
        for g in layout.groups:
            m = g.mixer
            if not isinstance(m, Recurrent):
                continue
            if m.heads % tp:
                return f"{m.heads} heads of the {m.kind} state do not divide by tp {tp}"
            if m.groups is not None and m.groups != 1 and m.groups % tp:
                return f"{m.groups} groups of the {m.kind} layers do not divide by tp {tp}"
            for x in g.linears:
                # A gated delta net has fewer key heads than value heads; both are split.
                if x.group == "linear_attn" and x.units and x.units % tp and not x.replicate_units:
                    return f"{x.units} key heads of the {m.kind} layers do not divide by tp {tp}"
        return None
