"""The open measurements as data to fit: which rows, which of their figures, and why the others are left out."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.calibrate import exclusions
from planner.calibrate.fit import Data
from planner.errors import UserError
from planner.estimate.resolve import Resolved, resolve
from planner.estimate.rows import Row, parse
from planner.perf.calibration import generation_of

SNAPSHOT = "2026-11-29"
"""Day of the measurement files; the fit date that a calibration carries (never the clock)."""


@dataclass(frozen=True, slots=True)
class Usable:
    """One row that may be used, with its figures after the rules (None where not to be used)."""

    row: Row
    tpot_s: float | None
    ttft_s: float | None
    output_tok_s: float | None
    tpot_p99_s: float | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One row that is not used, and why."""

    id: str
    reason: str


def table(path: Path) -> list[dict[str, str]]:
    """A CSV as dictionaries; UserError where it is not there."""
    if not path.is_file():
        raise UserError("no-such-file", f"measurement file {path.name} is not in {path.parent.name}")
    with path.open(newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def read(folder: Path) -> tuple[list[Usable], list[LeftOut]]:
    """Both open files: usable rows, and the others with reasons. Rows that stand in both count once."""
    usable: list[Usable] = []
    out: list[LeftOut] = []
    for raw in table(folder / "measurements_open.csv"):
        _take(raw, usable, out, flag="", tpot=True, ttft=True)
    resolved = {r["id"]: r for r in table(folder / "silicon_resolved.csv")}
    flags = {r["id"]: r["flag"] for r in table(folder / "silicon_flags.csv")}
    for raw in table(folder / "silicon_open.csv"):
        more = resolved[raw["id"]]
        _take(
            {**raw, **more},
            usable,
            out,
            flag=flags.get(raw["id"], ""),
            tpot=more["use_tpot"] == "1",
            ttft=more["use_ttft"] == "1",
        )
    return usable, out


def _take(raw: dict[str, str], usable: list[Usable], out: list[LeftOut], *, flag: str, tpot: bool, ttft: bool) -> None:
    name = raw["id"]
    why = _reason(raw, flag)
    if why is None:
        try:
            row = parse(raw)
        except UserError as e:
            why = e.message
    if why is not None:
        out.append(LeftOut(name, why))
        return
    m, kind = row.measured, row.kind
    at_load = kind in ("offline", "slo-max")
    found = Usable(
        row,
        tpot_s=m.tpot_s if tpot and not at_load else None,
        # A saturated run's TTFT is queueing; a median is not the mean that the others report.
        ttft_s=m.ttft_s if ttft and not at_load and kind != "saturated" and name not in exclusions.NO_TTFT else None,
        output_tok_s=m.output_tok_s
        if kind not in ("slo-max", "open-loop") and name not in exclusions.NO_THROUGHPUT
        else None,
        tpot_p99_s=m.tpot_p99_s if not at_load else None,
    )
    if found.tpot_s is None and found.ttft_s is None and found.output_tok_s is None:
        out.append(LeftOut(name, "no figure that may be used (saturated TTFT, rate given, or flagged)"))
        return
    usable.append(found)


def _reason(raw: dict[str, str], flag: str) -> str | None:
    if "duplicate_of" in flag:
        return "copy of another row"
    if "also_in_measurements_open" in flag:
        return "counted in measurements_open.csv"
    if raw.get("predictable", "yes") != "yes":
        return f"predictable: {raw['predictable']}"
    if raw.get("suspect"):
        return f"suspect: {raw['suspect']}"
    return exclusions.reason(raw["id"], raw.get("source_group", ""))


def resolve_rows(usable: list[Usable]) -> tuple[list[tuple[Usable, Resolved]], list[LeftOut]]:
    """Rows whose deployment the catalogue knows, and the refused ones."""
    ok: list[tuple[Usable, Resolved]] = []
    refused: list[LeftOut] = []
    for u in usable:
        try:
            ok.append((u, resolve(u.row)))
        except UserError as e:
            refused.append(LeftOut(u.row.id, e.message))
    return ok, refused


def generation(row: Row, resolved: Resolved) -> str:
    """Engine generation of a row."""
    return generation_of(row.engine, row.engine_version, resolved.deployment.hardware)


def as_data(pairs: list[tuple[Usable, Resolved]]) -> Data:
    """Arrays of one set of rows."""

    def array(values: list[float | None]) -> np.ndarray:
        return np.array([np.nan if v is None else v for v in values])

    return Data(
        tuple(u.row for u, _ in pairs),
        tuple(q for _, q in pairs),
        array([u.tpot_s for u, _ in pairs]),
        array([u.ttft_s for u, _ in pairs]),
        array([u.output_tok_s for u, _ in pairs]),
    )


def by_generation(pairs: list[tuple[Usable, Resolved]]) -> dict[str, Data]:
    """Data of every generation, in the order of their names."""
    names = sorted({generation(u.row, q) for u, q in pairs})
    return {n: as_data([(u, q) for u, q in pairs if generation(u.row, q) == n]) for n in names}


def summary(left_out: list[LeftOut]) -> list[tuple[str, int]]:
    """Reasons and how many rows each took, most first."""

    def kind(reason: str) -> str:
        return reason if len(reason) < 70 else reason[:70]

    return Counter(kind(x.reason) for x in left_out).most_common()
