"""Prefill replicas keep a prompt's blocks until its cache has left: rates, occupancy, failures."""

from __future__ import annotations

import numpy as np
import pytest

from planner.perf.pool import Handover
from planner.simulate.run import Failure, SimPool, SimResult, SimSpec, simulate
from tests.simulate.helpers import pool, traffic

PROMPT = 1000
PREFILL_S = 6e-3 + 0.0325e-3 * PROMPT
SLOW = Handover(bytes_per_token=1e5, bytes_per_s=5e8, latency_s=0.02)
"""0.2 s for the bytes of one prompt, which takes 38.5 ms to compute."""
SENT_S = SLOW.seconds(PROMPT)
BLOCKS = 1008.0
"""Of one prompt and its first answer token."""


def pair(
    rate: float,
    *,
    prompts: float = 1e6,
    handover: Handover = SLOW,
    requests: int = 600,
    cv: float = 0.0,
    ranks: int = 1,
    failures: tuple[Failure, ...] = (),
    replicas: int = 1,
) -> SimResult:
    prefill = pool(
        role="prefill", max_num_batched_tokens=PROMPT, kv_capacity=prompts * BLOCKS + 1, lockstep_ranks=ranks
    )
    pools = (SimPool("p", prefill, replicas), SimPool("d", pool(role="decode"), replicas))
    c = traffic(PROMPT, 20, cv=cv, rate=rate)
    return simulate(SimSpec(pools, (c,), handover=handover, requests=requests, failures=failures))


def balanced(r: SimResult) -> None:
    b = r.books
    assert b.unfinished == 0
    assert b.arrived == b.finished + b.rejected
    assert b.rejected or b.tokens_out == b.tokens_asked


@pytest.mark.parametrize("prompts", [1, 2, 4, 50])
def test_a_tiny_cache_throttles_to_what_littles_law_says(prompts: int) -> None:
    """Rate = prompts that the cache holds / time each of them is held, until the link is the bottleneck."""
    far = Handover(bytes_per_token=1e5, bytes_per_s=2e9, latency_s=0.3)  # 50 ms on the link, 350 on the way
    r = pair(60.0, prompts=prompts, handover=far, requests=900)
    balanced(r)
    # Overloaded: arrivals end early, so the whole run's rate is that of the bottleneck.
    rate = 900 / (15.0 + r.classes[0].ttft_s.max())
    assert rate == pytest.approx(min(prompts / (PREFILL_S + far.seconds(PROMPT)), 1 / 0.05), rel=0.03)
    assert r.pools[0].kv_p99_ratio > 0.97


def test_the_cache_holds_what_littles_law_says() -> None:
    """Tokens held = rate x tokens x (prefill + wait for the link + transfer): what lies between the two pools."""
    rate, requests = 3.0, 6000
    r = pair(rate, prompts=20, requests=requests)
    balanced(r)
    prefill = SimPool("p", pool(role="prefill", max_num_batched_tokens=PROMPT))
    alone = simulate(SimSpec((prefill,), (traffic(PROMPT, 1, cv=0.0, rate=rate),), requests=requests))
    admitted_s = 9e-3  # a decode step under way, and the first one of its own
    between_s = float(r.classes[0].ttft_s.mean() - alone.classes[0].ttft_s.mean()) - admitted_s
    assert between_s > SENT_S
    held = (r.pools[0].kv_mean_ratio - 0.5 / 400) * (20 * BLOCKS + 1)  # the middle of a bin
    assert held == pytest.approx(rate * BLOCKS * (PREFILL_S + between_s), rel=0.05)


def test_room_enough_changes_nothing() -> None:
    tight, wide = (pair(3.0, prompts=n, requests=2000, cv=0.5) for n in (60, 1e6))
    for metric in ("ttft", "itl", "e2e"):
        for stat in ("mean", "p99"):
            assert tight.classes[0].value(metric, stat) == wide.classes[0].value(metric, stat)
    assert tight.pools[0].utilisation_ratio == wide.pools[0].utilisation_ratio
    assert tight.pools[0].kv_p99_ratio < 0.6


def test_prompts_wait_for_room() -> None:
    tight, wide = (pair(3.0, prompts=n, requests=2000) for n in (2, 50))
    balanced(tight)
    assert tight.pools[0].kv_p99_ratio > 0.9
    assert tight.pools[0].waiting_mean > 1.5 * wide.pools[0].waiting_mean
    # The link is the bottleneck in both: waiting for room instead of for the link costs little in all.
    assert tight.classes[0].value("ttft", "mean") < 1.3 * wide.classes[0].value("ttft", "mean")


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("prompts", [1, 3, 1e6])
@pytest.mark.parametrize("failed", [None, 0, 1])
def test_the_books_balance(ranks: int, prompts: float, failed: int | None) -> None:
    failures = () if failed is None else (Failure(failed, 30.0, 10.0),)
    r = pair(
        4.0 * ranks, prompts=prompts, requests=400, cv=0.4, ranks=ranks, failures=failures, replicas=2,
        handover=Handover(1e5, 5e8 * ranks, latency_s=0.02),
    )  # fmt: skip
    balanced(r)
    assert failed is not None or r.books.restarted == 0


def test_what_has_not_left_is_lost_with_its_replica() -> None:
    """One prompt is computed in 38.5 ms and is on its way for 220: a failure in between starts it again."""
    late, early = (
        simulate(
            SimSpec(
                (SimPool("p", pool(role="prefill"), 2), SimPool("d", pool(role="decode"))),
                (traffic(PROMPT, 5, cv=0.0, rate=0.2),),
                handover=SLOW,
                requests=1,
                warmup_ratio=0.0,
                failures=(Failure(0, at, 1e6),),
            )
        )
        for at in (first_arrival() + PREFILL_S + SENT_S + 0.05, first_arrival() + PREFILL_S + 0.1)
    )
    assert late.books.restarted == 0
    assert early.books.restarted == 1
    balanced(early)


def first_arrival() -> float:
    """Of seed 1 at 0.2/s: the stream's own first gap."""
    return float(np.random.default_rng([1, 0]).exponential(5.0, 8192)[0])
