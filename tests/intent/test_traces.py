"""Trace files: read row by row, refused with a place, summarised in bounded memory."""

from __future__ import annotations

import csv
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.errors import UserError
from planner.intent.document import TrafficClass
from planner.intent.traces import PAIRS, TraceRow, read_trace, summarise, summarise_file
from planner.perf.traffic import ClassLoad, class_load

HEAD = "timestamp_s,input_tokens,output_tokens\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("", "no column input_tokens", 1),
        ("a,b\n1,2\n", "no column input_tokens", 1),
        ("timestamp_s,input_tokens\n0,5\n", "no column output_tokens", 1),
        (HEAD, "has no rows", None),
        (HEAD + "\n\n", "has no rows", None),
        (HEAD + "0,5,5\n1,nan,5\n", "input_tokens is nan, not a finite number", 3),
        (HEAD + "0,5,inf\n", "output_tokens is inf, not a finite number", 2),
        (HEAD + "0,0,5\n", "input_tokens is 0, not a whole number of tokens", 2),
        (HEAD + "0,-3,5\n", "input_tokens is -3, not a whole number of tokens", 2),
        (HEAD + "0,5,2.5\n", "output_tokens is 2.5, not a whole number of tokens", 2),
        (HEAD + "0,5,999999999999\n", "not a whole number of tokens from 1 to 100,000,000", 2),
        (HEAD + "0,5,\n", "output_tokens is '', not a number", 2),
        (HEAD + "0,five,5\n", "input_tokens is 'five', not a number", 2),
        (HEAD + "nan,5,5\n", "timestamp_s is nan", 2),
        (HEAD + "1,5,5\n0.5,5,5\n", "timestamp 0.5 is before the row above it", 3),
        (HEAD + "0,5\n", "2 fields where the header has 3", 2),
        ("input_tokens,output_tokens,prefix_hit_tokens\n10,5,11\n", "not a whole number from 0 to the prompt's 10", 2),
    ],
)
def test_a_bad_trace_gives_one_clear_error(tmp_path: Path, text: str, message: str, line: int | None) -> None:
    with pytest.raises(UserError) as e:
        list(read_trace(write(tmp_path, text)))
    assert message in str(e.value)
    assert e.value.where is not None
    assert e.value.where.line == line


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        list(read_trace(tmp_path / "none.csv"))
    with pytest.raises(UserError, match="cannot be read"):
        list(read_trace(tmp_path))
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01" * 100)
    with pytest.raises(UserError):
        list(read_trace(binary))


def test_columns_by_other_names_and_order(tmp_path: Path) -> None:
    rows = list(read_trace(write(tmp_path, "GeneratedTokens,ContextTokens\n7,100\n8,200\n")))
    assert rows == [TraceRow(None, 100, 7, 0), TraceRow(None, 200, 8, 0)]


def test_a_trace_without_times_has_no_rate(tmp_path: Path) -> None:
    s = summarise_file(write(tmp_path, "input_tokens,output_tokens\n10,5\n20,6\n"))
    assert (s.rows, s.rate_per_s, s.interarrival_cv, s.peak_to_mean) == (2, None, None, {})
    assert s.input.mean == 15


def test_rates_burstiness_and_hits() -> None:
    # Ten requests in the first second, then one every second.
    times = [i * 0.1 for i in range(10)] + [float(i) for i in range(1, 91)]
    s = summarise(TraceRow(t, 100, 10, 50) for t in times)
    assert s.rate_per_s == pytest.approx(100 / 90)
    assert s.peak_to_mean["1s"] == pytest.approx(10 / (100 / 90))
    assert s.peak_to_mean["60s"] == pytest.approx(69 / (60 * 100 / 90))
    assert s.hit_ratio == 0.5
    assert s.correlation == 0.0


def test_the_digest_is_of_the_rows_not_of_the_file(tmp_path: Path) -> None:
    a = summarise_file(write(tmp_path, HEAD + "0,5,6\n1.0,7,8\n"))
    b = summarise_file(write(tmp_path, HEAD.replace(",", ", ") + "0.0,5,6\n\n1,7,8\n"))
    c = summarise_file(write(tmp_path, HEAD + "0,5,6\n1.0,7,9\n"))
    assert a.digest == b.digest != c.digest


def lots(count: int) -> Iterator[TraceRow]:
    for i in range(count):
        yield TraceRow(i * 0.01, 1 + (i * 7919) % 9000, 1 + (i * 104729) % 700, 0)


def test_memory_does_not_grow_with_the_rows() -> None:
    peaks = []
    for count in (20_000, 60_000):
        tracemalloc.start()
        s = summarise(lots(count))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert s.rows == count
        assert len(s.pairs) <= PAIRS
        assert sum(p[3] for p in s.pairs) == pytest.approx(1)
        assert sum(p[0] * p[3] for p in s.pairs) == pytest.approx(s.input.mean)
        assert sum(p[2] * p[3] for p in s.pairs) == pytest.approx(s.output.mean)
    assert peaks[1] < 1.8 * peaks[0]
    assert peaks[1] < 25e6


def test_a_summary_round_trips() -> None:
    s = summarise(lots(500))
    assert type(s).model_validate(s.model_dump(mode="json")) == s


def test_published_statistics(shared: Path) -> None:
    with (shared / "traces/summary.csv").open() as f:
        published = {r["trace"]: r for r in csv.DictReader(f)}
    for name in ("azure2023_code", "azure2023_conv", "mooncake_conversation", "mooncake_synthetic"):
        s, p = summarise_file(shared / f"traces/{name}.csv"), published[name]
        assert s.rows == int(p["n"])
        assert s.rate_per_s == pytest.approx(float(p["rate_rps"]), rel=1e-4)
        assert s.interarrival_cv == pytest.approx(float(p["cv_interarrival"]), abs=0.01)
        assert s.correlation == pytest.approx(float(p["corr_isl_osl"]), abs=0.002)
        for key, ours in (("isl", s.input), ("osl", s.output)):
            assert ours.mean == pytest.approx(float(p[f"{key}_mean"]), rel=1e-3)
            for q in ("p50", "p90", "p99"):
                assert getattr(ours, q) == pytest.approx(float(p[f"{key}_{q}"]), rel=0.005, abs=1)
        # The published means count a last, partial window as a whole one.
        for window in ("1s", "10s", "60s"):
            # Published for windows of a clock; ours slide, so that a burst across an edge is not halved.
            fixed = float(p[f"peak_to_mean_{window}"])
            assert 0.94 * fixed <= s.peak_to_mean[window] <= 2 * fixed
    assert summarise_file(shared / "traces/mooncake_conversation.csv").hit_ratio == pytest.approx(0.374, abs=0.001)


def test_routing_alone_takes_the_hits_from_the_trace(tmp_path: Path) -> None:
    (tmp_path / "hits.csv").write_text(
        "timestamp_s,input_tokens,output_tokens,prefix_hit_tokens\n0,2000,10,1600\n1,2000,10,1600\n"
    )
    (tmp_path / "none.csv").write_text("timestamp_s,input_tokens,output_tokens\n0,2000,10\n1,2000,10\n")

    def load(trace: str | None) -> ClassLoad:
        lengths = {"input": 100, "output": 10} if trace is None else {"trace": trace}
        cls = TrafficClass.model_validate({**lengths, "prefix_cache": {"routing": "affinity"}})
        summary = summarise_file(tmp_path / trace) if trace is not None else None
        return class_load(cls, trace=summary)

    warm = load("hits.csv")
    assert (warm.hits.traced, warm.hits.routing) == (True, "affinity")
    assert warm.grid(replicas=4).cached_tokens.tolist() == [1600]
    with pytest.raises(UserError, match="which counts none"):
        load("none.csv")
    with pytest.raises(ValueError, match="not how many there are"):
        load(None)


def test_a_burst_across_an_edge_of_the_clock_is_seen_whole(tmp_path: Path) -> None:
    def peak(start: float) -> float:
        quiet = [(5.0 * i, 1) for i in range(120)]
        burst = [(start + i, 10) for i in range(60)]
        rows = sorted(t for t, n in [*quiet, *burst] for _ in range(n))
        text = HEAD + "".join(f"{t},100,10\n" for t in rows)
        return summarise_file(write(tmp_path, text)).peak_to_mean["60s"]

    assert peak(300.0) == pytest.approx(peak(270.0))
    assert peak(300.0) == pytest.approx(612 / 60 / (719 / 595), rel=0.02)
