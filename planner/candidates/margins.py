"""Headroom kept to each promise: from the error band of the model, not from a constant.

    figure x (1 + margin) <= limit,      margin = (75th percentile of measured / predicted) - 1

With it the chance that one promise fails because the model was wrong is one in four; what is left of the risk stands
in the plan as odds. A model, GPU or engine that was never measured has a wider band, so more headroom.
"""

from __future__ import annotations

import re

from planner.candidates.ask import Ask
from planner.intent.slo import METRICS
from planner.perf.bands import band
from planner.perf.calibration import Calibration, calibration_for
from planner.perf.deployment import Deployment

CONFIDENCE = 0.75
_MEASURED_AS = {"itl": "tpot", "tpot": "tpot", "e2e": "tpot", "ttft": "ttft", "ttfa": "ttft"}
"""Which measured figure a metric's error is taken from: ITL percentiles and E2E have no public measurements."""


def measured_as(metric: str) -> str:
    """The measured figure whose error a metric's stands on."""
    return _MEASURED_AS[metric]


def margins_of(ask: Ask, d: Deployment) -> dict[str, float]:
    """By metric; the ask's own where it gives them."""
    if ask.margins is not None:
        return dict(ask.margins)
    calibration = calibration_for(d.engine, d.engine_version, d.hardware)
    return {m: max(0.0, band_of(ask, calibration, m, coverage=2 * CONFIDENCE - 1)[1] - 1) for m in METRICS}


def band_of(ask: Ask, calibration: Calibration, metric: str, *, coverage: float = 0.8) -> tuple[float, float]:
    """(low, high) of measured over predicted for a metric of this model on this GPU."""
    return band(
        calibration,
        _MEASURED_AS[metric],
        model_seen=model_seen(ask, calibration),
        gpu_seen=calibration.gpu_measured,
        coverage=coverage,
    )


def model_seen(ask: Ask, calibration: Calibration) -> bool:
    """Whether rows of this model (of its shape) were in the fit."""
    assert ask.model is not None
    names = {plain(ask.model.id), plain(ask.model.shape_of)}
    return any(plain(m) in names for m in calibration.models)


def plain(name: str) -> str:
    """A model's name without owner, case, dashes and what does not change its shape.

    >>> plain("meta-llama/Llama-3.1-8B-Instruct") == plain("Meta-Llama-3.1-8B")
    True
    """
    short = name.rsplit("/", maxsplit=1)[-1].lower()
    short = re.sub(r"-(instruct|it|chat|hf)\b|^meta-", "", short)
    return re.sub(r"[^a-z0-9]", "", short)
