"""Measured corrections per release and configuration, shrunk by how little was measured.

What the constants leave over is mostly one offset per configuration (59% of the variance of log TPOT): kernels chosen
for that model, GPU, release and layout. Offsets are random effects with fixed variances, so a configuration with two
rows moves a third of the way and one with thirty nearly all of it:

    log(measured / predicted) = release(model, precision, version) + family(model, GPU, precision) + configuration
                              + prompt(model, length octave) + rest
    u = sum of what is left of its rows x (1/rest) / (n / rest + 1 / own variance), in turns until nothing moves

The prompt effect is there because the fixed part of a first pass, and what prefill costs beside decode, are the
model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.estimate.anchors import effect_keys
from planner.estimate.rows import Row
from planner.perf.step import Array

ROUNDS = 60
# A residual beyond this is an outlier: it moves an anchor no further.
CLIP = 0.5


@dataclass(frozen=True, slots=True)
class Variances:
    """Of log residuals: each effect's own, and what is left within a configuration."""

    effects: dict[str, float]
    rest: float


# Set by hand to the sizes that the first study reports (an offset of about 0.13 in all, 0.05 within a sweep), TTFT
# four times as much; cross-validation hardly depends on them.
VARIANCES: dict[str, Variances] = {
    "tpot": Variances({"release": 0.004, "family": 0.003, "configuration": 0.006, "prompt": 0.003}, 0.006),
    "ttft": Variances({"release": 0.016, "family": 0.012, "configuration": 0.024, "prompt": 0.012}, 0.024),
    "throughput": Variances({"release": 0.004, "family": 0.003, "configuration": 0.006, "prompt": 0.003}, 0.02),
}


def effects(rows: Sequence[Row], residuals: Array, metric: str) -> dict[str, tuple[float, int]]:
    """Key -> (log offset, rows), from residuals log(measured / predicted); NaN rows do not count."""
    v = VARIANCES[metric]
    index: dict[str, int] = {}
    own: list[float] = []
    used = [i for i in range(len(rows)) if np.isfinite(residuals[i])]
    if not used:
        return {}
    # (row, effect) pairs by turn: the first effect of every row, then the second, and so on.
    turns: dict[int, tuple[list[int], list[int]]] = {}
    for place, i in enumerate(used):
        for turn, key in enumerate(effect_keys(rows[i], metric)):
            if key not in index:
                index[key] = len(index)
                own.append(v.effects[key.split(":", 1)[0]])
            at, which = turns.setdefault(turn, ([], []))
            at.append(place)
            which.append(index[key])
    variance = np.array(own)
    size = len(index)
    pairs = [(np.array(at), np.array(which)) for _, (at, which) in sorted(turns.items())]
    left = np.clip(residuals[used], -CLIP, CLIP)
    u = np.zeros(size)
    counts = np.zeros(size, dtype=int)
    for _, places in pairs:
        counts += np.bincount(places, minlength=size)
    for _ in range(ROUNDS):
        for own_rows, places in pairs:
            total = np.bincount(places, left[own_rows] + u[places], size)
            n = np.bincount(places, minlength=size)
            has = n > 0
            new = u.copy()
            new[has] = (total[has] / v.rest) / (n[has] / v.rest + 1.0 / variance[has])
            left[own_rows] += u[places] - new[places]
            u = new
    return {key: (float(u[i]), int(counts[i])) for key, i in index.items()}


def offsets(rows: Sequence[Row], found: dict[str, tuple[float, int]], metric: str) -> Array:
    """What the anchors add to log(prediction) of each row."""
    return np.array([sum(found[k][0] for k in effect_keys(r, metric) if k in found) for r in rows])
