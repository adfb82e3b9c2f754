"""How much one replica carries under its promises, on a fixed grid of rates.

A search that stops anywhere within its tolerance is not monotone: a looser promise could come out a hair below a
stricter one and cost a GPU. On a grid the answer is the largest rate that holds, whatever way the search took.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from planner.candidates.candidate import Load
from planner.intent.slo import Slo
from planner.perf.load import LoadModel

STEPS = 200
"""Between nothing and the load cap: half a percent of the cap each."""
RUNGS = (1, 2, 4, 8, 16, 32, 64, 100, 140, 170, 200)
"""Steps that every replica is asked about, closer where it is nearly idle: there a figure may jump."""
STEPS_ABOVE = 8
"""Between the load cap and the degraded cap: nothing is planned there, so coarser."""
IDLE_RATIO = 1e-3
"""Light enough that nothing queues: what a replica reaches here is the best it ever reaches."""


@dataclass(frozen=True, slots=True)
class Promises:
    """What one side of a class group must hold, with headroom."""

    slos: dict[str, tuple[Slo, ...]]
    margins: dict[str, float]

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset(s.metric for own in self.slos.values() for s in own)


@dataclass(frozen=True, slots=True)
class Asked:
    """One replica under one mix, and every figure it was asked for: a promise changes what is asked, not the answer."""

    model: LoadModel
    found: dict[float, dict[tuple[str, str], float]] = field(default_factory=dict)
    """By rate and (class, `itl.p99`), seconds."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One replica asked about rates; each rate is evaluated once."""

    asked: Asked
    promises: Promises

    @property
    def model(self) -> LoadModel:
        return self.asked.model

    def figures(self, rate_rps: float) -> list[tuple[float, Slo, str]]:
        """Every promised figure with its headroom, its promise, and its class."""
        known = self.asked.found.setdefault(rate_rps, {})
        wanted = [(c, s) for c, own in self.promises.slos.items() for s in own]
        if any((c, s.key) not in known for c, s in wanted):
            result = self.model.evaluate(rate_rps, metrics=self.promises.metrics)
            for c in result.classes:
                known.update({(c.name, s.key): c.value(s) for s in self.promises.slos.get(c.name, ())})
        margins = self.promises.margins
        return [(known[c, s.key] * (1 + margins.get(s.metric, 0.0)), s, c) for c, s in wanted if (c, s.key) in known]

    def excess(self, rate_rps: float) -> float:
        """Largest figure x (1 + margin) over limit, minus 1: every promise holds where it is not above 0."""
        if rate_rps >= self.model.lambda_max * 0.9999:
            return math.inf
        return max((value / slo.limit_s - 1 for value, slo, _ in self.figures(rate_rps)), default=-1.0)

    def miss(self, rate_rps: float) -> bool:
        return self.excess(rate_rps) > 0

    @property
    def idle_rps(self) -> float:
        return self.model.lambda_max * IDLE_RATIO

    def best_s(self) -> dict[str, float]:
        """The least value of every promised figure, headroom included."""
        return {f"{c} {slo.key}": value for value, slo, c in self.figures(self.idle_rps)}

    def binding(self, rate_rps: float) -> str:
        """The promise that is nearest to its limit (or furthest past it)."""
        ratios = [(value / slo.limit_s, f"{c} {slo.key}") for value, slo, c in self.figures(rate_rps)]
        return max(ratios)[1] if ratios else "load-cap"


def carried(probe: Probe, *, load_cap: float, degraded_cap: float, least_rps: float = 0.0) -> Load | None:
    """Planned and degraded rates of one replica.

    planned  = largest grid rate up to load_cap x lambda_max below which every promise holds
    degraded = the same, up to degraded_cap x lambda_max

    A replica is given any rate up to the planned one, and figures do not only grow with it: a prompt in every
    hundredth gap makes p99 of gaps jump, and small batches that crawl through prompts can be worse than larger ones.
    So a promise must hold all the way up. None where less than `least_rps` would be planned (others carry that much).
    """
    top = probe.model.lambda_max
    cap, most = load_cap * top, degraded_cap * top
    if probe.miss(probe.idle_rps):
        return Load(top, 0.0, 0.0, 0.0, probe.binding(probe.idle_rps))
    k = 0
    for past in RUNGS:
        if probe.miss(cap * past / STEPS):
            if cap * past / STEPS <= least_rps:
                return None
            k = _climb(probe, cap / STEPS, k, past)
            planned = cap * k / STEPS
            if planned < least_rps:
                return None
            if k == 0:
                return Load(top, 0.0, 0.0, 0.0, probe.binding(cap / STEPS))
            past_rps = cap * (k + 1) / STEPS
            return Load(top, planned, planned, min(planned, most), probe.binding(min(past_rps, top * 0.9998)))
        k = past
    degraded = min(cap, most)
    if most > cap:
        step = (most - cap) / STEPS_ABOVE
        low = next((i for i in range(STEPS_ABOVE) if probe.miss(cap + step * (i + 1))), STEPS_ABOVE)
        degraded = cap + step * low
    return Load(top, max(cap, degraded) if probe.promises.metrics else top, cap, degraded, "load-cap")


def _climb(probe: Probe, step_rps: float, low: int, high: int) -> int:
    """The last step before the first that misses, where `low` holds and `high` does not.

    Upwards in a few strides, then within the stride that misses: which rates are looked at below a miss depends on
    nothing but the grid, so a looser promise never stops earlier.
    """
    while high - low > 1:
        stride = max(1, (high - low) // 3)
        start, end = low, high
        for k in range(start + stride, end, stride):
            if probe.miss(step_rps * k):
                high = k
                break
            low = k
    return low
