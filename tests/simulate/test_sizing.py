"""Searching with the simulation: smallest counts, closed loops."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.intent.traces import busiest_minute, summarise_file
from planner.simulate.closed import closed_loop_ttft
from planner.simulate.run import SimPool, SimSpec, TraceReplay
from planner.simulate.sizing import smallest_count, smallest_pool, survives
from tests.simulate.helpers import additive, pool, traffic


@given(need=st.integers(1, 300), start=st.integers(1, 400), most=st.integers(1, 400))
def test_smallest_count_is_the_smallest(need: int, start: int, most: int) -> None:
    asked: list[int] = []

    def holds(n: int) -> bool:
        asked.append(n)
        return n >= need

    found = smallest_count(holds, start=min(start, most), most=most)
    assert found == (need if need <= most else None)
    assert len(asked) < 24


def test_a_burst_needs_more_replicas_than_its_rate(tmp_path: Path) -> None:
    """Forty requests at once every twenty seconds: 2/s on average, which one replica carries four times over."""
    path = tmp_path / "burst.csv"
    rows = [f"{20.0 * b},{1500},{60}\n" for b in range(40) for _ in range(40)]
    path.write_text("timestamp_s,input_tokens,output_tokens\n" + "".join(rows))
    c = traffic(1500, 60, rate=2.0, slo=("ttft.p95=800ms",))
    smooth = SimSpec((SimPool("p", pool()),), (c,), requests=2000)
    assert survives(smooth)[0]
    burst = SimSpec((SimPool("p", pool()),), (c,), traces={"chat": TraceReplay(path)}, warmup_ratio=0.0)
    found = smallest_pool(burst, most=64)
    # 40 prompts of 50 ms each, 800 ms: at least 3 replicas; the search agrees with both neighbours.
    assert found is not None
    assert found >= 3
    for count, kept in ((found, True), (found - 1, False)):
        spread = SimSpec(
            (SimPool("p", pool(), count, "least-loaded"),), (c,), traces={"chat": TraceReplay(path)}, warmup_ratio=0.0
        )
        assert survives(spread)[0] is kept
    assert smallest_pool(burst, most=found - 1) is None
    assert busiest_minute(summarise_file(path)) == pytest.approx(2.0, rel=0.5)


def test_one_client_waits_for_nobody() -> None:
    t = additive()
    r = closed_loop_ttft(t, concurrency=1, isl=1000, osl=100)
    assert r.ttft_mean_s == pytest.approx(6e-3 + 1000 * 0.0325e-3, rel=1e-6)
    assert r.ttft_p99_s == pytest.approx(r.ttft_mean_s, rel=1e-6)
    assert r.tpot_mean_s == pytest.approx(6e-3 + 0.0325e-3 + 1050 * 5e-8, rel=1e-3)


def test_clients_that_start_at_once_queue_behind_each_other() -> None:
    t = additive()
    few, many = (closed_loop_ttft(t, concurrency=n, isl=1000, osl=200) for n in (4, 64))
    assert many.ttft_mean_s > 3 * few.ttft_mean_s
    # Lengths that differ spread the later waves.
    assert closed_loop_ttft(t, concurrency=64, isl=1000, osl=200, length_spread=0.3).ttft_p50_s < many.ttft_p50_s
    capped = closed_loop_ttft(t, concurrency=64, isl=1000, osl=200, max_num_seqs=16)
    assert capped.ttft_mean_s > many.ttft_mean_s
    assert capped.tpot_mean_s < many.tpot_mean_s


def test_a_closed_loop_is_seeded() -> None:
    runs = {closed_loop_ttft(additive(), concurrency=16, isl=500, osl=100, length_spread=0.2) for _ in range(3)}
    assert len(runs) == 1
