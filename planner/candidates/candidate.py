"""What the solver chooses among: a shape on one kind of GPU with its caps, what it costs and what it carries.

`candidates` enumerates and evaluates; `solve` only selects. Nothing in a candidate changes after it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from planner.perf.deployment import Deployment

if TYPE_CHECKING:  # the solver never looks inside
    from planner.perf.memory import Memory


@dataclass(frozen=True, slots=True)
class Prediction:
    """One figure of one class at the planned rate: value, 80% band, and the method that gave it."""

    class_name: str
    metric: str
    """`itl.p99`, `ttft.mean`, ..."""
    value_s: float
    low_s: float
    high_s: float
    method: str


@dataclass(frozen=True, slots=True)
class Caps:
    """Batch caps as they are rendered."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    gpu_memory_utilization: float


@dataclass(frozen=True, slots=True)
class Load:
    """What one replica carries and how it looks while it does."""

    lambda_max_rps: float
    """Stability limit, requests/s over the class mix."""
    lambda_slo_rps: float
    """Highest rate at which every SLO of every class holds with its margin, looked for up to the degraded cap; 0 where
    none does."""
    planned_rps: float
    """min(load_cap x lambda_max, lambda_slo)."""
    degraded_rps: float
    """min(degraded_cap x lambda_max, lambda_slo): what it may carry after a failure. Not looked for above the planned
    rate where the service has nothing to survive."""
    binding: str
    """What limits the planned rate: `load-cap`, or an SLO's key with its class, e.g. `chat itl.p99`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kind of replica for one class group of one service on one fleet pool."""

    service: str
    class_names: tuple[str, ...]
    role: Literal["aggregated", "prefill", "decode"]
    fleet_pool: str
    deployment: Deployment
    caps: Caps
    memory: Memory
    load: Load
    gpus: int
    nodes: int
    """Whole nodes a multi-node replica takes; 0 where it shares a node."""
    dollars_per_hour: float
    """Price of one replica's GPUs (0 where committed)."""
    accuracy_prior: float | None
    best_s: dict[str, float] = field(default_factory=dict, compare=False)
    """Per `class metric.stat`, the least value this candidate reaches at any rate: for infeasibility reports."""
    rejected_by: tuple[str, ...] = ()
    """Rules that this candidate fails on its own (codes); the solver drops it unless a rule is switched off."""

    @property
    def key(self) -> str:
        """Stable name, e.g. `h100-prod h100-sxm tp4 fp8 b2048 s96`; ties are broken by it."""
        caps = self.caps
        prefix = key_prefix(self.fleet_pool, self.deployment)
        return f"{prefix} b{caps.max_num_batched_tokens} s{caps.max_num_seqs} {self.role}"


def key_prefix(fleet_pool: str, d: Deployment) -> str:
    """A candidate's key without its caps and role."""
    return f"{fleet_pool} {d.hardware.gpu_id} {d.shape.label} {d.precision} kv-{d.kv_dtype}"
