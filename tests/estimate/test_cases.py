"""`plan estimate --cases`: a CSV in, the same rows with predictions or reasons out."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import pytest

from planner.errors import UserError
from planner.estimate import estimate_cases
from planner.estimate.api import COLUMNS, predict_lines, read_cases

HERE = Path(__file__).resolve().parent.parent / "validation" / "measured.csv"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as f:
        return list(csv.DictReader(f))


def write(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="") as f:
        w = csv.DictWriter(f, list(rows[0]))
        w.writeheader()
        w.writerows(rows)
    return path


def test_every_row_keeps_its_place_and_gets_five_columns(tmp_path: Path) -> None:
    good = rows_of(HERE)[0]
    source = write(tmp_path / "in.csv", good, {**good, "id": "bad", "gpu": "RTX-9999"}, {**good, "id": "last"})
    done = estimate_cases(source, tmp_path / "out.csv")
    assert (done.rows, done.predicted, done.refused) == (3, 2, 1)
    out = rows_of(tmp_path / "out.csv")
    assert [r["id"] for r in out] == [good["id"], "bad", "last"]
    assert list(out[0])[-5:] == list(COLUMNS)
    assert float(out[0]["pred_tpot_ms"]) > 0
    assert out[1]["pred_error"] == "unknown GPU 'RTX-9999'"
    assert (
        out[1]["pred_ttft_ms"]
        == out[1]["pred_tpot_ms"]
        == out[1]["pred_output_tok_s_total"]
        == out[1]["pred_kv_tokens"]
        == ""
    )
    assert out[2]["pred_tpot_ms"] == out[0]["pred_tpot_ms"]


def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    estimate_cases(HERE, tmp_path / "a.csv")
    estimate_cases(HERE, tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_a_simulation_can_give_the_ttft(tmp_path: Path) -> None:
    estimate_cases(
        HERE,
        tmp_path / "a.csv",
        simulate=lambda row, resolved, calibration: 1.25 if row.kind == "closed-loop" else None,
    )
    by_kind = {r["kind"]: r["pred_ttft_ms"] for r in rows_of(tmp_path / "a.csv")}
    assert by_kind["closed-loop"] == "1250"
    assert by_kind["static-batch"] != "1250"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the cases file is empty"),
        ("a,b\n1,2\n", "column 'model' is missing"),
        ("model,model\nx,y\n", "column 'model' stands twice"),
        ("model,gpu,engine,tp,isl,osl,pred_error\n", "column 'pred_error' is an output of this command"),
    ],
)
def test_what_is_not_a_cases_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "in.csv"
    path.write_text(text)
    with pytest.raises(UserError) as e:
        estimate_cases(path, tmp_path / "out.csv")
    assert e.value.message == message
    assert not (tmp_path / "out.csv").exists()


def test_files_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        estimate_cases(path, tmp_path / "out.csv")
    with pytest.raises(UserError, match="does not exist"):
        estimate_cases(tmp_path / "nowhere.csv", tmp_path / "out.csv")
    with pytest.raises(UserError, match="cannot be written"):
        estimate_cases(HERE, tmp_path / "no" / "folder" / "out.csv")


def test_ragged_lines(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text(
        "model,gpu,engine,tp,isl,osl,concurrency\nmeta-llama/Llama-3.1-8B-Instruct,H100-SXM,vllm,1,1000,100,4,more\nmeta-llama/Llama-3.1-8B-Instruct,H100-SXM\n"
    )
    estimate_cases(path, tmp_path / "out.csv")
    out = rows_of(tmp_path / "out.csv")
    assert out[0]["pred_error"] == "8 fields where the header has 7"
    assert out[1]["pred_error"] == "tensor parallelism is not stated"


def test_ten_thousand_rows_are_a_matter_of_seconds() -> None:
    header, lines = read_cases(HERE)
    many = (lines * (10_000 // len(lines) + 1))[:10_000]
    predict_lines(header, lines)
    start = time.process_time()
    predict_lines(header, many)
    # 10,000 a second on an idle core; three times that allowed for a busy machine.
    assert time.process_time() - start < 3.0
