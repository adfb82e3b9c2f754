"""Sweeps: the grid, resuming, the same table whoever computes it, errors as rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from planner.errors import UserError
from planner.intent.resolve import Words
from planner.sweep import points, run_sweep
from planner.sweep.run import Base, base_words
from tests.command import plan

ROOT = Path(__file__).resolve().parent.parent.parent
VARY = ["rate=5/s,20/s", "slo.itl=1ms,40ms"]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def base() -> Base:
    return Base("fleets/h100.yaml", None, None, base_words(Words(input="500", output="100")), verify=False)


def test_grid_order() -> None:
    assert [dict(p.values) for p in points(["a=1,2".replace("a", "tp"), "rate=1/s"])] == [
        {"tp": "1", "rate": "1/s"}, {"tp": "2", "rate": "1/s"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("vary", "text"),
    [
        ("rate", "not key=value"),
        ("rte=1", "cannot be varied"),
        ("rate=", "not key=value"),
        ("slo.itl=" + ",".join(["1ms"] * 200_000), "at most"),
    ],
    ids=["no value", "unknown", "empty", "huge"],
)
def test_bad_grids(vary: str, text: str) -> None:
    with pytest.raises(UserError, match=text):
        points([vary])


def test_varied_twice() -> None:
    with pytest.raises(UserError, match="varied twice"):
        points(["rate=1/s", "rate=2/s"])


def test_table_and_resuming(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    rows = run_sweep(base(), points(VARY), table, workers=1)
    assert [r["status"] for r in rows] == ["impossible", "optimal", "impossible", "optimal"]
    assert "slo-itl" in rows[0]["error"]
    first = table.read_bytes()
    log = table.with_name("t.csv.points.jsonl")
    lines = log.read_text().splitlines()
    assert len(lines) == 4
    # Killed in the middle of writing a line: that point runs again, the finished ones do not.
    log.write_text("\n".join(lines[:2]) + "\n" + lines[2][:20])
    marked = json.loads(lines[0])
    marked["row"]["error"] = "kept from the first run"
    log.write_text("\n".join([json.dumps(marked), lines[1], lines[2][:20]]))
    again = run_sweep(base(), points(VARY), table, workers=1)
    assert again[0]["error"] == "kept from the first run"
    assert again[1:] == rows[1:]
    log.unlink()
    run_sweep(base(), points(VARY), table, workers=2)
    assert table.read_bytes() == first


def test_command(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    ran = plan(
        "sweep", "--fleet", "fleets/h100.yaml", "--slo", "itl=50ms", "--input", "500", "--output", "100", "--vary",
        "rate=5/s,10/s", "-o", str(table), "--workers", "1", "--no-verify",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    with table.open() as f:
        rows = list(csv.DictReader(f))
    assert [r["rate"] for r in rows] == ["5.0", "10.0"] or [float(r["rate"]) for r in rows] == [5.0, 10.0]
    assert plan("sweep", "--fleet", "fleets/h100.yaml", "--vary", "rate=5/s", "-o", str(tmp_path / "t.txt")).code == 2
