"""The simulation against exact results, and against a scheduler that takes every step."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.perf.lengths import Histogram
from planner.perf.pool import Drafting, PoolSpec
from planner.perf.table import Curve, StepTable
from planner.perf.traffic import ClassLoad, JointLengths
from planner.simulate.engine import Replica
from planner.simulate.requests import BINS_PER_E, Ledger, Request
from planner.simulate.run import SimPool, SimSpec, simulate
from tests.simulate.helpers import bent, lengths, pool, traffic
from tests.simulate.reference import Job, run

FLAT = StepTable(Curve((0.0,), (0.01,)), Curve((0.0,), (0.01,)), (1,), (Curve((0.0,), (0.0,)),), Curve((0.0,), (0.0,)))
ALONE = PoolSpec(FLAT, 1, 4096, 1e9)


def waits(outputs: object, load: float, requests: int = 40_000) -> tuple[float, float]:
    """Mean wait of a single-slot replica with 10 ms steps, and the rate."""
    joint = JointLengths(lengths(100), outputs)  # type: ignore[arg-type]
    rate = load / (joint.output.mean * 0.01)
    spec = SimSpec((SimPool("one", ALONE),), (ClassLoad("c", rate, joint),), requests=requests, seeds=(3, 4))
    return simulate(spec).classes[0].value("ttft", "mean") - 0.01, rate


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_batch_cap_one_and_fixed_lengths_is_m_d_1(load: float) -> None:
    wait, _ = waits(lengths(20), load)
    assert wait == pytest.approx(load * 0.2 / (2 * (1 - load)), rel=0.06)


def test_batch_cap_one_and_geometric_answers_is_m_m_1() -> None:
    mean, load = 20.0, 0.7
    weights = [(1 - 1 / mean) ** k / mean for k in range(600)]
    geometric = Histogram(tuple(float(k + 1) for k in range(600)), tuple(w / sum(weights) for w in weights))
    wait, rate = waits(geometric, load)
    exact = rate * geometric.second_moment * 1e-4 / (2 * (1 - load))  # Pollaczek and Khinchine
    assert wait == pytest.approx(exact, rel=0.08)
    assert exact == pytest.approx(load * mean * 0.01 / (1 - load), rel=0.04)  # which is M/M/1 but for the lattice


def test_littles_law() -> None:
    c = traffic(1024, 256, rate=9.0)
    r = simulate(SimSpec((SimPool("p", pool()),), (c,), requests=20_000))
    # Everything in the system is running (no slot is ever short): L = lambda x time from arrival to the last token.
    assert r.pools[0].waiting_mean + r.pools[0].running_mean == pytest.approx(
        9.0 * r.classes[0].value("e2e", "mean"), rel=0.03
    )


def jobs(seed: int, count: int, gap_s: float) -> list[Job]:
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(gap_s, count))
    prompts = np.clip(rng.lognormal(5.5, 1, count).astype(int), 1, 4000)
    outputs = np.clip(rng.lognormal(3.5, 1, count).astype(int), 1, 800)
    cached = np.where(rng.random(count) < 0.3, prompts // 2, 0)
    return [Job(float(t), int(p), int(c), int(o)) for t, p, c, o in zip(at, prompts, cached, outputs, strict=True)]


@pytest.mark.parametrize("scheduler", ["decode-first", "prefill-first"])
@pytest.mark.parametrize(
    ("seed", "gap_s", "slots", "budget"), [(1, 0.08, 64, 512), (2, 0.02, 12, 300), (3, 0.5, 32, 2048)]
)
def test_jumps_equal_single_steps(scheduler: str, seed: int, gap_s: float, slots: int, budget: int) -> None:
    """Every first token, last token and gap of 300 requests, on a table with every kind of bend."""
    spec = PoolSpec(bent(), slots, budget, 1e9, scheduler=scheduler)  # type: ignore[arg-type]
    slow = jobs(seed, 300, gap_s)
    ledger = Ledger(1, 1, 0.0, 1e9)
    replica = Replica(spec, ledger)
    for i, j in enumerate(slow):
        replica.advance(j.at)
        replica.arrive(Request(i, j.at, 0, j.prompt, j.cached, j.output, 0), j.at)
    replica.advance(1e12)
    run(spec, slow)
    by_arrival = {a: (t, e) for a, t, e in zip(ledger.arrival_s, ledger.ttft_s, ledger.e2e_s, strict=True)}
    assert len(by_arrival) == 300
    for j in slow:
        ttft, e2e = by_arrival[j.at]
        assert ttft == pytest.approx(j.first - j.at, abs=1e-7)
        assert e2e == pytest.approx(j.last - j.at, abs=1e-7)
    gaps = np.array([g for j in slow for g in j.gaps])
    count, total = ledger.gap_sums[0][0]
    assert count == pytest.approx(len(gaps))
    assert total == pytest.approx(float(gaps.sum()), rel=1e-9)
    for q in (0.5, 0.9, 0.99):
        merged = ledger.gaps[0][0]
        seen, found = 0.0, 0.0
        for k in sorted(merged):
            seen += merged[k]
            if seen >= q * count:
                found = math.exp(k / BINS_PER_E)
                break
        assert found == pytest.approx(float(np.quantile(gaps, q)), rel=0.012)


def test_speculation_yields_its_expected_tokens() -> None:
    c = traffic(100, 400, cv=0.0, rate=0.05)
    plain = simulate(SimSpec((SimPool("p", pool()),), (c,), requests=300)).classes[0].value("itl", "mean")
    draft = Drafting(tokens=3, acceptance=0.6)
    spec = pool(drafting=draft)
    fast = simulate(SimSpec((SimPool("p", spec),), (c,), requests=300)).classes[0].value("itl", "mean")
    # A verification step holds four tokens instead of one.
    assert fast == pytest.approx((plain + 3 * 0.0325e-3) / draft.tokens_per_step, rel=0.02)
