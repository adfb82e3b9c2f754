"""kv-transfer: prefill hands the prompt's KV cache to decode over RDMA.

    use[p, d] = 0    unless both pools have RDMA, and both sides agree on checkpoint and KV format

Without RDMA the hand-over goes through host memory and TCP, and what it adds to TTFT is nobody's to promise. Engines
also refuse a hand-shake between different models or KV dtypes; TP may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.candidates.candidate import Candidate
from planner.solve.question import Clause, Question, Relaxation


def can_hand_over(prefill: Candidate, decode: Candidate, *, rdma_needed: bool = True) -> bool:
    """Whether this pair can be a pattern."""
    p, d = prefill.deployment, decode.deployment
    agree = (p.precision, p.kv_dtype, p.engine, p.engine_version) == (
        d.precision,
        d.kv_dtype,
        d.engine,
        d.engine_version,
    )
    return agree and (not rdma_needed or (p.hardware.rdma and d.hardware.rdma))


@dataclass(frozen=True, slots=True)
class KvTransfer:
    code: str = "kv-transfer"

    def clauses(self, question: Question) -> tuple[Clause, ...]:
        # Where aggregated pools are allowed too, a missing network takes a choice away but never the last one.
        needs = any(wanted_pools(a.service.pools, a.service.fixed.pools) == "disaggregated" for a in question.asks)
        return (Clause(self.code, None),) if needs and not all(p.rdma for p in question.fleet.pools) else ()

    def off(self, question: Question, clause: Clause) -> Question:
        return question.with_fleet(
            question.fleet.model_copy(
                update={"pools": tuple(p.model_copy(update={"rdma": True}) for p in question.fleet.pools)}
            )
        )

    def relax(
        self, question: Question, clause: Clause, feasible: Callable[[Question], bool | None]
    ) -> Relaxation | None:
        """RDMA on one pool, the first by name that is enough; else on all of them."""
        for i, pool in enumerate(question.fleet.pools):
            if pool.rdma:
                continue
            pools = list(question.fleet.pools)
            pools[i] = pool.model_copy(update={"rdma": True})
            relaxed = question.with_fleet(question.fleet.model_copy(update={"pools": tuple(pools)}))
            if feasible(relaxed):
                return Relaxation(f"enable RDMA in pool {pool.name} (rdma: true)", relaxed, question)
        relaxed = self.off(question, clause)
        if feasible(relaxed):
            return Relaxation("enable RDMA in every pool (rdma: true)", relaxed, question)
        return None


def wanted_pools(pools: str, fixed: str | None) -> str:
    """`auto`, `aggregated` or `disaggregated`: the fixed choice wins."""
    return fixed or pools
