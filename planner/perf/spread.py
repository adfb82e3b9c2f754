"""A distribution of times as weighted values: what a figure's mean and any percentile are read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.intent.slo import Slo
from planner.perf.lengths import Floats

_EDGE = 0.002
"""Weight at either end of a value that slopes towards its neighbours: all of a light one, the ends of a heavy one."""


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Ascending values with cumulative weights, and how the figure was made."""

    values: Floats
    cumulative: Floats
    mean: float
    method: str

    def quantile(self, q: float) -> float:
        """The value below which a share q of the weight lies, interpolated between neighbours."""
        return float(np.interp(q, self.cumulative, self.values))

    def stat(self, name: str) -> float:
        """`mean`, `p50`, `p99.9` ..."""
        return self.mean if name == "mean" else self.quantile(float(name[1:]) / 100)

    def shifted(self, seconds: float) -> Spread:
        return Spread(self.values + seconds, self.cumulative, self.mean + seconds, self.method)

    def scaled(self, factor: float, method: str | None = None) -> Spread:
        return Spread(self.values * factor, self.cumulative, self.mean * factor, method or self.method)


def spread(values: Any, weights: Any, method: str, *, mean: float | None = None) -> Spread:
    """Weighted values in any order and shape -> Spread."""
    v, w = np.asarray(values, dtype=np.float64).ravel(), np.asarray(weights, dtype=np.float64).ravel()
    if v.size > 2000 and v.min() > 0:
        # Sorting is what figures cost most: 600 logarithmic bins (with their exact means) are as good and cheaper.
        logs = np.log(v)
        low, high = logs.min(), logs.max()
        cell = ((logs - low) * (599 / max(high - low, 1e-12))).astype(np.int64)
        mass = np.bincount(cell, weights=w)
        keep = mass > 0
        v = np.bincount(cell, weights=w * v)[keep] / mass[keep]
        w = mass[keep].astype(np.float64)
    order = np.argsort(v, kind="stable")
    v, w = v[order], w[order]
    total = float(w.sum())
    upper = np.cumsum(w) / total
    share = w / total
    mean = float(v @ w) / total if mean is None else mean
    heavy = share > 2 * _EDGE
    if not heavy.any():
        return Spread(v, upper - share / 2, mean, method)
    # A value of much weight holds over all of it, but for its edges: a decode step, with rare prompts beyond.
    edge = np.minimum(share / 2, _EDGE)
    lower = upper - share
    points = np.concatenate([np.where(heavy, lower + edge, upper - share / 2), (upper - edge)[heavy]])
    values = np.concatenate([v, v[heavy]])
    order = np.argsort(points, kind="stable")
    return Spread(values[order], points[order], mean, method)


@dataclass(frozen=True, slots=True, eq=False)
class ClassFigures:
    """What one class sees."""

    name: str
    ttft: Spread
    itl: Spread
    tpot: Spread
    e2e: Spread | None
    ttfa: Spread | None = None

    def value(self, slo: Slo) -> float:
        """The figure that a promise speaks of."""
        found: Spread | None = getattr(self, slo.metric)
        if found is None:
            # Without thinking tokens the first answer token is the first token.
            assert slo.metric == "ttfa"
            found = self.ttft
        return found.stat(slo.stat)
