"""How much one replica carries under its promises, on a fixed grid of rates.

A search that stops anywhere within its tolerance is not monotone: a looser promise could come out a hair below a
stricter one and cost a GPU. On a grid the answer is the largest rate that holds, whatever the search did.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.candidates.candidate import Load
from planner.intent.slo import Slo
from planner.perf.load import LoadModel

STEPS = 200
"""Between nothing and the load cap: half a percent of the cap each."""
STEPS_ABOVE = 8
"""Between the load cap and the degraded cap: nothing is planned there, so coarser."""


@dataclass(frozen=True, slots=True)
class Promises:
    """What one side of a class group must hold, with headroom."""

    slos: dict[str, tuple[Slo, ...]]
    margins: dict[str, float]

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset(s.metric for own in self.slos.values() for s in own)

    def miss(self, model: LoadModel, rate_rps: float) -> bool:
        """Whether any promise fails at this rate."""
        if rate_rps >= model.lambda_max * 0.9999:
            return True
        return model.evaluate(rate_rps, metrics=self.metrics).misses(self.slos, self.margins) > 0


def carried(model: LoadModel, promises: Promises, *, load_cap: float, degraded_cap: float) -> Load:
    """Planned and degraded rates of one replica.

    planned  = largest grid rate up to load_cap x lambda_max at which every promise holds
    degraded = the same, up to degraded_cap x lambda_max
    """
    top = model.lambda_max
    cap, most = load_cap * top, degraded_cap * top
    found = model.capacity(load_cap=load_cap, margins=promises.margins, slos=promises.slos, beyond_cap=False)
    if found.planned_per_s < cap:
        k = min(STEPS - 1, int(found.planned_per_s / cap * STEPS))
        while k + 1 < STEPS and not promises.miss(model, cap * (k + 1) / STEPS):
            k += 1
        planned = cap * k / STEPS
        return Load(top, planned, planned, min(planned, most), found.bound_by)
    degraded = min(cap, most)
    if most > cap:
        low = STEPS_ABOVE
        if promises.metrics and promises.miss(model, most):
            low, high = 0, STEPS_ABOVE
            while high - low > 1:
                middle = (low + high) // 2
                missed = promises.miss(model, cap + (most - cap) * middle / STEPS_ABOVE)
                low, high = (low, middle) if missed else (middle, high)
        degraded = cap + (most - cap) * low / STEPS_ABOVE
    return Load(top, max(cap, degraded) if promises.metrics else top, cap, degraded, found.bound_by)
