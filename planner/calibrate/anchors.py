"""Measured corrections per release and configuration, shrunk by how little was measured.

What the constants leave over is mostly one offset per configuration (59% of the variance of log TPOT): kernels chosen
for that model, GPU, release and layout. Offsets are random effects with fixed variances, so a configuration with two
rows moves a third of the way and one with thirty nearly all of it:

    log(measured / predicted) = release(model, precision, version) + configuration + rest
    u = sum of what is left of its rows x (1/rest) / (n / rest + 1 / own variance), in turns until nothing moves

TTFT has a third effect, by model and prompt length octave: the fixed part of a first pass is the model's own.
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


# Estimated on the open rows (one-way analysis of variance of in-sample residuals), rounded.
VARIANCES: dict[str, Variances] = {
    "tpot": Variances({"release": 0.004, "configuration": 0.006}, 0.006),
    "ttft": Variances({"release": 0.016, "configuration": 0.024, "prompt": 0.012}, 0.03),
    "throughput": Variances({"release": 0.004, "configuration": 0.006}, 0.02),
}


def effects(rows: Sequence[Row], residuals: Array, metric: str) -> dict[str, tuple[float, int]]:
    """Key -> (log offset, rows), from residuals log(measured / predicted); NaN rows do not count."""
    v = VARIANCES[metric]
    index: dict[str, int] = {}
    own: list[float] = []
    used = [i for i in range(len(rows)) if np.isfinite(residuals[i])]
    table = []
    for i in used:
        line = []
        for key in effect_keys(rows[i], metric):
            if key not in index:
                index[key] = len(index)
                own.append(v.effects[key.split(":", 1)[0]])
            line.append(index[key])
        table.append(line)
    if not used:
        return {}
    columns, variance = np.array(table), np.array(own)
    r = np.clip(residuals[used], -CLIP, CLIP)
    u = np.zeros(len(index))
    for _ in range(ROUNDS):
        for j in range(columns.shape[1]):
            left = r - u[columns].sum(axis=1) + u[columns[:, j]]
            total = np.bincount(columns[:, j], left, len(index))
            n = np.bincount(columns[:, j], minlength=len(index))
            has = n > 0
            u[has] = (total[has] / v.rest) / (n[has] / v.rest + 1.0 / variance[has])
    counts = np.zeros(len(index), dtype=int)
    for j in range(columns.shape[1]):
        counts += np.bincount(columns[:, j], minlength=len(index))
    return {key: (float(u[i]), int(counts[i])) for key, i in index.items()}


def offsets(rows: Sequence[Row], found: dict[str, tuple[float, int]], metric: str) -> Array:
    """What the anchors add to log(prediction) of each row."""
    return np.array([sum(found[k][0] for k in effect_keys(r, metric) if k in found) for r in rows])
