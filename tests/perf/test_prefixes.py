"""What a replica's cache keeps of sessions' histories, in closed form."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from planner.perf.load import LoadModel
from planner.perf.pool import PoolSpec
from planner.perf.prefixes import Beside, PrefixModel
from planner.perf.sessions import TIMES_S, returns, untouched_s
from tests.simulate.helpers import conversation, pool, traffic

NOTHING = Beside(0.0, 0.0, 0.0)


def kept(p: PoolSpec, *, rate: float, beside: Beside = NOTHING, **words: object) -> float:
    """Probability that a turn finds its last one's context."""
    return PrefixModel(p, [conversation(**words)], [1.0]).kept(rate, beside)[0][0]


def test_the_characteristic_time_of_a_large_cache() -> None:
    """With thousands of contexts in it, their random number matters no more: T solves the mean's equation

    rate (c_K t / K + (c - c_K / K) Z (1 - e^(-t/Z))) = cache,   c: mean context, c_K: the last turn's
    """
    turns, think, rate, size = 50, 40.0, 100.0, 6e7
    c = conversation(isl=600, osl=200, cv=0.0, turns=turns, think_s=think)
    mean, last = 800 * (turns + 1) / 2, 800 * turns

    def standing(t: float) -> float:
        return rate * (last / turns * t + (mean - last / turns) * think * (1 - math.exp(-t / think)))

    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if standing(middle) < size - mean else (low, middle)
    expected = 1 - math.exp(-low / think)
    assert 0.3 < expected < 0.95
    found = PrefixModel(pool(kv_capacity=size), [c], [1.0]).kept(rate, NOTHING)[0][0]
    assert found == pytest.approx(expected, abs=0.02)


def test_less_is_kept_of_faster_traffic_longer_pauses_and_smaller_caches() -> None:
    def falls(found: list[float]) -> bool:
        return all(a > b for a, b in pairwise(found)) and found[0] < 0.99 and found[-1] > 0.01

    assert falls([kept(pool(kv_capacity=3e5), rate=r) for r in (3.0, 4.0, 6.0, 9.0)])
    assert falls([kept(pool(kv_capacity=3e5), rate=4.0, think_s=z) for z in (15.0, 30.0, 60.0, 240.0)])
    assert falls([kept(pool(kv_capacity=c), rate=4.0) for c in (3e5, 2e5, 1e5, 6e4)])
    # What runs leaves less, and its spread loses some of what the mean would keep.
    assert falls([kept(pool(kv_capacity=3e5), rate=4.0, beside=Beside(b, 0.0, 0.0)) for b in (0.0, 5e4, 1e5, 2e5)])
    roomy = [kept(pool(kv_capacity=5e5), rate=4.0, beside=Beside(1e5, sd, 0.0)) for sd in (0.0, 1e5, 2e5)]
    assert roomy == sorted(roomy, reverse=True)


def test_requests_without_sessions_take_their_part_of_the_cache() -> None:
    talk, plain = conversation(), traffic(2000, 200, name="plain")
    p = pool(kv_capacity=4e5)
    alone = PrefixModel(p, [talk], [1.0]).kept(4.0, NOTHING)[0][0]
    beside = PrefixModel(p, [talk, plain], [0.5, 0.5]).kept(8.0, NOTHING)
    assert beside[1] == ()
    assert 0 < beside[0][0] < alone - 0.05


def test_a_last_turn_stands_for_ever_and_others_until_the_next() -> None:
    words = {"think_s": 20.0, "response_s": 0.0, "answers": True}
    first, last = untouched_s(2.0, here=1.0, **words)
    assert last == pytest.approx(TIMES_S)
    assert first == pytest.approx(20 * (1 - np.exp(-TIMES_S / 20)))
    # On one of many replicas a context hardly ever sees its session again.
    spread = untouched_s(2.0, here=0.01, **words)[0]
    assert spread == pytest.approx(TIMES_S, rel=0.015)


def test_answers_given_elsewhere_put_the_return_off() -> None:
    at_once = returns(1, think_s=20.0, response_s=5.0, answers=True)
    later = returns(1, think_s=20.0, response_s=5.0, answers=False)
    assert at_once.sum() == pytest.approx(1)
    assert later @ TIMES_S - at_once @ TIMES_S == pytest.approx(5.0, rel=0.05)


def model(routing: str = "affinity", *, replicas: int = 1, size: float = 4e5, **words: object) -> LoadModel:
    return LoadModel(pool(kv_capacity=size, replicas=replicas), [conversation(routing=routing, **words)])


def test_the_load_model_counts_on_what_is_kept_at_its_rate() -> None:
    m = model()
    hits = [m.history_hit_ratios(share * m.lambda_max)["talk"] for share in (0.1, 0.4, 0.6, 0.8)]
    assert all(a > b for a, b in pairwise(hits))
    assert hits[0] > 0.99
    assert hits[-1] < 0.8
    # It knows the rate, so its answer is not the one with all histories, nor the one with none.
    ever = model(size=1e9)
    cold = LoadModel(m.pool, [m.classes[0].cold()])
    assert cold.lambda_max < m.lambda_max < ever.lambda_max
    rate = 0.8 * m.lambda_max
    ttft = [x.evaluate(rate).classes[0].ttft.mean for x in (ever, m, cold)]
    assert ttft == sorted(ttft)
    assert m.evaluate(rate).load == pytest.approx(0.8)
    assert not m.evaluate(m.lambda_max).stable


def test_hits_fall_with_replicas_under_round_robin_alone() -> None:
    affinity = [model(replicas=r).history_hit_ratios(3.0)["talk"] for r in (1, 4)]
    assert affinity[0] == affinity[1]
    scattered = [model("round-robin", replicas=r, size=2e6).history_hit_ratios(3.0)["talk"] for r in (1, 2, 4, 16)]
    assert scattered[0] == pytest.approx(model(size=2e6).history_hit_ratios(3.0)["talk"], abs=0.01)
    assert all(a > 1.2 * b for a, b in pairwise(scattered))
    # Ranks of one replica take requests by load, whatever they hold.
    ranks = LoadModel(pool(kv_capacity=2e6, lockstep_ranks=4), [conversation()]).history_hit_ratios(12.0)["talk"]
    assert ranks == pytest.approx(scattered[2], abs=0.05)


def test_nothing_is_looked_up_without_sessions_or_cold_or_where_only_answers_are_given() -> None:
    for m in (
        LoadModel(pool(), [traffic(1024, 256)]),
        LoadModel(pool(), [conversation().cold()]),
        LoadModel(pool(role="decode"), [conversation()]),
    ):
        assert m.at_rate(1.0) is m
        assert m.history_hit_ratios(1.0) == {}


def test_prefill_replicas_have_prompts_but_no_answers() -> None:
    m = LoadModel(pool(role="prefill", max_num_batched_tokens=8192, kv_capacity=1e9), [conversation(cv=0.0)])
    # Turn k finds k - 1 prompts and k - 2 answers of k - 1 both: of 600 + 200 a turn, all but the last 200.
    turns = np.arange(2, 7)
    assert m.history_hit_ratios(1.0)["talk"] == pytest.approx(
        (800 * (turns - 1) - 200).sum() / (800 * (turns - 1)).sum(), abs=0.005
    )
