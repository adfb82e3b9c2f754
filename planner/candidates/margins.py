"""Headroom kept to each promise: from the error band of the model, not from a constant.

    figure x (1 + margin) <= limit,      margin = exp(z(0.75) x sigma) - 1,      sigma = ln(p90 / p50) / z(0.9)

With it the chance that one promise fails because the model was wrong is one in four where nothing else is known; what
is left of the risk stands in the plan as odds. A GPU or engine that was never measured has a wider band, so more
headroom.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from planner.candidates.ask import Ask
from planner.intent.slo import METRICS
from planner.perf.calibration import Band, Calibration, calibration_for
from planner.perf.deployment import Deployment

CONFIDENCE = 0.75
_Z = NormalDist()
_MEASURED_AS = {"itl": "tpot", "tpot": "tpot", "e2e": "tpot", "ttft": "ttft", "ttfa": "ttft"}
"""Which measured figure a metric's error is taken from: ITL percentiles and E2E have no public measurements."""


def margins_of(ask: Ask, d: Deployment) -> dict[str, float]:
    """By metric; the ask's own where it gives them."""
    if ask.margins is not None:
        return dict(ask.margins)
    calibration = calibration_for(d.engine, d.engine_version, d.hardware)
    found = {}
    for metric in METRICS:
        band = band_of(calibration, metric)
        found[metric] = 0.0 if band is None else margin(band)
    return found


def margin(band: Band) -> float:
    """Share of the figure that is kept free."""
    return max(0.0, math.exp(_Z.inv_cdf(CONFIDENCE) * math.log(band.high_ratio) / _Z.inv_cdf(0.9)) - 1)


def band_of(calibration: Calibration, metric: str) -> Band | None:
    """The band of a metric at the level that fits: a GPU that was not measured takes the wider one."""
    kind = _MEASURED_AS[metric]
    level = "seen" if calibration.gpu_measured and calibration.engine_measured else "gpu-unseen"
    return calibration.band(f"{kind}/{level}") or calibration.band(f"{kind}/seen")
