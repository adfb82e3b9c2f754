"""experts: expert parallelism and attention data parallelism.

    both need a mixture of experts        EP ranks = tp x dp, at most one rank per expert
    sglang 0.5.23: experts % EP ranks = 0 (vLLM deals an uneven rest out, determine_expert_map)

A dense model's copies are replicas of their own: nothing is shared between them.
"""

from __future__ import annotations

from planner.perf.rules.base import Layout


class Experts:
    code = "experts"

    def check(self, layout: Layout) -> str | None:
        s, arch = layout.shape, layout.arch
        if not arch.moe:
            if s.ep:
                return f"{arch.name} has no experts to spread (expert parallelism)"
            if s.dp > 1:
                return f"{arch.name} has no experts for attention data parallelism to share"
            return None
        if not s.ep:
            return None
        ranks = s.tp * s.dp
        for g in layout.groups:
            if g.moe is None:
                continue
            if ranks > g.moe.experts:
                return f"{g.moe.experts} experts do not fill {ranks} expert-parallel ranks"
            if layout.engine == "sglang" and g.moe.experts % ranks:
                return f"{g.moe.experts} experts do not divide by {ranks} expert-parallel ranks, as sglang needs"
        return None
