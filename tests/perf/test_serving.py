"""Serving model: limits it must meet, and the directions physics gives it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import UserError
from planner.estimate import estimate_one
from planner.estimate.cases import predict, shipped
from planner.estimate.resolve import resolve
from planner.estimate.rows import Measured, Row
from planner.perf.calibration import calibration_for
from planner.perf.step import step_s
from planner.perf.waves import waves


def row(**changes) -> Row:
    base = Row(
        id="x",
        model="meta-llama/Llama-3.3-70B-Instruct",
        gpu="h100-sxm",
        gpus=4,
        engine="vllm",
        engine_version="0.19.0",
        date="",
        tp=4,
        pp=1,
        dp=1,
        ep=False,
        prefill=None,
        decode=None,
        precision="fp8",
        kv="bf16",
        isl_tokens=2000.0,
        osl_tokens=500.0,
        reserved_tokens=2600.0,
        concurrency=16.0,
        rate_rps=None,
        kind="closed-loop",
        speculation=False,
        admitted=False,
        source="test",
        note="",
        measured=Measured(),
    )
    return replace(base, **changes)


def served(*rows: Row, anchors: bool = False):
    resolved = [resolve(r) for r in rows]
    return predict(rows, resolved, [shipped(r, q) for r, q in zip(rows, resolved, strict=True)], anchors=anchors)


def test_one_client_sees_bare_decode_steps() -> None:
    r = row(concurrency=1.0)
    q = resolve(r)
    p = served(r)
    alone = step_s(q.deployment, shipped(r, q), decode_seqs=1, context_tokens=2250)
    assert p.tpot_s[0] == pytest.approx(alone, rel=1e-6)


def test_output_is_what_the_clients_get() -> None:
    p = served(row())
    cycle = p.ttft_s[0] + 499 * p.tpot_s[0]
    assert p.output_tok_s[0] == pytest.approx(16 * 500 / cycle, rel=1e-6)


@given(st.floats(1, 200), st.floats(1.0, 2.0), st.sampled_from(["vllm", "sglang", "tensorrt-llm"]))
def test_tpot_does_not_fall_with_concurrency(clients: float, factor: float, engine: str) -> None:
    p = served(row(concurrency=clients, engine=engine), row(concurrency=clients * factor, engine=engine))
    assert p.tpot_s[1] >= p.tpot_s[0] * (1 - 1e-3)


@given(st.floats(50, 30_000), st.floats(1.0, 2.0), st.floats(1, 8), st.sampled_from(["vllm", "sglang", "tensorrt-llm"]))
def test_ttft_does_not_fall_with_the_prompt(isl: float, factor: float, clients: float, engine: str) -> None:
    a, b = (row(isl_tokens=x, reserved_tokens=x + 600, concurrency=clients, engine=engine) for x in (isl, isl * factor))
    p = served(a, b)
    assert p.ttft_s[1] >= p.ttft_s[0] * (1 - 1e-3)


def test_more_clients_than_the_cache_holds_are_said_to_be_saturated() -> None:
    few, many = row(concurrency=8.0), row(concurrency=4000.0)
    p = served(few, many)
    assert not p.saturated[0]
    assert p.saturated[1]
    assert p.output_tok_s[1] > p.output_tok_s[0]


def test_offline_is_the_most() -> None:
    p = served(row(concurrency=64.0), row(concurrency=None, kind="offline"))
    assert p.output_tok_s[1] >= p.output_tok_s[0] * 0.99
    assert np.isnan(p.ttft_s[1])


def test_a_static_batch_is_prefill_then_steps() -> None:
    p = served(row(kind="static", concurrency=8.0))
    assert p.output_tok_s[0] == pytest.approx(8 * 500 / (p.ttft_s[0] + 499 * p.tpot_s[0]), rel=1e-6)


def test_open_loop_carries_its_rate_until_it_cannot() -> None:
    slow, fast = (
        row(concurrency=None, rate_rps=0.5, kind="open-loop"),
        row(concurrency=None, rate_rps=500.0, kind="open-loop"),
    )
    p = served(slow, fast)
    assert p.output_tok_s[0] == pytest.approx(250.0)
    assert p.output_tok_s[1] < 500 * 500
    assert p.saturated[1]


def test_replicas_share_the_clients() -> None:
    p = served(row(gpus=4, concurrency=16.0), row(gpus=8, concurrency=32.0))
    assert p.tpot_s[1] == pytest.approx(p.tpot_s[0])
    assert p.output_tok_s[1] == pytest.approx(2 * p.output_tok_s[0])


def test_pipeline_stages_work_at_the_same_time() -> None:
    """Two stages of four GPUs carry about as much as two replicas would, not half of it (the forgotten factor)."""
    one = served(row(kind="offline", concurrency=None)).output_tok_s[0]
    staged = served(row(kind="offline", concurrency=None, pp=2, gpus=8)).output_tok_s[0]
    assert 1.5 * one < staged < 3.5 * one


def test_the_first_wave_waits_half_the_clients() -> None:
    table = waves()
    slow_readers = table(clients=np.array([64.0]), think_ratio=np.array([150.0]))[0]
    assert slow_readers == pytest.approx(64 / 2 / 10, rel=0.1)
    # No time to think: everybody always queues behind everybody else.
    assert table(clients=np.array([64.0]), think_ratio=np.array([0.02]))[0] > 50


def test_sglang_runs_prefill_first() -> None:
    hw = resolve(row()).deployment.hardware
    assert calibration_for("sglang", "", hw).prefill_first
    assert not calibration_for("vllm", "", hw).prefill_first


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="does not fit"):
        resolve(row(model="deepseek-ai/DeepSeek-R1", tp=1, gpus=1))


def test_an_estimate_carries_bands_and_reasons() -> None:
    e = estimate_one(
        model="meta-llama/Llama-3.3-70B-Instruct",
        gpu="h100-sxm",
        engine="vllm",
        engine_version="0.33.0",
        precision="fp8",
        tp=4,
        isl_tokens=3000,
        osl_tokens=400,
        concurrency=32,
    )
    assert e.tpot_s.low < e.tpot_s.value < e.tpot_s.high
    assert e.warnings == ()
    unseen = estimate_one(
        model="google/gemma-3-27b-it", gpu="l40s", engine="vllm", tp=4, isl_tokens=3000, osl_tokens=400, concurrency=4
    )
    assert any("never measured" in w for w in unseen.warnings)
    assert unseen.tpot_s.high / unseen.tpot_s.low > e.tpot_s.high / e.tpot_s.low
