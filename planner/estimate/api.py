"""What the command line asks: one configuration with its reasons, or a file of measured rows in bulk."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from planner.documents import read_text, shown_path
from planner.errors import UserError, Where
from planner.estimate.cases import Predicted, SimulateTtft, predict, shipped
from planner.estimate.possible import check_asked, check_measured
from planner.estimate.resolve import Resolved, resolve
from planner.estimate.rows import Kind, Measured, Row, canonical, engine_of, gpu_id, parse
from planner.perf.anchors import configuration_key
from planner.perf.bands import band
from planner.perf.calibration import Calibration
from planner.perf.deployment import Deployment

COLUMNS = ("pred_ttft_ms", "pred_tpot_ms", "pred_output_tok_s_total", "pred_kv_tokens", "pred_error")
LARGEST_CSV = 64 * 1024 * 1024
_LAYOUTS = (
    ("model", "gpu", "engine", "tp", "isl", "osl"),
    ("model_path", "system", "backend", "isl", "osl", "length_factor"),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One predicted figure with its 80% band."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """One configuration at one load."""

    row: Row
    deployment: Deployment
    prefill: Deployment | None
    calibration: Calibration
    ttft_s: Figure | None
    """None where more clients wait than the cache admits (it is then queueing), or the run does not define it."""
    tpot_s: Figure | None
    """None where an answer is a single token: there is no gap to time."""
    output_tok_s: Figure
    kv_tokens: float
    running: float
    """Sequences decoding at a time, per rank."""
    saturated: bool
    limit_rps: float | None
    """The stability limit, requests/s, where requests arrive at a rate of their own."""
    anchored_rows: int
    """Measurements of this very configuration that the prediction is corrected by."""
    warnings: tuple[str, ...]


def estimate_one(
    *,
    model: str,
    gpu: str,
    engine: str,
    engine_version: str = "",
    precision: str = "",
    kv: str = "",
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: bool = False,
    gpus: int | None = None,
    isl_tokens: float,
    osl_tokens: float,
    concurrency: float | None = None,
    rate_rps: float | None = None,
    kind: Kind = "closed-loop",
    simulate: SimulateTtft | None = None,
) -> Estimate:
    """Predict one configuration: a closed loop of `concurrency`, a Poisson `rate_rps`, or the offline maximum."""
    if kind in ("closed-loop", "saturated", "static") and concurrency is None:
        if rate_rps is None:
            raise UserError(
                "case", "neither concurrency nor request rate is given", None, (), ("add --concurrency or --rate",)
            )
        kind = "open-loop"
    row = Row(
        id="",
        model=model,
        gpu=gpu_id(gpu),
        gpus=gpus,
        engine=engine_of(engine),
        engine_version=engine_version,
        date="",
        tp=tp,
        pp=pp,
        dp=dp,
        ep=ep,
        prefill=None,
        decode=None,
        precision=precision or native_precision(model),
        kv=kv,
        isl_tokens=isl_tokens,
        osl_tokens=osl_tokens,
        reserved_tokens=isl_tokens + osl_tokens,
        concurrency=concurrency,
        rate_rps=rate_rps,
        kind=kind,
        speculation=False,
        admitted=False,
        source="asked",
        note="",
        measured=Measured(),
    )
    return estimate_row(row, simulate=simulate)


def native_precision(model: str) -> str:
    """The checkpoint's own."""
    from planner.estimate.names import model_of

    return str(model_of(model).native.precision)


def estimate_row(row: Row, *, simulate: SimulateTtft | None = None) -> Estimate:
    """One row with bands and warnings."""
    r = resolve(row)
    told = check_asked(row, r)
    calib = shipped(row, r)
    p = predict([row], [r], [calib], simulate=simulate)
    model_seen = canonical(row.model) in calib.models
    rows = calib.anchors.rows("tpot", configuration_key(row.configuration))

    def figure(metric: str, value: float) -> Figure:
        low, high = band(calib, metric, model_seen=model_seen, gpu_seen=calib.gpu_measured, anchored=rows > 0)
        return Figure(value, value * low, value * high)

    ttft = float(p.ttft_s[0])
    warnings = [*told, *([calib.warning] if calib.warning else [])]
    if not model_seen:
        warnings.append(f"model {row.model} was never measured: its band is that of models left out")
    if r.deployment.arch.approximate:
        warnings += list(r.deployment.arch.approximate)
    limit, tpot = None, float(p.tpot_s[0])
    if row.kind == "open-loop" and row.rate_rps is not None:
        most = predict([replace(row, kind="offline", rate_rps=None)], [r], [calib])
        limit = float(most.output_tok_s[0]) / row.osl_tokens
    saturated = bool(p.saturated[0]) or (limit is not None and row.rate_rps is not None and row.rate_rps >= limit)
    if limit is not None and saturated:
        tpot = float(most.tpot_s[0])
        warnings.insert(
            0,
            f"saturated: {row.rate_rps:g} requests/s are more than the stability limit of {limit:.3g}/s; the queue "
            "grows without end, and TPOT and throughput are those at the limit",
        )
    return Estimate(
        row=row,
        deployment=r.deployment,
        prefill=r.prefill,
        calibration=calib,
        ttft_s=None if saturated or math.isnan(ttft) else figure("ttft", ttft),
        tpot_s=figure("tpot", tpot) if row.osl_tokens > 1 else None,
        output_tok_s=figure("throughput", float(p.output_tok_s[0])),
        kv_tokens=float(p.kv_tokens[0]),
        running=float(p.running[0]),
        saturated=saturated,
        limit_rps=limit,
        anchored_rows=rows,
        warnings=tuple(warnings),
    )


# ---------------------------------------------------------------- bulk


@dataclass(frozen=True, slots=True)
class CasesDone:
    """What became of a file."""

    rows: int
    predicted: int
    refused: int


def estimate_cases(in_path: Path, out_path: Path, *, simulate: SimulateTtft | None = None) -> CasesDone:
    """Predict every row of a measurement CSV; the same rows with five columns more go to `out_path`.

    A row that cannot be predicted keeps its place, its reason in `pred_error` and no number.
    """
    header, lines = read_cases(in_path)
    predictions = predict_lines(header, lines, simulate=simulate)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*header, *COLUMNS])
    for line, p in zip(lines, predictions, strict=True):
        writer.writerow([*line[: len(header)], *[""] * (len(header) - len(line)), *p])
    try:
        out_path.write_text(text.getvalue(), encoding="utf-8")
    except OSError as e:
        shown = shown_path(out_path)
        raise UserError("cannot-write", f"{shown} cannot be written: {e.strerror}", Where(shown)) from e
    refused = sum(1 for p in predictions if p[-1])
    return CasesDone(len(lines), len(lines) - refused, refused)


def read_cases(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and lines of a CSV of measured rows; UserError where it is not one."""
    text = read_text(path, what="cases file", largest=LARGEST_CSV)
    where = Where(shown_path(path))
    try:
        table = [
            line for line in csv.reader(io.StringIO(text.removeprefix("\ufeff"))) if any(cell.strip() for cell in line)
        ]
    except csv.Error as e:
        raise UserError("csv", f"not a CSV file: {e}", where) from e
    if not table:
        raise UserError("csv", "the cases file is empty", where, (), ("its first line names the columns",))
    header = [h.strip() for h in table[0]]
    twice = sorted({h for h in header if header.count(h) > 1 and h})
    if twice:
        raise UserError("csv", f"column {twice[0]!r} stands twice", where, (), ("keep one of them",))
    clash = [c for c in COLUMNS if c in header]
    if clash:
        raise UserError(
            "csv", f"column {clash[0]!r} is an output of this command", where, (), ("remove the pred_ columns",)
        )
    missing = [[c for c in layout if c not in header] for layout in _LAYOUTS]
    if all(missing):
        least = min(missing, key=len)
        raise UserError(
            "csv",
            f"column {least[0]!r} is missing",
            where,
            (
                f"the columns of measurements_open.csv are needed ({', '.join(_LAYOUTS[0])}, ...)",
                f"or those of silicon_open.csv joined with silicon_resolved.csv ({', '.join(_LAYOUTS[1])}, ...)",
            ),
        )
    return header, table[1:]


def predict_lines(
    header: Sequence[str], lines: Sequence[Sequence[str]], *, simulate: SimulateTtft | None = None
) -> list[tuple[str, str, str, str, str]]:
    """The five columns of every line."""
    found: list[tuple[str, str, str, str, str]] = [("", "", "", "", "")] * len(lines)
    rows: list[Row] = []
    resolved: list[Resolved] = []
    places: list[int] = []
    for i, line in enumerate(lines):
        try:
            if len(line) > len(header):
                raise UserError("case", f"{len(line)} fields where the header has {len(header)}")
            row = parse(dict(zip(header, line, strict=False)))
            one = resolve(row)
            check_measured(row, one)
        except UserError as e:
            found[i] = ("", "", "", "", " ".join(e.message.split()))
            continue
        rows.append(row)
        resolved.append(one)
        places.append(i)
    p = predict(rows, resolved, [shipped(r, q) for r, q in zip(rows, resolved, strict=True)], simulate=simulate)
    for j, i in enumerate(places):
        found[i] = _columns(rows[j], p, j)
    return found


def _columns(row: Row, p: Predicted, j: int) -> tuple[str, str, str, str, str]:
    def shown(value: float, scale: float = 1.0) -> str:
        return f"{value * scale:.5g}" if np.isfinite(value) else ""

    # The offline maximum has no TTFT worth the name; a saturated closed loop's is its queue.
    ttft = "" if row.kind in ("offline", "slo-max") else shown(p.ttft_s[j], 1e3)
    return (
        ttft,
        shown(p.tpot_s[j], 1e3) if row.osl_tokens > 1 else "",
        shown(p.output_tok_s[j]),
        f"{p.kv_tokens[j]:.0f}" if np.isfinite(p.kv_tokens[j]) else "",
        "",
    )
