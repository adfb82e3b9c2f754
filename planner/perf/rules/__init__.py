"""What makes a shape possible or not, before anything is computed about it.

A rule of division looks at the model, its precision and the shape; links and formats also at the GPU and the
engine. Every refusal names its rule and the values that would do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.perf.arch import Attention, Mla, ModelArch, Shape, WeightPlan
from planner.perf.deployment import Deployment
from planner.perf.identity import ByIdentity
from planner.perf.rules.base import LARGEST_TP, Division, Layout, Refusal, some
from planner.perf.rules.blocks import Fp8Block, GroupSize, Widths
from planner.perf.rules.experts import Experts
from planner.perf.rules.formats import formats_run, kv_support, quant_support, supported_formats
from planner.perf.rules.heads import Heads, KvHeads, StateHeads
from planner.perf.rules.links import links

__all__ = [
    "Refusal",
    "check_division",
    "check_shape",
    "kv_support",
    "quant_support",
    "supported_formats",
    "valid_dcps",
    "valid_tps",
]

DIVISIONS: Sequence[Division] = (
    Experts(),
    Heads(),
    KvHeads(),
    StateHeads(),
    Widths(),
    Fp8Block(),
    GroupSize(),
)


def check_shape(d: Deployment) -> tuple[Refusal, ...]:
    """Everything that keeps `d` from running; empty where it can. Memory is `memory.py`'s question."""
    divisions = check_division(d.arch, d.weights, d.shape, engine=d.engine)
    return (*divisions, *links(d), *formats_run(d))


def check_division(arch: ModelArch, weights: WeightPlan, shape: Shape, *, engine: str = "vllm") -> tuple[Refusal, ...]:
    """The rules that hold on any GPU: what divides by what."""
    layout = Layout(arch, weights, shape, engine)
    found = [(rule.code, message) for rule in DIVISIONS if (message := rule.check(layout))]
    return tuple(Refusal(code, message, _would_do(code, layout)) for code, message in found)


def _would_do(code: str, layout: Layout) -> str:
    s = layout.shape
    if code == "experts":
        if not layout.arch.moe:
            return "plain replicas without expert or data parallelism"
        experts = min(g.moe.experts for g in layout.groups if g.moe)
        fits = [n for n in range(1, experts + 1) if experts % n == 0]
        return f"{some(fits, 'tp x dp')}, or experts split by tp"
    ways = [some(_valid_tps(layout, LARGEST_TP))]
    if layout.arch.moe and not s.ep:
        spread = replace(layout, shape=replace(s, ep=True))
        if not any(rule.check(spread) for rule in DIVISIONS):
            ways.append("expert parallelism")
    return ", or ".join(w for w in ways if w) or "no tp does: another checkpoint"


def valid_tps(
    arch: ModelArch,
    weights: WeightPlan,
    *,
    limit: int = LARGEST_TP,
    ep: bool = False,
    dp: int = 1,
    engine: str = "vllm",
) -> tuple[int, ...]:
    """Tensor-parallel sizes up to `limit` that every rule of division lets through."""
    return _valid_tps(Layout(arch, weights, Shape(dp=dp, ep=ep), engine), limit)


_TPS: ByIdentity[tuple[int, ...]] = ByIdentity(1024)


def _valid_tps(layout: Layout, limit: int) -> tuple[int, ...]:
    def look() -> tuple[int, ...]:
        return tuple(tp for tp in range(1, limit + 1) if not any(r.check(layout.with_tp(tp)) for r in DIVISIONS))

    s = layout.shape
    return _TPS.get(layout.arch, (layout.weights, s.dp, s.ep, layout.engine, limit), look)


def valid_dcps(arch: ModelArch, *, tp: int) -> tuple[int, ...]:
    """Decode-context-parallel sizes: the ranks of one TP group that share a sequence's cache between them.

    tp % dcp = 0. MLA: any such. GQA: only the tp / KV heads copies of a head can share, and each query group must
    split: tp > KV heads, dcp <= tp / KV heads, (query heads / KV heads) % dcp = 0. Source: vllm 0.33.0
    config/parallel.py; facts: parallelism.md rule 3. Not combined with recurrent layers.
    """
    sizes = [n for n in range(1, tp + 1) if tp % n == 0]
    for g in arch.layers:
        m = g.mixer
        if isinstance(m, Attention):
            copies = tp // m.kv_heads if tp > m.kv_heads else 1
            per_kv = m.q_heads // m.kv_heads
            sizes = [n for n in sizes if n == 1 or (n <= copies and per_kv % n == 0 and m.window_tokens is None)]
        elif not isinstance(m, Mla):
            sizes = [n for n in sizes if n == 1]
    return tuple(sizes)
