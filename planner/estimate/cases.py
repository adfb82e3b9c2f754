"""Rows in, predictions out: many at once, as arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import UserError
from planner.estimate.resolve import Resolved, resolve
from planner.estimate.rows import Row
from planner.perf.calibration import Calibration, calibration_for
from planner.perf.serving import CLOSED, OFFLINE, OPEN, STATIC, Cases, Overheads, Served, overheads, serve
from planner.perf.step import Coefficients, Stack, coefficients, stack

KIND = {"closed-loop": CLOSED, "saturated": CLOSED, "offline": OFFLINE, "static": STATIC, "open-loop": OPEN, "slo-max": OPEN}

CalibrationOf = Callable[[Row, Resolved], Calibration]


def shipped(row: Row, r: Resolved) -> Calibration:
    """The shipped constants for the row's engine on its GPU."""
    return calibration_for(row.engine, row.engine_version, r.deployment.hardware)


def cases_of(rows: Sequence[Row], resolved: Sequence[Resolved], calibs: Sequence[Calibration]) -> Cases:
    """Loads per rank."""
    inf = math.inf

    def array(values: list[float]) -> np.ndarray:
        return np.array(values, dtype=np.float64)

    return Cases(
        isl=array([r.isl_tokens for r in rows]),
        osl=array([r.osl_tokens for r in rows]),
        clients=array([max(r.concurrency / q.ranks, 1.0) if r.concurrency else inf for r, q in zip(rows, resolved, strict=True)]),
        rate=array([(r.rate_rps or 0.0) / q.ranks for r, q in zip(rows, resolved, strict=True)]),
        kv_tokens=array([q.kv_tokens for q in resolved]),
        max_seqs=array([q.max_seqs for q in resolved]),
        chunk=array([q.chunk_tokens for q in resolved]),
        prefill_first=np.array([c.prefill_first for c in calibs]),
        kind=np.array([KIND[r.kind] for r in rows], dtype=np.intp),
        speculation=np.array([r.speculation for r in rows]),
        spread=np.array([r.isl_tokens + r.osl_tokens < r.reserved_tokens for r in rows]),
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows with everything that does not depend on the constants."""

    rows: tuple[Row, ...]
    resolved: tuple[Resolved, ...]


def resolve_all(rows: Sequence[Row]) -> tuple[Batch, list[tuple[Row, UserError]]]:
    """Rows that can be predicted, and the others with their reasons."""
    ok: list[Row] = []
    found: list[Resolved] = []
    bad: list[tuple[Row, UserError]] = []
    for r in rows:
        try:
            q = resolve(r)
        except UserError as e:
            bad.append((r, e))
            continue
        ok.append(r)
        found.append(q)
    return Batch(tuple(ok), tuple(found)), bad
