"""Robust least squares of the constants on measured rows, and cross-validation by leaving things out.

Residuals are log(predicted / measured) of TPOT, TTFT and throughput, with a soft-L1 loss so that a wrong row pulls
like a slightly wrong one, and rows of large sweeps weighted down so that a sweep counts once or twice, not thirty
times. Derivatives by finite differences: the model is a few array operations over all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.calibrate.anchors import effects, offsets
from planner.calibrate.parameters import Parameter
from planner.estimate.cases import cases_of
from planner.estimate.resolve import Resolved
from planner.estimate.rows import Row
from planner.perf.calibration import Constants, aged, release_date, years
from planner.perf.groups import operations
from planner.perf.serving import overheads, serve
from planner.perf.step import Array, resolve, stack


@dataclass(frozen=True, slots=True)
class Data:
    """Rows with their measurements (NaN where not to be used)."""

    rows: tuple[Row, ...]
    resolved: tuple[Resolved, ...]
    tpot_s: Array
    ttft_s: Array
    output_tok_s: Array

    def pick(self, mask: NDArray[np.bool_]) -> Data:
        """Rows where the mask is true."""
        index = np.flatnonzero(mask)
        return Data(
            tuple(self.rows[i] for i in index),
            tuple(self.resolved[i] for i in index),
            self.tpot_s[index],
            self.ttft_s[index],
            self.output_tok_s[index],
        )


def years_since_reference(row: Row) -> float:
    """Age of the release that ran, in years against the reference date, rounded to a month."""
    day = row.date or release_date(row.engine, row.engine_version)
    return round(years(day) * 12) / 12 if day else 0.0


@dataclass(frozen=True, slots=True)
class Slot:
    """One fitted number: a parameter for one engine, one architecture or all."""

    parameter: Parameter
    key: str

    @property
    def label(self) -> str:
        """As it is printed."""
        return self.parameter.name + (f"[{self.key}]" if self.key else "")


def slots(parameters: Sequence[Parameter], data: Data) -> list[Slot]:
    """Every number to fit, in a fixed order; engine and architecture values only where rows have them."""
    engines = sorted({r.engine for r in data.rows})
    archs = sorted({q.deployment.hardware.arch for q in data.resolved})
    found = []
    for p in parameters:
        own = [e for e in engines if not p.engines or e in p.engines]
        keys = {"shared": [""], "engine": own, "arch": archs}[p.scope]
        found += [Slot(p, k) for k in keys]
    return found


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays fixed in a fit."""

    base: Constants
    prefill_first: frozenset[str] = frozenset({"sglang"})
    weights: tuple[float, float, float] = (1.0, 0.5, 0.7)
    """Of TPOT, TTFT, throughput residuals."""
    loss_scale: float = 0.1


class Model:
    """Predictions of one data set as a function of the fitted numbers."""

    def __init__(self, data: Data, found: Sequence[Slot], setting: Setting) -> None:
        self.data, self.slots, self.setting = data, list(found), setting
        # Rows that share deployment, engine and architecture share coefficients.
        keys: dict[Any, int] = {}
        index = []
        self.unique: list[tuple[int, Row]] = []
        for i, (r, q) in enumerate(zip(data.rows, data.resolved, strict=True)):
            key = (q.deployment, r.engine, years_since_reference(r))
            if key not in keys:
                keys[key] = len(keys)
                self.unique.append((i, r))
            index.append(keys[key])
        self.index = np.array(index, dtype=np.intp)
        pre: dict[Any, int] = {}
        self.prefill_index = np.full(len(data.rows), -1, dtype=np.intp)
        self.prefill_unique: list[tuple[int, Row]] = []
        for i, (r, q) in enumerate(zip(data.rows, data.resolved, strict=True)):
            if q.prefill is not None:
                key = (q.prefill, r.engine, years_since_reference(r))
                if key not in pre:
                    pre[key] = len(pre)
                    self.prefill_unique.append((i, r))
                self.prefill_index[i] = pre[key]
        self.yearly: dict[str, tuple[float, float]] = {}
        self.years = np.array([years_since_reference(r) for r in data.rows])
        self.cases = cases_of(data.rows, data.resolved, [r.engine in setting.prefill_first for r in data.rows])
        self.asked = np.array([(r.rate_rps or np.inf) * r.osl_tokens for r in data.rows])
        self.ranks = np.array([q.ranks for q in data.resolved])
        self.prefill_ranks = np.array([q.prefill_ranks for q in data.resolved])

    def constants(self, theta: Array) -> dict[tuple[str, str], Constants]:
        """Values by (engine, architecture)."""
        pairs = {
            (r.engine, q.deployment.hardware.arch) for r, q in zip(self.data.rows, self.data.resolved, strict=True)
        }
        found = {}
        for engine, arch in sorted(pairs):
            values = {
                s.parameter.name: float(np.exp(t))
                for s, t in zip(self.slots, theta, strict=True)
                if s.key in ("", engine, arch)
            }
            # How the pace changes with the release is applied per row, by date.
            self.yearly[engine] = values.pop("yearly_ratio", 1.0), values.pop("host_yearly_ratio", 1.0)
            found[engine, arch] = replace(self.setting.base, **values)  # type: ignore[arg-type]
        return found

    def predict(self, theta: Array) -> tuple[Array, Array, Array]:
        """TPOT, TTFT (NaN where saturated), output tokens/s of every row."""
        by = self.constants(theta)
        rows, res = self.data.rows, self.data.resolved

        made_already: dict[tuple[str, str, float], Constants] = {}

        def c_of(i: int) -> Constants:
            key = (rows[i].engine, res[i].deployment.hardware.arch, float(self.years[i]))
            if key not in made_already:
                made_already[key] = at(i)
            return made_already[key]

        def at(i: int) -> Constants:
            c = by[rows[i].engine, res[i].deployment.hardware.arch]
            step, host = self.yearly[rows[i].engine]
            return aged(c, years=float(self.years[i]), yearly_ratio=step, host_yearly_ratio=host)

        made = stack([resolve(operations(res[i].deployment), res[i].deployment, c_of(i)) for i, _ in self.unique])
        pre = None
        if self.prefill_unique:
            pre = stack(
                [
                    resolve(operations(q), q, c_of(i))
                    for i, _ in self.prefill_unique
                    if (q := res[i].prefill) is not None
                ]
            ).take(np.maximum(self.prefill_index, 0))
        o = overheads([c_of(i) for i in range(len(rows))])
        served = serve(
            made.take(self.index),
            self.cases,
            o,
            prefill_stack=pre,
            disaggregated=self.prefill_index >= 0,
            ranks=self.ranks,
            prefill_ranks=self.prefill_ranks,
        )
        return (
            served.tpot_s,
            np.where(served.saturated, np.nan, served.ttft_s),
            np.minimum(served.output_tok_s * self.ranks, self.asked),
        )


# The vendor's lab rows follow another protocol (exact lengths, release candidates without a date), so they say less
# about how servers are run: half the weight of a row of a public sweep.
_LAB_WEIGHT = 0.5


def row_weights(data: Data) -> Array:
    """n^-0.35 for n rows of one configuration: thirty points of one sweep count about as much as nine single ones."""
    n = Counter(r.configuration for r in data.rows)
    return np.array(
        [n[r.configuration] ** -0.35 * (_LAB_WEIGHT if r.source.endswith("nvidia-lab") else 1.0) for r in data.rows]
    )


def fit(
    data: Data,
    parameters: Sequence[Parameter],
    setting: Setting,
    *,
    start: dict[str, float] | None = None,
    rounds: int = 14,
) -> tuple[Model, Array]:
    """The constants that fit `data` best under their priors."""
    from scipy.optimize import least_squares

    found = slots(parameters, data)
    model = Model(data, found, setting)
    prior = np.log([s.parameter.start for s in found])
    sd = np.array([s.parameter.sd for s in found])
    weight = row_weights(data)
    w_tpot, w_ttft, w_out = setting.weights
    measured = [(np.log(data.tpot_s), w_tpot), (np.log(data.ttft_s), w_ttft), (np.log(data.output_tok_s), w_out)]
    scale = setting.loss_scale

    def residuals(theta: Array) -> Array:
        parts = []
        for p, (m, w) in zip(model.predict(theta), measured, strict=True):
            e = np.log(p) - m
            e = np.where(np.isfinite(e), e, 0.0) / scale
            # soft L1 done by hand, so that the prior's residuals stay quadratic
            parts.append(np.sign(e) * np.sqrt(2.0 * (np.sqrt(1.0 + e * e) - 1.0)) * np.sqrt(w * weight))
        parts.append((theta - prior) / sd)
        return np.concatenate(parts)

    x0 = np.array(
        [np.log(start.get(s.label, s.parameter.start)) if start else np.log(s.parameter.start) for s in found]
    )
    solved = least_squares(residuals, x0, method="trf", diff_step=3e-3, max_nfev=rounds, xtol=1e-4, ftol=1e-4)
    theta = np.asarray(solved.x)
    return centred(model, theta), theta


def centred(model: Model, theta: Array) -> Model:
    """The same fit with all step times scaled so that the median TPOT of public closed loops is met.

    A robust fit minimises something between mean and median, and errors have a long side; who picks a shape by its
    prediction needs the median right. Too few such rows: as fitted.
    """
    data = model.data
    public = np.array(
        [r.kind == "closed-loop" and not r.source.endswith("nvidia-lab") and r.decode is None for r in data.rows]
    )
    use = public & np.isfinite(data.tpot_s)
    if use.sum() < 100:
        return model
    predicted = model.predict(theta)[0]
    gain = float(np.exp(np.median(np.log(data.tpot_s[use] / predicted[use]))))
    base = replace(model.setting.base, pace_ratio=model.setting.base.pace_ratio * gain)
    return Model(data, model.slots, replace(model.setting, base=base))


def ape(predicted: Array, measured: Array) -> Array:
    """|predicted / measured - 1| where both are there."""
    ok = np.isfinite(predicted) & np.isfinite(measured)
    return np.asarray(np.abs(predicted[ok] / measured[ok] - 1.0))


def leave_out(
    data: Data,
    parameters: Sequence[Parameter],
    setting: Setting,
    group: Callable[[Row], str],
    *,
    start: dict[str, float],
    folds: int | None = None,
    rounds: int = 5,
    anchors: bool = False,
) -> tuple[Array, ...]:
    """Predictions of every row by constants fitted without its group (or its fold of groups).

    TPOT, TTFT, throughput; with `anchors`, then the same three with the corrections that the other rows give.
    """
    names = sorted({group(r) for r in data.rows})
    if folds is not None:
        # Deterministic and mixed: a stable order by a hash of the name that does not depend on the process.
        order = sorted(names, key=_mix)
        sets = [set(order[i::folds]) for i in range(folds)]
    else:
        sets = [{n} for n in names]
    out = [np.full(len(data.rows), np.nan) for _ in range(6)]
    keys = [group(r) for r in data.rows]
    for left in sets:
        test = np.array([k in left for k in keys])
        known = data.pick(~test)
        model, theta = fit(known, parameters, setting, start=start, rounds=rounds)
        values = {s.label: float(np.exp(t)) for s, t in zip(model.slots, theta, strict=True)}
        held = data.pick(test)
        other = Model(held, slots(parameters, held), model.setting)
        x = np.array([np.log(_value(values, s)) for s in other.slots])
        predicted = other.predict(x)
        for o, p in zip(out[:3], predicted, strict=True):
            o[test] = p
        if anchors:
            real = (known.tpot_s, known.ttft_s, known.output_tok_s)
            for o, p, m, fitted, metric in zip(
                out[3:], predicted, real, model.predict(theta), ("tpot", "ttft", "throughput"), strict=True
            ):
                with np.errstate(invalid="ignore"):
                    found = effects(known.rows, np.log(m / fitted), metric)
                o[test] = p * np.exp(offsets(held.rows, found, metric))
    return tuple(out if anchors else out[:3])


def _value(values: dict[str, float], slot: Slot) -> float:
    """A fitted value; where its engine or architecture was left out, the geometric mean of the others'."""
    if slot.label in values:
        return values[slot.label]
    others = [v for k, v in values.items() if k.startswith(slot.parameter.name + "[")]
    return float(np.exp(np.mean(np.log(others)))) if others else slot.parameter.start


def _mix(name: str) -> int:
    h = 2166136261
    for b in name.encode():
        h = (h ^ b) * 16777619 % 2**32
    return h
