"""Synthetic step tables and classes shared by the tests of load model and simulation."""

from __future__ import annotations

from typing import Literal

from planner.intent.document import Lengths
from planner.intent.slo import parse_slo
from planner.perf.lengths import Distribution, distribution
from planner.perf.pool import PoolSpec
from planner.perf.table import Curve, StepTable
from planner.perf.traffic import ClassLoad, JointLengths, PrefixHits


def additive(*, base_s: float = 6e-3, token_s: float = 0.0325e-3, context_s: float = 5e-8) -> StepTable:
    """step = base + token_s x tokens + context_s x context tokens: about an 8B model on an H100 (queueing notes)."""
    linear = Curve((0.0, 1.0), (base_s, base_s + token_s))
    return StepTable(linear, linear, (1,), (Curve((0.0, 1.0), (0.0, context_s)),), Curve((0.0, 1.0), (0.0, 0.0)))


def bent() -> StepTable:
    """A table with every kind of bend: padded batches, windows, quadratic prompts."""
    return StepTable(
        Curve((1.0, 8.0, 9.0, 16.0, 64.0), (5e-3, 5.1e-3, 5.6e-3, 5.7e-3, 8e-3)),
        Curve((1.0, 64.0, 512.0, 2048.0), (7e-3, 8e-3, 20e-3, 70e-3)),
        (1, 8, 32),
        (
            Curve((0.0, 300.0, 4000.0), (1e-5, 4e-5, 9e-5)),
            Curve((0.0, 300.0, 4000.0), (1e-5, 3e-5, 7e-5)),
            Curve((0.0, 500.0, 4000.0), (1e-5, 2e-5, 6e-5)),
        ),
        Curve((0.0, 1e5, 4e6), (0.0, 4e-4, 3e-2)),
    )


def lengths(mean: float, cv: float = 0.0, **more: int) -> Distribution:
    return distribution(Lengths(mean=mean, cv=cv, **more))


def traffic(
    isl: float,
    osl: float,
    *,
    cv: float = 1.0,
    out_cv: float | None = None,
    rate: float = 1.0,
    slo: tuple[str, ...] = (),
    share: float = 0.0,
    name: str = "chat",
    arrivals_cv: float = 1.0,
) -> ClassLoad:
    joint = JointLengths(lengths(isl, cv), lengths(osl, cv if out_cv is None else out_cv))
    return ClassLoad(name, rate, joint, PrefixHits(share=share), arrivals_cv, tuple(parse_slo(s) for s in slo))


def conversation(
    *,
    routing: Literal["round-robin", "affinity"] = "affinity",
    turns: float = 6,
    think_s: float = 20.0,
    isl: float = 600,
    osl: float = 200,
    cv: float = 1.0,
    thinking: float = 0.0,
    rate: float = 1.0,
    arrivals_cv: float = 1.0,
    name: str = "talk",
) -> ClassLoad:
    joint = JointLengths(lengths(isl, cv), lengths(osl, cv), lengths(thinking) if thinking else None, turns)
    return ClassLoad(name, rate, joint, PrefixHits(routing=routing), arrivals_cv, think_time_s=think_s)


def pool(**changes: object) -> PoolSpec:
    return PoolSpec(additive(), 128, 2048, 1e9).with_(**changes)
