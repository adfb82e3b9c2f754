"""Closed form against simulation where replicas are not plain: bursts, prefill-first, ranks in lock-step.

A handful; `benchmarks/load.py` has more, and what is promised of all of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.perf.load import LoadModel
from planner.perf.pool import PoolSpec
from planner.perf.traffic import ClassLoad
from planner.simulate.run import ClassSample, SimPool, SimSpec, simulate
from tests.simulate.helpers import pool, traffic

CHAT, SHORT, RAG = traffic(1024, 256), traffic(4000, 70, cv=0.4), traffic(6000, 300, cv=0.7)


def seen_at(p: PoolSpec, c: ClassLoad, rate: float, *, requests: int = 8000) -> ClassSample:
    return simulate(SimSpec((SimPool("p", p),), (c.at(rate),), requests=requests, seeds=(2, 3))).classes[0]


@pytest.mark.parametrize(
    ("p", "c", "load"),
    [
        (pool(), replace(CHAT, arrivals_cv=0.5), 0.6),
        (pool(), replace(CHAT, arrivals_cv=3.0), 0.5),
        (pool(), replace(RAG, arrivals_cv=2.0), 0.6),
        (pool(max_num_batched_tokens=4096), SHORT, 0.6),
        (pool(scheduler="prefill-first"), CHAT, 0.6),
        (pool(scheduler="prefill-first", max_num_batched_tokens=8192), RAG, 0.7),
        (pool(lockstep_ranks=8), RAG, 0.6),
        (pool(lockstep_ranks=4, scheduler="prefill-first"), CHAT, 0.6),
    ],
)
def test_gaps_and_first_tokens(p: PoolSpec, c: ClassLoad, load: float) -> None:
    model = LoadModel(p, [c])
    rate = load * model.lambda_max
    form, seen = model.evaluate(rate).classes[0], seen_at(p, c, rate)
    assert form.itl.mean == pytest.approx(seen.value("itl", "mean"), rel=0.10)
    assert form.itl.quantile(0.99) == pytest.approx(seen.value("itl", "p99"), rel=0.15)
    assert 1.0 <= form.ttft.quantile(0.99) / seen.value("ttft", "p99") <= 1.7


@pytest.mark.parametrize("ranks", [2, 16])
def test_idle_ranks_decode_at_the_idle_step(ranks: int) -> None:
    p = pool(lockstep_ranks=ranks)
    model = LoadModel(p, [CHAT])
    rate = 0.02 * model.lambda_max
    form = model.evaluate(rate).classes[0]
    assert form.itl.mean == pytest.approx(seen_at(p, CHAT, rate, requests=3000).value("itl", "mean"), rel=0.03)


def test_a_decode_alone_has_the_idle_step_however_low_the_rate() -> None:
    for p in (pool(), pool(scheduler="prefill-first"), pool(lockstep_ranks=8), pool(role="decode")):
        m = LoadModel(p, [CHAT])
        found = m.evaluate(1e-5 * m.lambda_max).classes[0].itl
        assert found.mean == pytest.approx(float(m.step[0]), rel=0.05)


@pytest.mark.parametrize(
    ("p", "c"),
    [
        (pool(scheduler="prefill-first"), CHAT),
        (pool(lockstep_ranks=8), RAG),
        (pool(lockstep_ranks=4, scheduler="prefill-first"), RAG),
    ],
)
def test_sustainable_rate(p: PoolSpec, c: ClassLoad) -> None:
    most = LoadModel(p, [c]).lambda_max
    rate, requests = 1.5 * most, 16_000
    ends = (0.3 * requests / rate, requests / rate)
    done = [
        simulate(SimSpec((SimPool("p", p),), (c.at(rate),), requests=requests, horizon_s=end)).books.finished
        for end in ends
    ]
    assert most == pytest.approx((done[1] - done[0]) / (ends[1] - ends[0]), rel=0.05)


def test_bursts_wait_longer_and_even_arrivals_shorter() -> None:
    rate = 0.6 * LoadModel(pool(), [CHAT]).lambda_max
    found = [
        LoadModel(pool(), [replace(CHAT, arrivals_cv=cv)]).evaluate(rate).classes[0].ttft.quantile(0.99)
        for cv in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
    ]
    assert found == sorted(found)
    assert np.isfinite(found).all()
