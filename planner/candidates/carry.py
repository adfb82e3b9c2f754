"""How much one replica carries under its promises, on a fixed grid of rates.

A search that stops anywhere within its tolerance is not monotone: a looser promise could come out a hair below a
stricter one and cost a GPU. On a grid the answer is the largest rate that holds, whatever way the search took.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from planner.candidates.candidate import Load
from planner.intent.slo import Slo
from planner.perf.load import LoadModel, LoadResult

STEPS = 200
"""Between nothing and the load cap: half a percent of the cap each."""
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


@dataclass(slots=True)
class Probe:
    """One replica asked about rates; each rate is evaluated once."""

    model: LoadModel
    promises: Promises
    _found: dict[float, LoadResult] = field(default_factory=dict)

    def result(self, rate_rps: float) -> LoadResult:
        found = self._found.get(rate_rps)
        if found is None:
            found = self._found[rate_rps] = self.model.evaluate(rate_rps, metrics=self.promises.metrics)
        return found

    def excess(self, rate_rps: float) -> float:
        """Largest figure x (1 + margin) over limit, minus 1: every promise holds where it is not above 0."""
        if rate_rps >= self.model.lambda_max * 0.9999:
            return math.inf
        if not self.promises.metrics:
            return -1.0
        return self.result(rate_rps).misses(self.promises.slos, self.promises.margins)

    def miss(self, rate_rps: float) -> bool:
        return self.excess(rate_rps) > 0

    @property
    def idle_rps(self) -> float:
        return self.model.lambda_max * IDLE_RATIO

    def best_s(self) -> dict[str, float]:
        """The least value of every promised figure, headroom included."""
        margins = self.promises.margins
        return {
            f"{c.name} {s.key}": c.value(s) * (1 + margins.get(s.metric, 0.0))
            for c in self.result(self.idle_rps).classes
            for s in self.promises.slos.get(c.name, ())
        }

    def binding(self, rate_rps: float) -> str:
        """The promise that is nearest to its limit (or furthest past it)."""
        margins = self.promises.margins
        ratios = [
            (c.value(s) * (1 + margins.get(s.metric, 0.0)) / s.limit_s, f"{c.name} {s.key}")
            for c in self.result(rate_rps).classes
            for s in self.promises.slos.get(c.name, ())
        ]
        return max(ratios)[1] if ratios else "load-cap"


def carried(probe: Probe, *, load_cap: float, degraded_cap: float) -> Load:
    """Planned and degraded rates of one replica.

    planned  = largest grid rate up to load_cap x lambda_max at which every promise holds
    degraded = the same, up to degraded_cap x lambda_max
    """
    top = probe.model.lambda_max
    cap, most = load_cap * top, degraded_cap * top
    if probe.miss(cap):
        if probe.miss(probe.idle_rps):
            return Load(top, 0.0, 0.0, 0.0, probe.binding(probe.idle_rps))
        k = _last_step(probe, cap)
        planned = cap * k / STEPS
        past = cap * (k + 1) / STEPS
        return Load(top, planned, planned, min(planned, most), probe.binding(min(past, top * 0.9998)))
    degraded = min(cap, most)
    if most > cap:
        low = STEPS_ABOVE
        if probe.miss(most):
            low, high = 0, STEPS_ABOVE
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if probe.miss(cap + (most - cap) * middle / STEPS_ABOVE) else (middle, high)
        degraded = cap + (most - cap) * low / STEPS_ABOVE
    return Load(top, max(cap, degraded) if probe.promises.metrics else top, cap, degraded, "load-cap")


def _last_step(probe: Probe, cap: float) -> int:
    """The last step of the grid where every promise holds, given that the cap misses and an idle replica does not.

    False position on log(figure / limit) with the usual damping of the end that stays (Illinois), rounded to whole
    steps; every second time the middle, so that a curve that bends sharply costs no more than bisection twice over.
    """
    low, high = 0, STEPS
    at_low = math.log(max(1 + probe.excess(probe.idle_rps), 1e-9))
    at_high = _log(probe.excess(cap))
    turn = 0
    while high - low > 1:
        share = at_low / (at_low - at_high) if math.isfinite(at_high) and at_high > at_low else 0.5
        k = (low + high) // 2 if turn % 3 == 2 else low + round((high - low) * share)
        k = min(max(k, low + 1), high - 1)
        excess = probe.excess(cap * k / STEPS)
        if excess > 0:
            high, at_high = k, _log(excess)
        else:
            low, at_low = k, math.log(max(1 + excess, 1e-9))
        turn += 1
    return low


def _log(excess: float) -> float:
    return math.log(1 + excess) if math.isfinite(excess) else math.inf
