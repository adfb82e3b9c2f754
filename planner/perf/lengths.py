"""Length distributions in tokens: what a class of requests brings in and asks for.

One value per distribution, with mean, quantiles, seeded samples and a small weighted grid (strata with their exact
means, finer in the tail) on which the closed forms of `load` do their sums. Lognormal is the default spread: real
prompts and answers are right-skewed, and two figures (mean and one percentile or the CV) fix it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import UserError
from planner.intent.document import Lengths

Floats = NDArray[np.float64]

_NORMAL = NormalDist()
UNBOUNDED_QUANTILE = 0.999
"""Where a lognormal without `max` is cut: an engine needs a finite context limit, and a request in a thousand is
clipped to it rather than refused."""


def normal_cdf(x: Any) -> Floats:
    """Standard normal CDF of an array (Abramowitz and Stegun 7.1.26; absolute error below 1.5e-7).

    >>> [round(float(v), 4) for v in normal_cdf([-1.96, 0.0, 2.326])]
    [0.025, 0.5, 0.99]
    """
    z = np.asarray(x, dtype=np.float64) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * np.abs(z))
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    half = poly * np.exp(-z * z) / 2
    return np.where(z >= 0, 1 - half, half)


@lru_cache(maxsize=32)
def strata_edges(count: int) -> tuple[float, ...]:
    """Probability edges of `count` strata: even up to 0.9, then halving towards 1, because tails set percentiles."""
    if count < 8:
        return tuple(i / count for i in range(count + 1))
    tail = (0.95, 0.975, 0.99, 0.996, 0.999, 1.0)
    body = count - len(tail)
    return (*(0.9 * i / body for i in range(body)), 0.9, *tail)


@dataclass(frozen=True, slots=True)
class Constant:
    """Every request has the same length."""

    tokens: float

    @property
    def mean(self) -> float:
        return self.tokens

    @property
    def second_moment(self) -> float:
        return self.tokens**2

    @property
    def longest(self) -> float:
        return self.tokens

    def quantile(self, q: float) -> float:
        return self.tokens

    def sample(self, rng: np.random.Generator, count: int) -> Floats:
        return np.full(count, float(max(1, round(self.tokens))))

    def grid(self, count: int) -> tuple[Floats, Floats]:
        return np.array([self.tokens]), np.array([1.0])


@dataclass(frozen=True, slots=True)
class Lognormal:
    """exp(mu + sigma Z), clipped to [1, longest]."""

    mu: float
    sigma: float
    longest: float

    @property
    def mean(self) -> float:
        return _clipped_moment(self.mu, self.sigma, self.longest, 1)

    @property
    def second_moment(self) -> float:
        return _clipped_moment(self.mu, self.sigma, self.longest, 2)

    def quantile(self, q: float) -> float:
        if q >= 1:
            return self.longest
        return min(self.longest, max(1.0, math.exp(self.mu + self.sigma * _NORMAL.inv_cdf(max(q, 1e-12)))))

    def sample(self, rng: np.random.Generator, count: int) -> Floats:
        raw = np.exp(self.mu + self.sigma * rng.standard_normal(count))
        clipped: Floats = np.clip(np.rint(raw), 1, max(1, math.floor(self.longest)))
        return clipped

    def grid(self, count: int) -> tuple[Floats, Floats]:
        edges = strata_edges(count)
        # E[X; X below its quantile q] = E[X] Phi(z_q - sigma): strata means are exact.
        z = np.array([-40.0, *(_NORMAL.inv_cdf(q) for q in edges[1:-1]), 40.0])
        full = math.exp(self.mu + self.sigma**2 / 2)
        weights = np.diff(np.array(edges))
        values = full * np.diff(normal_cdf(z - self.sigma)) / weights
        values = np.clip(values, 1, self.longest)
        return values * (self.mean / float(values @ weights)), weights


@dataclass(frozen=True, slots=True)
class Histogram:
    """Given lengths with given weights; also what a trace's marginal becomes."""

    tokens: tuple[float, ...]
    weights: tuple[float, ...]
    """Sum to 1, lengths ascending."""

    @property
    def mean(self) -> float:
        return math.fsum(t * w for t, w in zip(self.tokens, self.weights, strict=True))

    @property
    def second_moment(self) -> float:
        return math.fsum(t * t * w for t, w in zip(self.tokens, self.weights, strict=True))

    @property
    def longest(self) -> float:
        return self.tokens[-1]

    def quantile(self, q: float) -> float:
        total = 0.0
        for t, w in zip(self.tokens, self.weights, strict=True):
            total += w
            if total >= q - 1e-12:
                return t
        return self.tokens[-1]

    def sample(self, rng: np.random.Generator, count: int) -> Floats:
        at = np.searchsorted(np.cumsum(self.weights), rng.random(count), side="right")
        found: Floats = np.rint(np.array(self.tokens)[np.minimum(at, len(self.tokens) - 1)])
        return found

    def grid(self, count: int) -> tuple[Floats, Floats]:
        if len(self.tokens) <= count:
            return np.array(self.tokens), np.array(self.weights)
        return _strata(np.array(self.tokens), np.array(self.weights), count)


Distribution = Constant | Lognormal | Histogram


def _strata(values: Floats, weights: Floats, count: int) -> tuple[Floats, Floats]:
    """Ascending weighted values -> at most `count` strata with their exact means."""
    middle = np.cumsum(weights) - weights / 2
    cell = np.searchsorted(np.array(strata_edges(count)[1:-1]), middle / weights.sum(), side="right")
    w = np.bincount(cell, weights=weights, minlength=count)
    v = np.bincount(cell, weights=weights * values, minlength=count)
    keep = w > 0
    return v[keep] / w[keep], w[keep] / weights.sum()


def _clipped_moment(mu: float, sigma: float, longest: float, power: int) -> float:
    """E[min(X, longest)^power] of a lognormal: the part below, and the atom at the cut."""
    if sigma == 0:
        return min(math.exp(mu), longest) ** power
    z = (math.log(longest) - mu) / sigma
    return math.exp(power * mu + (power * sigma) ** 2 / 2) * _NORMAL.cdf(z - power * sigma) + longest**power * (
        1 - _NORMAL.cdf(z)
    )


def lognormal_sigma(*, mean: float, percentile: float, quantile: float) -> float:
    """sigma of the lognormal with this mean and percentile.

    ln(percentile / mean) = z sigma - sigma^2 / 2, the smaller root (the larger one has its mass near zero)

    >>> round(lognormal_sigma(mean=3000, percentile=8000, quantile=0.95), 3)
    0.782
    """
    if quantile == 0.5:
        return math.sqrt(2 * math.log(mean / percentile))
    z, ratio = _NORMAL.inv_cdf(quantile), math.log(percentile / mean)
    if ratio > z * z / 2:
        raise UserError(
            "lengths",
            f"no lognormal has a p{quantile * 100:g} of {percentile:g} with a mean of {mean:g}",
            None,
            (f"at most {math.exp(z * z / 2):.3g} times the mean is possible",),
            ("give a histogram or a trace",),
        )
    return z - math.sqrt(z * z - 2 * ratio)


def distribution(spec: Lengths) -> Distribution:
    """What the intent says about a length -> a distribution. The mean holds after the cut at `max`."""
    if spec.histogram is not None:
        cap = float(spec.max) if spec.max is not None else math.inf
        merged: dict[float, float] = {}
        for tokens, weight in spec.histogram:
            key = min(float(tokens), cap)
            merged[key] = merged.get(key, 0.0) + weight
        total = math.fsum(merged.values())
        order = sorted(merged)
        return Histogram(tuple(order), tuple(merged[t] / total for t in order))
    assert spec.mean is not None
    if spec.cv is not None:
        sigma = math.sqrt(math.log1p(spec.cv**2))
    else:
        named = [
            (q, v) for q, v in ((0.5, spec.p50), (0.9, spec.p90), (0.95, spec.p95), (0.99, spec.p99)) if v is not None
        ]
        sigma = lognormal_sigma(mean=spec.mean, percentile=named[0][1], quantile=named[0][0]) if named else 0.0
    if spec.max is not None and spec.max < spec.mean:
        raise UserError(
            "lengths", f"max {spec.max} is below the mean {spec.mean:g}", None, (), ("raise max or lower the mean",)
        )
    if sigma == 0:
        return Constant(float(spec.mean))
    mu = math.log(spec.mean) - sigma**2 / 2
    unbounded = math.exp(mu + sigma * _NORMAL.inv_cdf(UNBOUNDED_QUANTILE))
    longest = math.ceil(unbounded) if spec.max is None else spec.max
    # The cut takes mass away from the mean: move mu until the mean is the one that was asked for.
    low, high = mu, mu + 1.0
    while _clipped_moment(high, sigma, longest, 1) < spec.mean and high < mu + 60:
        high += 1.0
    for _ in range(60):
        mid = (low + high) / 2
        low, high = (mid, high) if _clipped_moment(mid, sigma, longest, 1) < spec.mean else (low, mid)
    return Lognormal(high, sigma, float(longest))
