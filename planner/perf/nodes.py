"""Distributions reduced to a few weighted nodes: what the closed forms multiply out."""

from __future__ import annotations

import math

import numpy as np

from planner.perf.lengths import Floats, normal_cdf
from planner.perf.spread import Spread


def sorted_by(by: Floats, carried: Floats) -> tuple[Floats, Floats]:
    order = np.argsort(by, kind="stable")
    return by[order], carried[order]


def strata_of(values: Floats, weights: Floats, count: int) -> tuple[Floats, Floats]:
    """Ascending weighted values -> at most `count` means, with finer strata towards the top."""
    total = weights.sum()
    middle = (np.cumsum(weights) - weights / 2) / total
    edges = np.concatenate([np.linspace(0, 0.9, max(count - 5, 2))[1:], [0.95, 0.98, 0.99, 0.996, 0.999]])
    cell = np.searchsorted(edges, middle)
    w = np.bincount(cell, weights=weights)
    v = np.bincount(cell, weights=weights * values)
    keep = w > 0
    return v[keep] / w[keep], w[keep] / total


def level_nodes(p: Floats, count: int) -> tuple[Floats, Floats]:
    return strata_of(np.arange(len(p), dtype=np.float64), p, count)


def poisson3(mean: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Probabilities of none, one, and more, and the mean of these."""
    none = np.exp(-mean)
    one = mean * none
    more = np.maximum(1 - none - one, 1e-12)
    return none, one, more, np.maximum((mean - one) / more, 2.0)


def size_nodes(values: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Three nodes of a distribution: the means of its lower 70%, the next 25% and the top."""
    v, w = sorted_by(values, weights)
    cell = np.searchsorted(np.array([0.7, 0.95]), np.cumsum(w) - w / 2)
    mass = np.bincount(cell, weights=w, minlength=3)
    mean = np.bincount(cell, weights=w * v, minlength=3) / np.maximum(mass, 1e-12)
    return np.where(mass > 0, mean, float(w @ v)), mass.astype(np.float64)


def spread_nodes(s: Spread, count: int) -> tuple[Floats, Floats]:
    """A spread on a few nodes, finer towards the top."""
    edges = np.concatenate([np.linspace(0, 0.9, count - 5), [0.95, 0.98, 0.99, 0.996, 0.999, 1.0]])
    return np.interp((edges[1:] + edges[:-1]) / 2, s.cumulative, s.values), np.diff(edges)


def exponential_nodes(probability: float, rate_per_s: float) -> tuple[Floats, Floats]:
    """0 with 1 - probability, else an exponential, as strata means."""
    if probability < 1e-6:
        return np.zeros(1), np.ones(1)
    edges = np.array([0, 0.3, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99, 0.997, 1.0])
    tail = 1 - edges
    # E[X; X between quantiles] of Exp(1): (1 - q)(1 - ln(1 - q)) differences.
    part = np.where(tail > 0, tail * (1 - np.log(np.maximum(tail, 1e-300))), 0.0)
    w = np.diff(edges)
    return np.concatenate([[0.0], -np.diff(part) / w / rate_per_s]), np.concatenate(
        [[1 - probability], probability * w]
    )


def gamma_below(at: float, *, mean: Floats, sd: Floats) -> Floats:
    """P(X <= at) of gammas with these moments, by Wilson and Hilferty's cube root, which is near normal.

    >>> round(float(gamma_below(12.0, mean=np.array([10.0]), sd=np.array([2.0]))[0]), 2)
    0.84
    """
    if at <= 0:
        return np.zeros_like(mean)
    k = (np.maximum(mean, 1e-12) / np.maximum(sd, 1e-9)) ** 2
    return normal_cdf((np.cbrt(at / np.maximum(mean, 1e-12)) - (1 - 1 / (9 * k))) * 3 * np.sqrt(k))


def gamma_quantile(mean: float, sd: float, z: float) -> float:
    """Quantile of a gamma by Wilson and Hilferty: k theta (1 - 1/(9k) + z / (3 sqrt k))^3."""
    if mean <= 0 or sd <= 0:
        return max(mean, 0.0)
    k = (mean / sd) ** 2
    return mean * max(1 - 1 / (9 * k) + z / (3 * math.sqrt(k)), 0.0) ** 3
