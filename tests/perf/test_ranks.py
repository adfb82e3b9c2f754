"""Ranks in lock-step and stalls: exact corners and a step-by-step simulation of the chain's own rules."""

from __future__ import annotations

import numpy as np
import pytest

from planner.perf.queue import arrivals_by_step, backlog_chain, levels_pmf
from planner.perf.ranks import LEFT, RankChain, rank_chain
from planner.perf.stalls import stalls_of

STEP = np.array([0.01, 0.03, 0.05, 0.07, 0.09])
"""Decodes alone, and with a chunk of up to 4 levels."""


def chain(sizes: list[float], rate_per_s: float, ranks: int) -> RankChain:
    pmf = np.zeros(2 * (4 + LEFT))
    pmf[: 5 + LEFT] = levels_pmf(np.array(sizes), np.full(len(sizes), 1 / len(sizes)), 5 + LEFT)
    came = arrivals_by_step(pmf, mean=rate_per_s * STEP, batch_mean=1.0)
    return rank_chain(arrivals=came, prompts=pmf, step_s=STEP, ranks=ranks, level_tokens=1.0)


def test_one_rank_is_the_backlog_chain() -> None:
    sizes = [1.0, 3.0, 11.0]
    one = chain(sizes, 2.0, 1)
    same = backlog_chain(
        rate_per_s=2.0,
        prompt_tokens=np.array(sizes),
        prompt_weights=np.full(3, 1 / 3),
        level_tokens=1.0,
        levels=90,
        chunk_levels=4,
        step_s=STEP,
        idle=False,
    )
    assert one.steps == pytest.approx(same.chunks, abs=2e-3)
    assert one.mean_s == pytest.approx(float(same.chunks @ STEP), rel=5e-3)


@pytest.mark.parametrize(("sizes", "rate", "ranks"), [([2.0], 2.0, 8), ([1.0, 9.0], 1.0, 4), ([6.0], 0.5, 16)])
def test_many_ranks_step_as_their_longest_chunk(sizes: list[float], rate: float, ranks: int) -> None:
    rng = np.random.default_rng(5)
    waiting, step, took, own = np.zeros(ranks), STEP[0], [], []
    for _ in range(30_000):
        for rank in rng.integers(ranks, size=rng.poisson(rate * step * ranks)):
            waiting[rank] += rng.choice(sizes)
        chunk = np.minimum(waiting, 4)
        waiting -= chunk
        step = float(np.interp(chunk.max(), np.arange(5), STEP))
        took.append(step)
        own.append(float((chunk > 0).mean()))
    found = chain(sizes, rate, ranks)
    assert found.mean_s == pytest.approx(float(np.mean(took)), rel=0.05)
    assert found.own == pytest.approx(float(np.mean(own)), rel=0.08)
    # Far more often than one rank's prompts alone would say, and more than as many independent ones.
    assert 1 - found.steps[0] > 1.5 * found.own


def test_a_stall_is_a_busy_period() -> None:
    # Prompts of 40 ms, 5/s: begun by one prompt, a busy period lasts 40 / (1 - 0.2) ms on average.
    s = stalls_of(
        alone_s=np.array([0.04]),
        prompt_weights=np.array([1.0]),
        rate_per_s=5.0,
        decode_s=1e-6,
        mean_s=0.04,
        square_s2=0.04**2,
        batch_mean=1.0,
    )
    assert float(s.times_s @ s.weights / s.weights.sum()) == pytest.approx(0.05, rel=1e-3)
    assert float(s.begun(np.array([0.01]))[0]) == pytest.approx(1 - np.exp(-0.05))
    # A prompt that is done leaves nothing behind as often as one finds nothing: 1 - rho.
    none = float(s.joined_weights[s.joined_s == 0].sum() / s.joined_weights.sum())
    assert none == pytest.approx(0.8, rel=5e-3)
