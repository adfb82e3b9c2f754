"""Bursty arrivals: how much gamma gaps with a coefficient of variation cluster, seen from a queue's own time scale.

A burst that is long beside a queue's memory hardly counts as one: gaps with CV 4 look like batches of 8.5 requests to a
queue that remembers minutes, and like nearly single requests to one that forgets within a gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_ROUNDS = 8


def clustering(*, cv: float, rate_per_s: float, decay_per_s: float) -> float:
    """Mean size of the batches in which gamma gaps seem to arrive to a queue that forgets at rate `decay_per_s`.

    m = 1 + phi / (1 - phi) - lambda / mu,  phi = E exp(-mu gap) = (1 + mu cv^2 / lambda)^(-1 / cv^2)

    Exact twice over: the variance of the number in GI/M/infinity is m times its mean (mu: rate at which a service
    ends), and Poisson batches of geometric size m give a single server's wait the same exponential decay mu as these
    gaps do. 1 for Poisson arrivals, (1 + cv^2) / 2 for a queue that never forgets, below 1 for gaps more even than
    Poisson's.

    >>> f"{clustering(cv=1, rate_per_s=5, decay_per_s=2):.3f}, {clustering(cv=3, rate_per_s=5, decay_per_s=1e-6):.3f}"
    '1.000, 5.000'
    """
    if cv == 1.0:
        return 1.0
    x = decay_per_s / rate_per_s
    if x < 1e-6:
        return (1 + cv**2) / 2
    log_phi = -x if cv < 1e-3 else -math.log1p(x * cv**2) / cv**2
    return 1 + 1 / math.expm1(min(-log_phi, 700.0)) - 1 / x


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The streams of several classes: their gaps' CVs and their shares of the requests."""

    cvs: tuple[float, ...]
    shares: tuple[float, ...]

    def variability(self, rate_per_s: float, decay_per_s: float, *, members: Sequence[int] | None = None) -> float:
        """Index of dispersion of the superposed streams at this time scale: 2 m - 1, weighted with their rates.

        rate_per_s: of all classes together, also where only some of them (`members`) are asked about.
        """
        which = range(len(self.cvs)) if members is None else members
        parts = [
            (
                self.shares[i],
                2 * clustering(cv=self.cvs[i], rate_per_s=rate_per_s * self.shares[i], decay_per_s=decay_per_s) - 1,
            )
            for i in which
        ]
        return math.fsum(s * v for s, v in parts) / math.fsum(s for s, _ in parts)

    def queueing(
        self, rate_per_s: float, *, mean_s: float, square_s2: float, members: Sequence[int] | None = None
    ) -> float:
        """Index of dispersion as the queue of a single server feels it; mean and square of the members' service times.

        Kingman: the wait decays at mu = 2 (1 - rho) / (E[S] (c + c_s)), and c is taken at that mu: a fixed point.
        """
        which = range(len(self.cvs)) if members is None else members
        if mean_s <= 0 or all(self.cvs[i] == 1.0 for i in which):
            return 1.0
        free = max(1 - rate_per_s * math.fsum(self.shares[i] for i in which) * mean_s, 0.02)
        spread = max(square_s2 / mean_s**2 - 1, 0.0)
        c = 1.0
        for _ in range(_ROUNDS):
            c = self.variability(rate_per_s, 2 * free / (mean_s * max(c + spread, 1e-3)), members=members)
        return c
