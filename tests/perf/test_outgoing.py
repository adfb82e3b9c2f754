"""What a prefill replica's cache holds until its prompts have left, in closed form, beside the simulation."""

from __future__ import annotations

import math

import pytest

from planner.perf.load import LoadModel
from planner.perf.pair import PairModel
from planner.perf.pool import Handover
from planner.simulate.run import SimPool, SimSpec, simulate
from tests.simulate.helpers import pool, traffic

CHAT = traffic(1024, 64)
SLOW = Handover(131072, 2e9)
"""67 ms for the bytes of a mean prompt, which takes 39 ms to compute."""
FAR = Handover(131072, 5e9, latency_s=0.5)


def pair(cache: float, handover: Handover, *, isl: int = 1024, cv: float = 1.0) -> PairModel:
    prefill = pool(role="prefill", kv_capacity=cache, max_num_batched_tokens=4096)
    return PairModel(prefill, pool(role="decode", max_num_seqs=256), handover, [traffic(isl, 64, cv=cv)])


@pytest.mark.parametrize(
    ("cache", "handover", "isl", "cv"), [(30_000.0, SLOW, 1024, 1.0), (60_000.0, FAR, 6000, 0.7)], ids=["slow", "far"]
)
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_within_sight_of_the_simulation(cache: float, handover: Handover, isl: int, cv: float, load: float) -> None:
    m = pair(cache, handover, isl=isl, cv=cv)
    rate = load * m.prefill_max_per_s
    result = m.evaluate(rate, rate)
    pools = (SimPool("p", m.prefill.pool), SimPool("d", m.decode.pool))
    sim = simulate(SimSpec(pools, (traffic(isl, 64, cv=cv, rate=rate),), handover=handover, requests=10_000))
    assert 0.95 <= result.prefill.kv_mean_ratio / sim.pools[0].kv_mean_ratio <= 1.45
    assert result.prefill.kv_p99_ratio > 0.98 * sim.pools[0].kv_p99_ratio
    ttft, seen = result.classes[0].ttft, sim.classes[0]
    assert 0.95 <= ttft.mean / seen.value("ttft", "mean") <= 1.4
    assert 0.85 <= ttft.stat("p99") / seen.value("ttft", "p99") <= 1.4


def test_the_cache_limits_the_rate() -> None:
    """Little's law: rate x seconds held x tokens, with its swing, is the cache; the links and the GPU as before."""
    roomy = pair(1e9, SLOW)
    out = roomy.prefill.outgoing
    assert out is not None
    link = SLOW.bytes_per_s / (SLOW.bytes_per_token * roomy.prefill.grid.mean(roomy.prefill.grid.input_tokens))
    assert roomy.prefill_max_per_s == pytest.approx(link)
    assert roomy.prefill_max_per_s < LoadModel(pool(role="prefill", max_num_batched_tokens=4096), [CHAT]).lambda_max
    most = [pair(cache, SLOW).prefill_max_per_s for cache in (8e3, 2e4, 1e5, 1e9)]
    assert most == sorted(most)
    assert most[0] < 0.6 * link
    assert most[-1] == pytest.approx(link)
    tight = pair(2e4, SLOW)
    out = tight.prefill.outgoing
    assert out is not None
    mean, sd = out.held(tight.prefill_max_per_s)
    assert mean + 1.5 * sd == pytest.approx(2e4, rel=1e-6)
    # Without the swing more would fit; each prompt is held for longer than its transfer takes.
    assert out.most_per_s(0.0) > tight.prefill_max_per_s
    assert mean / tight.prefill_max_per_s / (1024 + 9) > SLOW.seconds(1024)


def test_a_far_decode_pool_holds_by_littles_law() -> None:
    """Half a second on the way and hardly any bytes: as many prompts are held as come in that time."""
    m = pair(1e6, Handover(1.0, 1e12, latency_s=0.5), isl=1000, cv=0.0)
    result = m.prefill.evaluate(10.0)
    alone_s = 6e-3 + 0.0325e-3 * 1000
    held = result.kv_mean_ratio * 1e6 / 1009
    assert 10 * (0.5 + alone_s) <= held <= 10 * (0.5 + 3 * alone_s)
    assert result.queue_ratio < 1e-6
    assert dict(result.methods)["kv"] == "prompts read and on their way"


def test_room_enough_changes_nothing() -> None:
    m, plain = pair(1e9, Handover(131072, 50e9)), LoadModel(pool(role="prefill", max_num_batched_tokens=4096), [CHAT])
    assert m.prefill.lambda_max == plain.lambda_max
    rate = 0.7 * plain.lambda_max
    a, b = m.prefill.evaluate(rate).classes[0].ttft, plain.evaluate(rate).classes[0].ttft
    assert a.mean == b.mean
    assert a.stat("p99") == b.stat("p99")


def test_a_full_cache_makes_prompts_wait() -> None:
    """At the highest rate that fits, an arrival finds the cache full now and then, and its TTFT says so."""
    tight, roomy = pair(9e3, FAR), pair(1e9, FAR)
    rate = 0.95 * tight.prefill_max_per_s
    a, b = tight.prefill.evaluate(rate), roomy.prefill.evaluate(rate)
    assert a.queue_ratio > 0.01
    assert b.queue_ratio < 1e-6
    assert a.classes[0].ttft.stat("p99") > b.classes[0].ttft.stat("p99")
    assert math.isfinite(a.classes[0].ttft.mean)


def test_the_wait_for_the_links_is_an_m_g_1_queue() -> None:
    out = pair(1e9, SLOW, cv=0.0).prefill.outgoing
    assert out is not None
    for load in (0.2, 0.5, 0.8):
        rate = load / out.linked_s
        wait = out.link_wait(rate)
        exact = load * out.linked_s / 2 / (1 - load)  # M/D/1
        assert wait.mean >= exact
        assert wait.mean == pytest.approx(out.link_wait_s(rate), rel=0.05)
        assert wait.stat("p50") < wait.mean or load > 0.6
        assert wait.stat("p99") > 2 * wait.mean
