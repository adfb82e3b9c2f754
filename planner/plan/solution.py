"""What the solver answers: which candidates, how many of each, and what was proven."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.candidates.candidate import Candidate, Prediction


@dataclass(frozen=True, slots=True)
class ChosenPool:
    """Replicas of one candidate and the traffic they carry."""

    candidate: Candidate
    replicas: int
    rate_rps: float
    """Over all replicas, at the planned peak."""
    predictions: tuple[Prediction, ...]
    """At that rate."""


@dataclass(frozen=True, slots=True)
class ChosenService:
    """One service's pools: one or two shapes, or prefill and decode."""

    name: str
    pools: tuple[ChosenPool, ...]
    bound_by: tuple[str, ...]
    """Rules without which the answer would be better, each with what it costs, e.g. `survive 1 node: +4 GPUs`."""
    runner_up: str | None
    """The next best pattern and why it lost."""
    why: tuple[str, ...]
    """Short reasons with figures: why this shape, why this budget, why not the neighbour."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The answer and its proof."""

    status: Literal["optimal", "feasible"]
    services: tuple[ChosenService, ...]
    objective: Literal["cost", "gpus", "throughput"]
    value: float
    bound: float
    gap: float
    tie_breaks: bool
    scale: float | None
    """Factor on the classes' mix that is carried, where no rate was given."""
    solver_version: str
    notes: tuple[str, ...] = ()
