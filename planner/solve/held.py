"""The last look at a chosen plan: every promise within its limit at the rate each replica is really given.

Planned rates hold on a grid of rates; a plan gives its replicas any rate up to the planned one, and prefill and decode
apart are certified side by side. What misses its limit all the same is cut below the rate where it did, and the
question is solved again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.plan.solution import ChosenPool
from planner.solve.question import Cut, Question

# Each round takes a twentieth off; what still misses after so many is left out.
MOST_CUTS = 6
_LESS = 0.95
# A limit is met to within rounding.
_ROUNDING = 1e-9


def broken(question: Question, pools: Mapping[str, Sequence[ChosenPool]]) -> tuple[Cut, ...]:
    """Cuts for what misses a promise at its rate; none where the plan keeps them all."""
    found = []
    for ask in question.asks:
        limits = {(name, s.key): s.limit_s for name, _ in ask.rates for s in ask.slos_of(name)}
        for pool in pools[ask.name]:
            if any(lift.raises(pool.candidate) for lift in question.lifts):
                continue  # The simulation, not the closed form, vouches for it.
            if any(
                p.value_s > limits[p.class_name, p.metric] * (1 + _ROUNDING)
                for p in pool.predictions
                if (p.class_name, p.metric) in limits
            ):
                key, group = pool.candidate.key, pool.candidate.class_names
                before = sum((c.service, c.key, c.class_names) == (ask.name, key, group) for c in question.cuts)
                rate = pool.rate_rps / pool.replicas
                found.append(Cut(ask.name, key, rate * _LESS if before < MOST_CUTS else 0.0, group))
    return tuple(found)
