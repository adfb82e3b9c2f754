"""What is known about one deployment after reading it: values, and findings by severity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.assess.found import Found
from planner.perf.memory import Memory

Level = Literal["fails", "breaks", "warns", "unknown", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a reviewer should know. `fails`: it will not start; `breaks`: a promise; `unknown`: not readable."""

    level: Level
    flag: str
    """The flag as the user wrote it, or what else is meant; empty for the whole."""
    message: str
    fix: str = ""

    def __str__(self) -> str:
        head = f"{self.flag}: " if self.flag else ""
        return f"{head}{self.message}" + (f"; {self.fix}" if self.fix else "")


@dataclass(frozen=True, slots=True)
class Predicted:
    """One figure of one class with its 80% band, beside its limit where there is one."""

    class_name: str
    metric: str
    value_s: float
    low_s: float
    high_s: float
    limit_s: float | None
    method: str

    @property
    def holds(self) -> bool:
        return self.limit_s is None or self.value_s <= self.limit_s


@dataclass(frozen=True, slots=True)
class Judged:
    """One deployment and what is to be expected of it; None for what could not be computed."""

    found: Found
    service: str | None
    model_id: str | None = None
    precision: str | None = None
    kv_dtype: str | None = None
    gpu: str | None = None
    starts: bool | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    by_default: tuple[str, ...] = ()
    """Caps that nobody gave: the engine's own."""
    memory: Memory | None = None
    kv_sequences: float | None = None
    """At the mean length of the traffic; none without traffic."""
    capacity_rps: float | None = None
    """lambda_max of all replicas: beyond it queues grow without end."""
    within_slo_rps: float | None = None
    """The most that all replicas carry with every promise held, headroom included."""
    rate_rps: float | None = None
    load: float | None = None
    figures: tuple[Predicted, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against it, as far as it was read."""
        return not any(f.level in ("fails", "breaks") for f in self.findings)
