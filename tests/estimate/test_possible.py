"""Configurations that cannot run are refused before a figure is given; measured rows, which ran, are not."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from planner.estimate.api import predict_lines, read_cases
from tests.command import plan

MODEL = ("estimate", "--model", "meta-llama/Llama-3.1-8B", "--gpu", "h100-sxm")
HERE = Path(__file__).resolve().parent.parent / "validation" / "measured.csv"


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (("--tp", "3", "--isl", "1000", "--osl", "100"), ("error[heads]", "32 attention heads", "tp 1, 2, 4")),
        (("--isl", "200000", "--osl", "100"), ("error[context]", "131,072")),
        (("--isl", "100000000", "--osl", "100"), ("error[context]", "131,072")),
        (("--isl", "nan", "--osl", "100"), ("--isl", "nan is not a finite number")),
        (("--isl", "100", "--osl", "inf"), ("--osl", "inf is not a finite number")),
        (("--isl", "100", "--osl", "0.5"), ("--osl",)),
    ],
)
def test_impossible(words: tuple[str, ...], texts: tuple[str, ...]) -> None:
    ran = plan(*MODEL, *words, "--concurrency", "4")
    assert ran.code == 2
    assert ran.out == ""
    for text in texts:
        assert text in ran.err


def test_one_request_must_fit() -> None:
    model = ("--model", "meta-llama/Llama-3.1-8B", "--gpu", "l4")
    ran = plan("estimate", *model, "--isl", "100000", "--osl", "100", "--concurrency", "1")
    assert ran.code == 2
    assert "less than one request of 100,100" in ran.err


def test_overload_names_the_limit() -> None:
    words = (*MODEL, "--isl", "1000", "--osl", "200", "--format", "json")
    over = json.loads(plan(*words, "--rate", "300/s").out)
    assert over["saturated"]
    assert over["ttft_s"] is None
    assert over["limit_rps"] < 300
    assert f"stability limit of {over['limit_rps']:.3g}/s" in over["warnings"][0]
    under = json.loads(plan(*words, "--rate", "3/s").out)
    assert not under["saturated"]
    assert under["limit_rps"] == pytest.approx(over["limit_rps"])


def test_one_token_has_no_gap() -> None:
    data = json.loads(plan(*MODEL, "--isl", "1000", "--osl", "1", "--concurrency", "4", "--format", "json").out)
    assert data["tpot_s"] is None
    assert data["output_tok_s"]["value"] > 0


def test_in_a_file_the_reason_stands_in_the_row() -> None:
    header, lines = read_cases(HERE)
    row = dict(zip(header, next(x for x in lines if "Llama-3.1-8B" in ",".join(x)), strict=False))
    for change, text in (({"tp": "3"}, "do not divide"), ({"isl": "200000"}, "131,072")):
        made = {**row, **change}
        found = predict_lines(header, [[made[h] for h in header]])[0]
        assert found[:4] == ("", "", "", "")
        assert text in found[4]


def test_measured_rows_stay_predicted(shared: Path) -> None:
    path = shared / "measurements" / "measurements_open.csv"
    header, lines = read_cases(path)
    with path.open(newline="") as f:
        yes = [r["predictable"] == "yes" for r in csv.DictReader(f)]
    found = predict_lines(header, lines)
    assert sum(1 for p, y in zip(found, yes, strict=True) if y and not p[-1]) >= 1702
