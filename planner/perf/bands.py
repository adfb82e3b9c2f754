"""How far predictions may be off, and the odds that promises hold: from cross-validation, by how well a case is known.

Levels, best known first: `anchored` (this very configuration was measured), `seen` (model and GPU were, this
configuration was not), `model-unseen`, `gpu-unseen`. What is measured is log(measured / predicted); its quantiles are
the band, and its spread splits into an offset that a configuration keeps (and all pools of a plan share) and a rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from planner.perf.calibration import Band, Calibration

_Z = NormalDist()
_LEVELS = ("anchored", "seen", "model-unseen", "gpu-unseen")
# Where a metric or level was never cross-validated (a generation with one GPU, an engine without TTFT rows): the
# generation's worst known band, widened by this factor of the logarithm; and where nothing is known at all, twofold.
_WIDEN = 1.5
_NOTHING = Band(offset_sd=0.45, rest_sd=0.25, low_ratio=0.5, high_ratio=2.0)


def level(*, model_seen: bool, gpu_seen: bool, anchored: bool = False) -> str:
    """Name of what is known about a case."""
    if anchored and model_seen and gpu_seen:
        return "anchored"
    if not gpu_seen:
        return "gpu-unseen"
    return "seen" if model_seen else "model-unseen"


def band_entry(calib: Calibration, metric: str, *, model_seen: bool, gpu_seen: bool, anchored: bool = False) -> Band:
    """The spread to use: the level's own, never narrower than a better-known level's, wider where nothing was measured.

    Neither model nor GPU seen: both levels' widths add in quadrature over the common part.
    """
    own = {name: calib.band(f"{metric}/{name}") for name in _LEVELS}
    wanted = level(model_seen=model_seen, gpu_seen=gpu_seen, anchored=anchored)
    known = [b for name in _LEVELS[: _LEVELS.index(wanted) + 1] if (b := own[name]) is not None]
    chosen = own[wanted]
    if chosen is None:
        chosen = _widened(_widest(known), _WIDEN) if known else _NOTHING
    elif wanted != "anchored":
        chosen = _widest([b for b in (chosen, own["seen"]) if b is not None])
    if not model_seen and not gpu_seen and (other := own["model-unseen"]) is not None:
        chosen = _joined(chosen, other, own["seen"] or other)
    if not calib.engine_measured:
        chosen = _widened(chosen, _WIDEN)
    return chosen


def _widest(bands: Sequence[Band]) -> Band:
    return max(bands, key=lambda b: math.log(b.high_ratio / b.low_ratio))


def _widened(b: Band, factor: float) -> Band:
    return Band(b.offset_sd * factor, b.rest_sd, b.low_ratio**factor, b.high_ratio**factor, b.rows)


def _joined(a: Band, b: Band, common: Band) -> Band:
    def side(x: float, y: float, c: float) -> float:
        return math.sqrt(max(math.log(x) ** 2 + math.log(y) ** 2 - math.log(c) ** 2, math.log(x) ** 2))

    sd = math.sqrt(max(a.offset_sd**2 + b.offset_sd**2 - common.offset_sd**2, a.offset_sd**2))
    low = math.exp(-side(a.low_ratio, b.low_ratio, common.low_ratio))
    return Band(sd, a.rest_sd, low, math.exp(side(a.high_ratio, b.high_ratio, common.high_ratio)), min(a.rows, b.rows))


def band(
    calib: Calibration, metric: str, *, model_seen: bool, gpu_seen: bool, coverage: float = 0.8, anchored: bool = False
) -> tuple[float, float]:
    """(low, high) of measured / predicted that holds `coverage` of the cases.

    The 80% band is measured; others scale its logarithm by the normal quantile, z(coverage) / z(0.8).
    """
    b = band_entry(calib, metric, model_seen=model_seen, gpu_seen=gpu_seen, anchored=anchored)
    scale = _Z.inv_cdf(0.5 + coverage / 2) / _Z.inv_cdf(0.9)
    return b.low_ratio**scale, b.high_ratio**scale


@dataclass(frozen=True, slots=True)
class Promise:
    """One SLO of one pool: the prediction it is held against, and the band of that prediction."""

    predicted_s: float
    limit_s: float
    band: Band
    configuration: str
    """Pools of one configuration share its offset."""
    noise_sd: float = 0.0
    """Spread that the simulation adds (percentile noise), as a standard deviation of the logarithm."""


# Residuals have heavier tails than a normal: a share of cases with a wider spread. The pair gives the 80% quantile of
# the band and roughly the 90th percentile of the absolute error that cross-validation shows.
_TAIL_SHARE, _TAIL_WIDTH = 0.2, 2.0
_BODY = 1.0 / math.sqrt(1.0 - _TAIL_SHARE + _TAIL_SHARE * _TAIL_WIDTH**2)
_NODES = 41


def _spread(b: Band) -> tuple[float, float]:
    """(centre, standard deviation) of the logarithm that the band's quantiles imply."""
    low, high = math.log(b.low_ratio), math.log(b.high_ratio)
    return (low + high) / 2, max((high - low) / (2 * _Z.inv_cdf(0.9)), 1e-6)


def _below(x: float) -> float:
    """P(standardised residual <= x), heavy-tailed."""
    body = _BODY
    return (1 - _TAIL_SHARE) * _Z.cdf(x / body) + _TAIL_SHARE * _Z.cdf(x / (body * _TAIL_WIDTH))


def odds(promises: Sequence[Promise]) -> float:
    """Probability that every SLO holds, as far as the model's error decides it.

    P = product over configurations of  E over its offset [ product over its SLOs of P(rest <= what is left) ]

    TPOT-like and TTFT-like SLOs of one configuration move together through the offset; the rest is independent.
    """
    if not promises:
        return 1.0
    total = 1.0
    for name in sorted({p.configuration for p in promises}):
        own = [p for p in promises if p.configuration == name]
        if len(own) == 1:
            total *= _single(own[0])
            continue
        mean = 0.0
        weight = 0.0
        for i in range(_NODES):
            o = -3.0 + 6.0 * i / (_NODES - 1)
            w = _Z.pdf(o)
            chance = 1.0
            for p in own:
                centre, sd = _spread(p.band)
                share = p.band.offset_sd / math.hypot(p.band.offset_sd, p.band.rest_sd)
                rest = math.hypot(sd * math.sqrt(max(1 - share**2, 1e-6)), p.noise_sd)
                left = math.log(p.limit_s / p.predicted_s) - centre - o * share * sd
                chance *= _below(left / rest)
            mean += w * chance
            weight += w
        total *= mean / weight
    return min(max(total, 0.0), 1.0)


def _single(p: Promise) -> float:
    centre, sd = _spread(p.band)
    return _below((math.log(p.limit_s / p.predicted_s) - centre) / math.hypot(sd, p.noise_sd))
