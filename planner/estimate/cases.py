"""Rows in, predictions out: many at once, as arrays.

Rows that share a deployment and constants share coefficients; everything else is a few array operations over all
rows, so ten thousand rows take about a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.estimate.anchors import effect_keys
from planner.estimate.resolve import Resolved
from planner.estimate.rows import Row
from planner.perf.calibration import Calibration, calibration_for
from planner.perf.serving import CLOSED, OFFLINE, OPEN, STATIC, Cases, overheads, serve
from planner.perf.step import Array, coefficients, stack

KIND = {
    "closed-loop": CLOSED,
    "saturated": CLOSED,
    "offline": OFFLINE,
    "static": STATIC,
    "open-loop": OPEN,
    "slo-max": OFFLINE,
}

CalibrationOf = Callable[[Row, Resolved], Calibration]
SimulateTtft = Callable[[Row, Resolved, Calibration], float | None]
"""TTFT of one row by event simulation, seconds, or None where it has nothing to say. Handed in by the caller."""

# Share of the offline maximum that the highest Poisson rate within MLPerf's server limits reaches: measured pairs of
# the same submission lie between 0.75 and 0.98 (MLPerf v5.1 tables), their middle is used.
SLO_MAX_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predictions of many rows; NaN where a figure is not defined for that kind of run."""

    ttft_s: Array
    tpot_s: Array
    output_tok_s: Array
    """Of the whole deployment."""
    kv_tokens: Array
    """One replica's (or rank's) cache."""
    running: Array
    saturated: NDArray[np.bool_]
    ttft_p99_s: Array


def shipped(row: Row, r: Resolved) -> Calibration:
    """The shipped constants for the row's engine on its GPU, at the age of the release that ran."""
    return calibration_for(row.engine, row.engine_version, r.deployment.hardware, date=row.date)


def cases_of(rows: Sequence[Row], resolved: Sequence[Resolved], prefill_first: Sequence[bool]) -> Cases:
    """Loads per rank."""

    def array(values: list[float]) -> Array:
        return np.array(values, dtype=np.float64)

    pairs = list(zip(rows, resolved, strict=True))
    return Cases(
        isl=array([r.isl_tokens for r in rows]),
        osl=array([r.osl_tokens for r in rows]),
        clients=array([max(r.concurrency / q.ranks, 1.0) if r.concurrency else math.inf for r, q in pairs]),
        rate=array([(r.rate_rps or 0.0) / q.ranks for r, q in pairs]),
        # Where the file says that nobody queued, what it says beats what the memory model makes of unknown flags.
        admitted=array(
            [max(q.max_seqs, (r.concurrency or 0.0) / q.ranks) if r.admitted else q.max_seqs for r, q in pairs]
        ),
        chunk=array([q.chunk_tokens for q in resolved]),
        prefill_first=np.array(list(prefill_first), dtype=bool),
        kind=np.array([KIND[r.kind] for r in rows], dtype=np.intp),
        speculation=np.array([r.speculation for r in rows], dtype=bool),
        spread=np.array([r.isl_tokens + r.osl_tokens < r.reserved_tokens for r in rows], dtype=bool),
        dp=array([float(q.deployment.shape.dp) for q in resolved]),
    )


def _shared(keys: list[Any]) -> tuple[list[int], NDArray[np.intp]]:
    """(first row of each distinct key, each row's place among them)."""
    seen: dict[Any, int] = {}
    first: list[int] = []
    index: list[int] = []
    for i, key in enumerate(keys):
        at = seen.setdefault(key, len(seen))
        if at == len(first):
            first.append(i)
        index.append(at)
    return first, np.array(index, dtype=np.intp)


def predict(
    rows: Sequence[Row],
    resolved: Sequence[Resolved],
    calibrations: Sequence[Calibration],
    *,
    anchors: bool = True,
    simulate: SimulateTtft | None = None,
) -> Predicted:
    """Closed-form predictions of measured points; with anchors, where their configuration or release was measured."""
    n = len(rows)
    if n == 0:
        none = np.zeros(0)
        return Predicted(none, none, none, none, none, np.zeros(0, dtype=bool), none)
    first, index = _shared([(id(q.deployment), id(c.constants)) for q, c in zip(resolved, calibrations, strict=True)])
    decode = stack([coefficients(resolved[i].deployment, calibrations[i]) for i in first]).take(index)
    apart = np.array([q.prefill is not None for q in resolved], dtype=bool)
    pre = None
    if apart.any():
        first, place = _shared(
            [(id(q.prefill or q.deployment), id(c.constants)) for q, c in zip(resolved, calibrations, strict=True)]
        )
        pre = stack([coefficients(resolved[i].prefill or resolved[i].deployment, calibrations[i]) for i in first]).take(
            place
        )
    ranks = np.array([q.ranks for q in resolved])
    served = serve(
        decode,
        cases_of(rows, resolved, [c.prefill_first for c in calibrations]),
        overheads([c.constants for c in calibrations]),
        prefill_stack=pre,
        disaggregated=apart,
        ranks=ranks,
        prefill_ranks=np.array([q.prefill_ranks for q in resolved]),
    )
    made = Predicted(
        served.ttft_s,
        served.tpot_s,
        served.output_tok_s * ranks,
        np.array([q.kv_tokens for q in resolved]),
        served.running,
        served.saturated,
        served.ttft_p99_s,
    )
    if anchors:
        made = corrected(rows, calibrations, made)
    if simulate is not None:
        ttft = made.ttft_s.copy()
        for i in np.flatnonzero(~made.saturated & np.isfinite(ttft)).tolist():
            own = simulate(rows[i], resolved[i], calibrations[i])
            ttft[i] = ttft[i] if own is None else own
        made = replace(made, ttft_s=ttft)
    slo = np.array([r.kind == "slo-max" for r in rows], dtype=bool)
    asked = np.array([(r.rate_rps or math.inf) * r.osl_tokens for r in rows])
    best = made.output_tok_s * np.where(slo, SLO_MAX_RATIO, 1.0)
    # No run puts out more than it is asked for.
    return replace(made, output_tok_s=np.minimum(best, asked))


def corrected(rows: Sequence[Row], calibrations: Sequence[Calibration], p: Predicted) -> Predicted:
    """Measured corrections on top: TPOT and TTFT each their own; throughput follows them in a closed loop."""

    keys = [effect_keys(r, "tpot") for r in rows]
    first = [k if r.decode is None else effect_keys(r, "ttft") for r, k in zip(rows, keys, strict=True)]

    def gain(metric: str, names: list[tuple[str, ...]]) -> Array:
        return np.array([c.anchors.sum(metric, k) for c, k in zip(calibrations, names, strict=True)])

    tpot, ttft, output = np.exp(gain("tpot", keys)), np.exp(gain("ttft", first)), np.exp(gain("throughput", keys))
    closed = np.array([KIND[r.kind] == CLOSED and r.decode is None for r in rows], dtype=bool)
    gaps = np.array([max(r.osl_tokens - 1.0, 0.0) for r in rows])
    before = p.ttft_s + gaps * p.tpot_s
    after = p.ttft_s * ttft + gaps * p.tpot_s * tpot
    with np.errstate(invalid="ignore", divide="ignore"):
        flow = np.where(closed & ~p.saturated, before / after, np.where(closed, 1.0 / tpot, output))
    return replace(
        p,
        tpot_s=p.tpot_s * tpot,
        ttft_s=p.ttft_s * ttft,
        ttft_p99_s=p.ttft_p99_s * ttft,
        output_tok_s=p.output_tok_s * np.where(np.isfinite(flow), flow, 1.0),
    )
