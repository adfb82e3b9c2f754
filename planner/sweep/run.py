"""Running the points of a sweep: resumable, in order, the same table whoever computes it.

Each finished point is one line in `<table>.points.jsonl`, written at once and keyed by its digest; an interrupted
sweep started again repeats none of them. The table itself is written at the end, in grid order.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from planner.errors import Exit, UserError
from planner.intent.resolve import Words
from planner.sweep.grid import Point

COLUMNS = (
    "status", "gpus", "cost_per_hour", "odds", "scale", "rate", "pools", "itl_p99_ms", "ttft_p95_ms", "worst_slack",
    "error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Base:
    """What every point shares, as plain values that another process can take."""

    fleet: str
    intent_file: str | None
    platform_file: str | None
    words: tuple[tuple[str, Any], ...]
    verify: bool

    def plain(self) -> list[Any]:
        return [self.fleet, self.intent_file, self.platform_file, [list(w) for w in self.words], self.verify]


def base_words(words: Words) -> tuple[tuple[str, Any], ...]:
    """What was said for all points."""
    return tuple((f.name, getattr(words, f.name)) for f in fields(words) if getattr(words, f.name) not in (None, ()))


def run_point(base: Base, point: Point) -> dict[str, Any]:
    """One point -> one row of plain values. An impossible or wrong point is a row with its reason, never an end."""
    from planner.pipeline import ask, make_plan, scale_prices

    said = dict(base.words)
    fleet, price = base.fleet, 1.0
    row: dict[str, Any] = dict(point.values)
    try:
        for key, value in point.values:
            if key == "fleet":
                fleet = value
            elif key == "price":
                price = _float(value, key)
            elif key.startswith("slo."):
                said["slo"] = (*(s for s in said.get("slo", ()) if s.split("=")[0] != key[4:]), f"{key[4:]}={value}")
            elif key in ("tp", "max_context"):
                said[key] = int(_float(value, key))
            else:
                said[key] = (value,) if key == "precision" else value
        question = ask(
            fleet=Path(fleet),
            intent_files=(Path(base.intent_file),) if base.intent_file else (),
            platform_file=Path(base.platform_file) if base.platform_file else None,
            words=Words(**said),
        )
        plan = make_plan(scale_prices(question, price), verify=base.verify)
    except UserError as e:
        status = {Exit.NO_PLAN: "impossible", Exit.TIME_LIMIT: "time limit"}.get(e.exit_code, "input")
        return {**row, "status": status, "error": f"{e.code}: {e.message}"}
    figures = [f for s in plan.services for p in s.pools for c in p.classes for f in c.figures]
    limited = [f for f in figures if f.limit is not None]
    row |= {
        "status": plan.status,
        "gpus": plan.totals.gpus,
        "cost_per_hour": round(plan.totals.cost, 4),
        "odds": plan.totals.odds,
        "scale": plan.totals.scale,
        "rate": round(sum(p.rate for s in plan.services for p in s.pools if p.role != "decode"), 6),
        "pools": "; ".join(
            f"{p.name} {p.replicas}x {p.gpu} tp{p.shape.tp} {s.model.precision} "
            f"b{p.max_num_batched_tokens} s{p.max_num_seqs}"
            for s in plan.services
            for p in s.pools
        ),
        "itl_p99_ms": _worst(figures, "itl.p99"),
        "ttft_p95_ms": _worst(figures, "ttft.p95"),
        "worst_slack": round(min((1 - f.value / f.limit for f in limited if f.limit), default=1.0), 4),
    }
    return row


def _worst(figures: Sequence[Any], metric: str) -> float | None:
    found = [f.value * 1e3 for f in figures if f.metric == metric]
    return round(max(found), 4) if found else None


def _float(value: str, key: str) -> float:
    try:
        return float(value)
    except ValueError as e:
        raise UserError("bad-vary", f"{value!r} is not a number for {key}") from e


def run_sweep(
    base: Base,
    grid: Sequence[Point],
    table: Path,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Callable[[str], None] = lambda _t: None,
) -> list[dict[str, Any]]:
    """Run what is not finished yet and write the table; returns its rows in grid order."""
    if table.suffix not in (".csv", ".parquet"):
        raise UserError(
            "bad-table", f"{table.name} is neither CSV nor Parquet", None, (), ("name the table *.csv or *.parquet",)
        )
    log = table.with_name(table.name + ".points.jsonl")
    done = _finished(log)
    keys = {p.number: p.key(base.plain()) for p in grid}
    todo = [p for p in grid if keys[p.number] not in done]
    try:
        table.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as out:
            results = _dask(base, todo, scheduler) if scheduler else _local(base, todo, workers)
            for count, (point, row) in enumerate(results, 1):
                done[keys[point.number]] = row
                out.write(json.dumps({"key": keys[point.number], "row": row}, ensure_ascii=False) + "\n")
                out.flush()
                progress(f"{len(grid) - len(todo) + count} of {len(grid)} points")
        rows = [done[keys[p.number]] for p in grid]
        _write(table, rows, [k for k, _ in grid[0].values] if grid else [])
    except OSError as e:
        raise UserError("cannot-write", f"{table.name} cannot be written: {e.strerror}") from e
    return rows


def _finished(log: Path) -> dict[str, dict[str, Any]]:
    """Points of an earlier run. A line cut short by a kill is the last one and is run again."""
    found: dict[str, dict[str, Any]] = {}
    if log.is_file():
        for line in log.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
                found[entry["key"]] = entry["row"]
            except (json.JSONDecodeError, KeyError, TypeError):
                continue
    return found


def _local(base: Base, todo: Sequence[Point], workers: int | None) -> Iterator[tuple[Point, dict[str, Any]]]:
    count = workers or os.cpu_count() or 1
    if count == 1 or len(todo) <= 1:
        for point in todo:
            yield point, run_point(base, point)
        return
    with ProcessPoolExecutor(max_workers=min(count, len(todo))) as pool:
        futures = {pool.submit(run_point, base, p): p for p in todo}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _dask(base: Base, todo: Sequence[Point], scheduler: str) -> Iterator[tuple[Point, dict[str, Any]]]:
    try:
        from distributed import Client
        from distributed import as_completed as arriving
    except ImportError as e:
        raise UserError(
            "needs-distributed",
            "a Dask cluster needs the package distributed",
            None,
            (),
            ("pip install 'llm-deployment-planner[distributed]'",),
        ) from e
    try:
        client = Client(scheduler, timeout="20s", set_as_default=False)
    except (OSError, ValueError) as e:
        raise UserError(
            "no-scheduler", f"no Dask scheduler answers at {scheduler}", None, (str(e),), ("start one: dask scheduler",)
        ) from e
    with client:
        # A worker that dies takes no point with it: the scheduler gives its tasks to another (twice per point at most).
        futures = {client.submit(run_point, base, p, key=f"plan-{p.key(base.plain())}", retries=2): p for p in todo}
        for future in arriving(futures, loop=client.loop):
            yield futures[future], future.result()


def _write(table: Path, rows: Sequence[dict[str, Any]], varied: Sequence[str]) -> None:
    columns = [*varied, *(c for c in COLUMNS if c not in varied)]
    temporary = table.with_name(table.name + ".tmp")
    if table.suffix == ".parquet":
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as e:
            raise UserError(
                "needs-pyarrow",
                "Parquet needs the package pyarrow",
                None,
                (),
                ("pip install pyarrow, or name the table *.csv",),
            ) from e
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist([{c: r.get(c) for c in columns} for r in rows]), temporary
        )
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        temporary.write_text(text.getvalue(), encoding="utf-8")
    temporary.replace(table)
