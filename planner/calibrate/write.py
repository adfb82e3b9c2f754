"""A generation's fit as the YAML that ships: constants, anchors, bands, and the error reached in cross-validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.calibrate.anchors import effects, offsets
from planner.calibrate.data import SNAPSHOT
from planner.calibrate.fit import Data, Setting, ape, fit, leave_out
from planner.calibrate.parameters import Generation
from planner.catalog.calibrations import Anchor, BandEntry, CalibrationFile, Engine, ErrorReached
from planner.documents import dump_yaml
from planner.estimate.anchors import effect_keys
from planner.estimate.rows import Row, canonical
from planner.perf.calibration import REFERENCE_DATE
from planner.perf.step import Array

METRICS = ("tpot", "ttft", "throughput")
FOLDS = 5


@dataclass(frozen=True, slots=True)
class CrossValidated:
    """Predictions of every row by a fit that did not see its group, anchors included where the group leaves any."""

    level: str
    predicted: dict[str, Array]
    """By metric, with the anchors that other rows gave."""
    plain: dict[str, Array]
    """By metric, constants alone."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """One generation, fitted and scored."""

    generation: Generation
    data: Data
    values: dict[str, float]
    """Constant (with its engine or architecture in brackets) -> value."""
    predicted: dict[str, Array]
    validated: tuple[CrossValidated, ...]
    anchors: dict[str, dict[str, tuple[float, int]]]

    def validation(self, level: str) -> CrossValidated:
        """By what was left out."""
        return next(v for v in self.validated if v.level == level)


def measured(data: Data) -> dict[str, Array]:
    """Measurements by metric."""
    return {"tpot": data.tpot_s, "ttft": data.ttft_s, "throughput": data.output_tok_s}


GROUPS: dict[str, Callable[[Row], str]] = {
    "row": lambda r: r.id,
    "sweep": lambda r: r.sweep,
    "configuration": lambda r: r.configuration,
    "model": lambda r: canonical(r.model),
    "gpu": lambda r: r.gpu,
    "source": lambda r: r.source,
}


def setting_of(generation: Generation) -> Setting:
    """What stays fixed in the fit of a generation."""
    return Setting(base=generation.base, prefill_first=frozenset(generation.prefill_first), weights=generation.weights)


def run(
    generation: Generation,
    data: Data,
    *,
    levels: tuple[str, ...] = ("sweep", "configuration", "model", "gpu"),
    rounds: int = 12,
) -> Fitted:
    """Fit, cross-validate at each level, and take the anchors."""
    setting = setting_of(generation)
    model, theta = fit(data, generation.parameters, setting, rounds=rounds)
    values = {s.label: float(np.exp(t)) for s, t in zip(model.slots, theta, strict=True)}
    values["pace_ratio"] = model.setting.base.pace_ratio
    predicted = dict(zip(METRICS, model.predict(theta), strict=True))
    real = measured(data)
    anchors = {m: effects(data.rows, np.log(real[m] / predicted[m]), m) for m in METRICS}
    validated = []
    for level in levels:
        group = GROUPS[level]
        names = {group(r) for r in data.rows}
        if len(names) < 2:
            continue
        folds = FOLDS if len(names) > 14 else None
        out = leave_out(data, generation.parameters, setting, group, start=values, folds=folds, rounds=3, anchors=True)
        validated.append(
            CrossValidated(level, dict(zip(METRICS, out[3:], strict=True)), dict(zip(METRICS, out[:3], strict=True)))
        )
    return Fitted(generation, data, values, predicted, tuple(validated), anchors)


def spread(rows: tuple[Row, ...], residuals: Array) -> BandEntry | None:
    """Quantiles and standard deviations of log(measured / predicted); offsets between configurations apart."""
    ok = np.flatnonzero(np.isfinite(residuals))
    if len(ok) < 8:
        return None
    r = residuals[ok]
    low, high = np.quantile(r, [0.1, 0.9])
    groups: dict[str, list[float]] = {}
    for i in ok:
        groups.setdefault(rows[i].configuration, []).append(float(residuals[i]))
    within = [float(x - np.median(g)) for g in groups.values() if len(g) > 2 for x in g]
    offset = [float(np.median(g)) for g in groups.values() if len(g) > 2]

    def robust(v: list[float]) -> float:
        return float(1.4826 * np.median(np.abs(v))) if v else 0.0

    rest = robust(within) or 0.05
    sd = robust(offset) if len(offset) > 4 else float(np.std(r))
    return BandEntry(
        offset_sd=_short(max(sd, 0.01)),
        rest_sd=_short(max(rest, 0.01)),
        low_ratio=_short(float(np.exp(low))),
        high_ratio=_short(float(np.exp(high))),
        rows=len(ok),
    )


def _short(value: float) -> float:
    return float(f"{value:.3g}")


LEVELS = {"sweep": "anchored", "configuration": "seen", "model": "model-unseen", "gpu": "gpu-unseen"}


# Engines differ in how well their TTFT is predicted: one with this many rows has spreads of its own.
_OWN_BANDS = 80


def bands(f: Fitted, engine: str = "") -> dict[str, BandEntry]:
    """`metric/level` -> spread, of all rows or of one engine's where they are enough."""
    found: dict[str, BandEntry] = {}
    real = measured(f.data)
    for v in f.validated:
        for m in METRICS:
            own = np.array([not engine or r.engine == engine for r in f.data.rows])
            residuals = np.where(own, np.log(real[m] / v.predicted[m]), np.nan)
            if engine and np.isfinite(residuals).sum() < _OWN_BANDS:
                continue
            entry = spread(f.data.rows, residuals)
            if entry is not None:
                found[f"{m}/{LEVELS[v.level]}"] = entry
    return found


def error(predicted: Array, real: Array) -> ErrorReached | None:
    """Absolute percentage error in per cent."""
    a = ape(predicted, real)
    if len(a) == 0:
        return None
    ok = np.isfinite(predicted) & np.isfinite(real)
    bias = float(np.exp(np.median(np.log(predicted[ok] / real[ok]))) - 1)
    return ErrorReached(
        median=_percent(float(np.median(a))),
        p90=_percent(float(np.percentile(a, 90))),
        bias=_percent(bias),
        rows=len(a),
    )


def _percent(value: float) -> float:
    return float(f"{100 * value:.3g}")


def as_file(f: Fitted) -> CalibrationFile:
    """What is shipped."""
    g, data = f.generation, f.data
    engines = sorted({r.engine for r in data.rows})
    base = dict(_changed(g).items())
    shared = dict(base)
    archs: dict[str, dict[str, float]] = {}
    own: dict[str, dict[str, float]] = {e: {} for e in engines}
    for label, value in f.values.items():
        name, _, key = label.removesuffix("]").partition("[")
        if not key:
            shared[name] = _short(value)
        elif key in own:
            own[key][name] = _short(value)
        else:
            archs.setdefault(key, {})[name] = _short(value)
    real = measured(data)
    errors = {}
    for v in f.validated:
        for m in METRICS:
            entry = error(v.plain[m], real[m])
            if entry is not None:
                errors[f"{m}, whole {v.level} left out"] = entry
    return CalibrationFile(
        generation=g.name,
        fit_date=SNAPSHOT,
        reference_date=REFERENCE_DATE,
        data="measurements_open.csv, silicon_open.csv with silicon_resolved.csv; less planner/calibrate/exclusions.py",
        method="soft-L1 least squares of log residuals with priors; rows of a configuration weighted n^-0.35",
        constants=shared,
        architectures=archs,
        engines={
            e: Engine(
                constants=own[e],
                prefill_first=e in g.prefill_first,
                rows=sum(1 for r in data.rows if r.engine == e),
                bands=bands(f, e) if len(engines) > 1 else {},
                anchors=_anchors(f, e),
            )
            for e in engines
        },
        measured_gpus=tuple(sorted({r.gpu for r in data.rows})),
        measured_architectures=tuple(sorted({q.deployment.hardware.arch for q in data.resolved})),
        measured_models=tuple(sorted({canonical(r.model) for r in data.rows})),
        error=errors,
        bands=bands(f),
    )


def _changed(g: Generation) -> dict[str, float]:
    """Constants that the generation sets without fitting them."""
    fitted = {p.name for p in g.parameters}
    skip = fitted | {"kernel_tables", "pace_ratio"}
    return {n: getattr(g.base, n) for n in g.base.__dataclass_fields__ if n not in skip}


def _anchors(f: Fitted, engine: str) -> tuple[Anchor, ...]:
    keys = {k for r in f.data.rows if r.engine == engine for m in METRICS for k in effect_keys(r, m)}
    found = [
        Anchor(key=k, metric=m, log_ratio=_short(v), rows=n)
        for m in METRICS
        for k, (v, n) in sorted(f.anchors[m].items())
        if k in keys and abs(v) >= 0.005
    ]
    return tuple(found)


def write(file: CalibrationFile, folder: Path) -> None:
    """One generation's YAML; the same data gives the same bytes."""
    header = (
        "# Generated by: python -m planner.calibrate (make calibrate). "
        "Constants are explained in planner/perf/calibration.py.\n"
    )
    text = header + dump_yaml(file.model_dump(mode="json"))
    (folder / f"{file.generation}.yaml").write_text(text, encoding="utf-8")


__all__ = ["Fitted", "as_file", "bands", "error", "measured", "offsets", "run", "write"]
