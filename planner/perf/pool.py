"""One replica as the load model and the simulation see it: a step table, caps, a cache, a scheduler."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from planner.errors import UserError
from planner.perf.table import Curve, StepTable

Role = Literal["aggregated", "prefill", "decode"]
Scheduler = Literal["decode-first", "prefill-first"]


@dataclass(frozen=True, slots=True)
class Drafting:
    """Speculative decoding: `tokens` drafted per step, each accepted with probability `acceptance` given those before.

    draft_s: time the drafts of one step take (the verification is in the step table).
    """

    tokens: int
    acceptance: float
    draft_s: float = 0.0

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens one verification yields: the accepted drafts and one of the target's own.

        E = 1 + a + a^2 + ... + a^k = (1 - a^(k+1)) / (1 - a)

        >>> round(Drafting(tokens=3, acceptance=0.7).tokens_per_step, 3)
        2.533
        """
        a = self.acceptance
        return (1 - a ** (self.tokens + 1)) / (1 - a)


@dataclass(frozen=True, slots=True)
class Handover:
    """Moving a prompt's KV cache from a prefill to a decode replica."""

    bytes_per_token: float
    """Of one replica, all its GPUs together."""
    bytes_per_s: float
    """NIC bandwidth of the slower side, all its GPUs together, one direction."""
    bytes_per_sequence: float = 0.0
    """Recurrent state."""
    latency_s: float = 0.005
    """Fixed cost per hand-over: rendezvous of the two engines."""
    rdma: bool = True

    def __post_init__(self) -> None:
        if not self.rdma:
            raise UserError(
                "kv-transfer-needs-rdma",
                "prefill and decode apart need RDMA between their nodes",
                None,
                ("without it the cache moves through host memory and TCP, which no figure here covers",),
                ("set rdma: true for the fleet's pool if its network has it, or use aggregated pools",),
            )
        if self.bytes_per_s <= 0:
            raise UserError(
                "kv-transfer-needs-rdma",
                "prefill and decode apart need a known NIC bandwidth",
                None,
                (),
                ("set nic in the fleet's pool",),
            )

    def seconds(self, prompt_tokens: float) -> float:
        """Time to move one prompt's cache when the link is otherwise idle."""
        return self.latency_s + (self.bytes_per_sequence + self.bytes_per_token * prompt_tokens) / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One replica of a pool; all replicas are alike.

    kv_capacity is in the units of kv_cost (context tokens of one sequence -> units, for windows and states);
    without kv_cost in tokens. A decode-first scheduler (vLLM) fills the budget left by decodes with prefill chunks;
    a prefill-first one (SGLang) runs prefill-only steps while there are prompts it can admit.
    """

    table: StepTable
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_capacity: float
    kv_cost: Curve | None = None
    block_tokens: int = 16
    role: Role = "aggregated"
    scheduler: Scheduler = "decode-first"
    replicas: int = 1
    """Replicas that share the traffic: prefix hits under round-robin depend on it."""
    drafting: Drafting | None = None
    handover: Handover | None = None
    """Prefill: how the caches of its prompts leave, whose blocks stay until then; none: they are free at once."""
    lockstep_ranks: int = 1
    """Attention-DP ranks that advance together; table, caps and capacity are one rank's, the rate is the replica's."""
    longest_tokens: float = math.inf
    """Prompt and answer of the longest request that the engine admits (`max_model_len`)."""

    def __post_init__(self) -> None:
        assert self.max_num_seqs >= 1
        assert self.kv_capacity > 0
        if (
            self.role == "aggregated"
            and self.scheduler == "decode-first"
            and self.max_num_batched_tokens < self.tokens_per_sequence * self.max_num_seqs
        ):
            # vLLM refuses to start like this: decodes alone would overflow the budget.
            raise UserError(
                "token-budget",
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}"
                + (f" x {self.tokens_per_sequence} tokens" if self.drafting else ""),
                None,
                (),
                ("raise the budget or lower max_num_seqs",),
            )

    @property
    def tokens_per_sequence(self) -> int:
        """Tokens that one decoding sequence puts into a step."""
        return 1 + (self.drafting.tokens if self.drafting is not None else 0)

    @property
    def cache_tokens(self) -> float:
        """Tokens of one long sequence that fill the cache: what prefix groups are measured against."""
        if self.kv_cost is None:
            return self.kv_capacity
        per_token = (self.kv_cost(32768.0) - self.kv_cost(0.0)) / 32768
        return self.kv_capacity / max(per_token, 1e-12)

    def cost(self, context_tokens: float) -> float:
        """Cache units of one sequence, whole blocks."""
        blocks = -(-context_tokens // self.block_tokens) * self.block_tokens
        return self.kv_cost(blocks) if self.kv_cost is not None else blocks

    def with_(self, **changes: object) -> PoolSpec:
        return replace(self, **changes)  # type: ignore[arg-type]


__all__ = ["Drafting", "Handover", "PoolSpec", "Role", "Scheduler"]
