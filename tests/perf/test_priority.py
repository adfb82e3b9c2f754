"""Classes of different priority in closed form: Cobham's means, the simulation, and what must not change."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from planner.perf.figures import TTFT_SAFETY
from planner.perf.load import LoadModel
from planner.perf.pool import PoolSpec
from planner.perf.priority import Stretch, slot_nodes
from planner.perf.traffic import ClassLoad
from planner.simulate.run import SimPool, SimSpec, simulate
from tests.simulate.helpers import pool, traffic

CHAT = traffic(400, 150, name="chat", rate=4.0)
BATCH = replace(traffic(6000, 400, cv=0.7, name="batch"), priority=10)
SHORT = traffic(200, 100, cv=0.6, name="chat", rate=10.0)
MIDDLE = replace(traffic(2000, 600, cv=0.5, name="batch"), priority=10)


@pytest.mark.parametrize("load", [0.4, 0.6, 0.8])
def test_prompts_of_many_steps_wait_as_cobham_says(load: float) -> None:
    """Twenty steps of 14.3 ms for every prompt: W_k = W0 / ((1 - s_(k-1)) (1 - s_k)) with W0 = lambda D^2 / 2."""
    p = pool(role="prefill", max_num_batched_tokens=256)
    prompt_s = 20 * (6e-3 + 0.0325e-3 * 256)
    rates = {"first": 3.0, "second": 5.0, "third": 2.0}
    classes = [
        replace(traffic(5120, 1, cv=0.0, name=n, rate=r), priority=5 * i) for i, (n, r) in enumerate(rates.items())
    ]
    found = {c.name: c.ttft.mean for c in LoadModel(p, classes).evaluate(load / prompt_s).classes}
    first_come = LoadModel(p, [replace(c, priority=0) for c in classes]).evaluate(load / prompt_s)
    before, kept = 0.0, 0.0
    for name, share in rates.items():
        s = load * share / 10
        exact = load * prompt_s / 2 / ((1 - before) * (1 - before - s))
        assert found[name] / TTFT_SAFETY - prompt_s == pytest.approx(exact, rel=0.12)
        before += s
        kept += share / 10 * found[name]
    # Equal prompts: the order moves waits between classes and changes nothing in all.
    assert kept == pytest.approx(first_come.classes[0].ttft.mean, rel=0.04)


@pytest.mark.parametrize("load", [0.4, 0.6, 0.8])
@pytest.mark.parametrize(
    ("spec", "classes"),
    [
        (pool(), (CHAT, BATCH)),
        (pool(max_num_batched_tokens=8192), (CHAT, BATCH)),
        (pool(), (SHORT, MIDDLE)),
        (pool(scheduler="prefill-first", max_num_batched_tokens=8192), (CHAT, BATCH)),
        (pool(role="prefill"), (CHAT, BATCH)),
    ],
    ids=["chunks", "whole", "short", "prefill-first", "prefill"],
)
def test_within_sight_of_the_simulation_and_on_the_safe_side(
    spec: PoolSpec, classes: tuple[ClassLoad, ...], load: float
) -> None:
    m = LoadModel(spec, classes)
    rate = load * m.lambda_max
    total = math.fsum(c.rate_per_s for c in classes)
    result = m.evaluate(rate)
    plain = LoadModel(spec, [replace(c, priority=0) for c in classes]).evaluate(rate)
    at = tuple(c.at(c.rate_per_s * rate / total) for c in classes)
    requests = 60_000 if spec.role == "prefill" else 12_000  # long queues of few long prompts: noisy, but cheap
    sim = simulate(SimSpec((SimPool("p", spec),), at, requests=requests))
    for f in result.classes:
        q = sim.sample(f.name)
        assert 0.97 * q.value("ttft", "mean") <= f.ttft.mean <= 1.4 * q.value("ttft", "mean")
        width = q.half_width("ttft", "p99")
        assert f.ttft.stat("p99") >= 0.98 * q.value("ttft", "p99") - width
        assert f.ttft.stat("p99") <= 1.35 * q.value("ttft", "p99") + width
    (chat, batch), (chat_before, batch_before) = result.classes, plain.classes
    assert chat.ttft.stat("p99") < chat_before.ttft.stat("p99")
    assert batch.ttft.mean > 0.995 * batch_before.ttft.mean
    assert chat.itl.stat("p99") == chat_before.itl.stat("p99")


@pytest.mark.parametrize(("chat", "batch"), [(1.0, 1e-6), (1e-6, 1.0)])
def test_one_level_is_the_special_case(chat: float, batch: float) -> None:
    """Where the other class hardly ever comes, priorities say what the chain of one level says."""
    classes = (CHAT.at(chat), BATCH.at(batch))
    ranked, plain = (LoadModel(pool(), [replace(c, priority=c.priority * k) for c in classes]) for k in (1, 0))
    rate = 0.7 * plain.lambda_max
    which = 0 if chat > batch else 1
    a, b = ranked.evaluate(rate).classes[which].ttft, plain.evaluate(rate).classes[which].ttft
    assert a.mean == pytest.approx(b.mean, rel=0.02)
    assert a.stat("p99") == pytest.approx(b.stat("p99"), rel=0.04)


def test_equal_priorities_change_nothing() -> None:
    classes = (CHAT, BATCH)
    a, b = (LoadModel(pool(), [replace(c, priority=k) for c in classes]).evaluate(3.0) for k in (0, 40))
    for one, other in zip(a.classes, b.classes, strict=True):
        assert one.ttft.stat("p99") == other.ttft.stat("p99")
        assert one.e2e is not None
        assert other.e2e is not None
        assert one.e2e.mean == other.e2e.mean
    assert dict(a.methods)["ttft"] == "prompt backlog chain"
    mixed = LoadModel(pool(), classes).evaluate(3.0)
    assert dict(mixed.methods)["ttft"] == "prompt backlog chain, head-of-line priority"


def test_a_better_place_never_costs_the_class_anything() -> None:
    """Of three levels: the more classes stand behind a class, the less it waits."""
    others = (replace(CHAT, name="a", priority=10), replace(MIDDLE, name="b", priority=20))
    waits = []
    for priority in (5, 15, 25):
        classes = (replace(MIDDLE, name="own", priority=priority), *others)
        m = LoadModel(pool(), classes)
        waits.append(m.evaluate(0.75 * m.lambda_max).classes[0].ttft)
    for stat in ("mean", "p90", "p99"):
        values = [w.stat(stat) for w in waits]
        assert values == sorted(values)
        assert values[2] > 1.05 * values[0]


def test_waits_for_a_slot() -> None:
    """Equal classes of one exponential answer: Cobham's means, and the same as first come, first served in all."""
    classes = [replace(traffic(50, 200, cv=1.0, name=n), priority=i) for i, n in enumerate("ab")]
    m = LoadModel(pool(role="decode", max_num_seqs=8), classes)
    rate = 0.8 * m.lambda_max
    run = m.running(rate)
    means = []
    for priority in (0, 1):
        values, weights = slot_nodes(m, run, priority, rate)
        assert float(weights.sum()) == pytest.approx(1.0)
        assert float(weights[1:].sum()) == pytest.approx(run.queue_ratio)
        means.append(float(values @ weights) / run.queue_ratio)
    alone = 1 / run.queue_rate_per_s
    assert means[0] == pytest.approx(alone * 0.2 / 0.6, rel=0.02)
    assert means[1] == pytest.approx(alone / 0.6, rel=0.02)
    assert (means[0] + means[1]) / 2 == pytest.approx(alone, rel=0.02)


def test_the_stretch_is_a_busy_period() -> None:
    over = Stretch(per_s=2.0, mean=3.0, second=15.0, load=0.4)
    values, weights = over.nodes(np.array([0.0, 0.1, 1.0, 20.0]))
    assert weights.sum(axis=-1) == pytest.approx(np.ones(4))
    mean = (values * weights).sum(axis=-1)
    assert mean == pytest.approx(np.array([0.0, 0.1, 1.0, 20.0]) * 2 * 3 / 0.6, rel=1e-6)
    variance = (values[3] ** 2 * weights[3]).sum() - mean[3] ** 2
    assert variance == pytest.approx(20 * 2 * 15 / 0.6**3, rel=0.15)
