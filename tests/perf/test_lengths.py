"""Length distributions and traffic classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import UserError
from planner.intent.document import Lengths, TrafficClass
from planner.intent.traces import TraceRow, summarise
from planner.perf.lengths import Constant, Lognormal, distribution, normal_cdf
from planner.perf.sessions import History
from planner.perf.traffic import ClassLoad, PrefixHits, class_load, trace_lengths


def test_a_plain_number_is_constant() -> None:
    d = distribution(Lengths(mean=3500, cv=0.0))
    assert d == Constant(3500.0)
    assert (d.mean, d.second_moment, d.quantile(0.99), d.longest) == (3500, 3500**2, 3500, 3500)


@pytest.mark.parametrize(
    "spec",
    [
        {"mean": 3000, "p95": 8000},
        {"mean": 3000, "p99": 9000},
        {"mean": 3000, "p50": 2000},
        {"mean": 3000, "p90": 5000},
    ],
)
def test_mean_and_percentile_come_back(spec: dict[str, int]) -> None:
    d = distribution(Lengths.model_validate(spec))
    name = next(k for k in spec if k != "mean")
    assert d.mean == pytest.approx(3000, rel=1e-6)
    # The cut at the 99.9th percentile moves the others a little.
    assert d.quantile(int(name[1:]) / 100) == pytest.approx(spec[name], rel=0.03)


def test_a_percentile_no_lognormal_has_is_refused() -> None:
    with pytest.raises(ValueError, match="no lognormal has a p90"):
        distribution(Lengths(mean=1000, p90=5000))


@given(mean=st.floats(50, 20000), cv=st.floats(0.05, 2.5), ratio=st.floats(2, 20))
def test_the_mean_survives_the_cut(mean: float, cv: float, ratio: float) -> None:
    d = distribution(Lengths(mean=mean, cv=cv, max=int(mean * ratio)))
    assert isinstance(d, Lognormal)
    assert d.mean == pytest.approx(mean, rel=1e-4)
    values, weights = d.grid(20)
    assert float(values @ weights) == pytest.approx(d.mean, rel=1e-6)
    assert float(weights.sum()) == pytest.approx(1)
    assert float((values**2) @ weights) <= d.second_moment * 1.02
    assert values.max() <= d.longest


def test_samples_follow_the_distribution() -> None:
    d = distribution(Lengths(mean=1000, cv=1.0, max=6000))
    seen = d.sample(np.random.default_rng(1), 200_000)
    assert seen.mean() == pytest.approx(d.mean, rel=0.01)
    assert (seen**2).mean() == pytest.approx(d.second_moment, rel=0.03)
    assert np.quantile(seen, 0.9) == pytest.approx(d.quantile(0.9), rel=0.02)
    assert seen.min() >= 1
    assert seen.max() <= 6000


def test_a_histogram_is_taken_as_it_is() -> None:
    d = distribution(Lengths(histogram=((100, 3.0), (1000, 1.0)), max=500))
    assert d.mean == pytest.approx(200)
    assert d.quantile(0.7) == 100
    assert d.longest == 500


def test_max_below_the_mean_is_refused() -> None:
    with pytest.raises(ValueError, match="below the mean"):
        distribution(Lengths(mean=1000, cv=1.0, max=500))


def test_normal_cdf_is_close() -> None:
    z = np.linspace(-4, 4, 81)
    exact = np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in z])
    assert np.abs(normal_cdf(z) - exact).max() < 2e-7


def chat(**changes: object) -> ClassLoad:
    values = {"name": "chat", "rate": "5/s", "input": 1000, "output": 200, **changes}
    return class_load(TrafficClass.model_validate(values))


def mean_hit(c: ClassLoad, replicas: int) -> float:
    g = c.grid(replicas=replicas)
    return g.mean(g.cached_tokens) / g.mean(g.input_tokens)


def test_thinking_is_decode_work() -> None:
    g = chat(thinking=300).grid()
    assert g.mean(g.output_tokens) == 500
    assert g.mean(g.thinking_tokens) == 300


def test_sessions_grow_the_prompt_and_hit_where_routing_returns() -> None:
    # Turn k of 4 holds k prompts and k - 1 answers: 1000 x 2.5 + 200 x 1.5 on average.
    c = chat(sessions={"turns": 4}, prefix_cache={"shared_tokens": 1, "routing": "affinity"})
    g = c.grid()
    assert g.mean(g.input_tokens) == pytest.approx(2800)
    assert mean_hit(c, 8) == pytest.approx(1800 / 2800, rel=0.01)
    spread = chat(sessions={"turns": 4}, prefix_cache={"shared_tokens": 1, "routing": "round-robin"})
    assert mean_hit(spread, 1) == pytest.approx(mean_hit(c, 1), rel=0.01)
    # A turn's last one was on the same of 8 replicas with p = 1/8; else an earlier one, two turns back, may have been.
    # In histories of one turn: turn 2 finds p, turn 3 finds 2p + pq, turn 4 finds 3p + 2pq + pqq, of 1, 2 and 3.
    p, q = 1 / 8, 7 / 8
    found = (p + (2 * p + p * q) + (3 * p + 2 * p * q + p * q * q)) / 6
    assert mean_hit(spread, 8) == pytest.approx(mean_hit(c, 1) * found, rel=0.02)
    sample = spread.sample(np.random.default_rng(2), 50_000, replicas=8)
    assert sample.cached_tokens.mean() / sample.input_tokens.mean() == pytest.approx(mean_hit(spread, 8), rel=0.06)


def test_turns_find_their_history_or_nothing_of_it() -> None:
    # Constant lengths, two turns: half of the requests have a history of 1,200 tokens, which 30% of them lost.
    c = chat(sessions={"turns": 2}, prefix_cache={"shared_tokens": 1, "routing": "affinity"})
    g = c.grid(history=History((0.7,)))
    by_hit = {
        (float(i), float(x)): float(w) for i, x, w in zip(g.input_tokens, g.cached_tokens, g.weights, strict=True)
    }
    # The last token of the answer was never fed back, so its block is not whole.
    assert by_hit == pytest.approx({(1000.0, 0.0): 0.5, (2200.0, 1184.0): 0.35, (2200.0, 0.0): 0.15})
    apart = c.grid(history=History((0.7,), answers=False))
    assert apart.cached_tokens.max() == 992  # the prompt of turn 1 alone
    cold = c.cold().grid(history=History((0.7,)))
    assert not cold.cached_tokens.any()


def test_thinking_is_dropped_from_the_history() -> None:
    c = chat(thinking=500, sessions={"turns": 2}, prefix_cache={"shared_tokens": 1, "routing": "affinity"})
    g = c.grid()
    assert g.input_tokens.max() == 2200
    assert g.cached_tokens.max() == 992


def test_fractional_turns_have_the_right_prompt() -> None:
    g = chat(sessions={"turns": 1.5}).grid()
    # Two turns of three requests' sessions: the second turn is a third of all requests.
    assert g.mean(g.input_tokens) == pytest.approx(1000 + 1200 / 3)


def test_a_share_hits_and_the_cold_case_does_not() -> None:
    c = chat(prefix_cache=0.5)
    assert mean_hit(c, 4) == pytest.approx(0.5, abs=0.01)
    cold = c.cold().grid(replicas=4)
    assert not cold.cached_tokens.any()
    # A prompt is never wholly cached: its last token must be computed.
    full = chat(prefix_cache=1.0).grid()
    assert (full.prefill_tokens >= 1).all()


def test_many_groups_of_prefixes_need_room() -> None:
    c = chat(prefix_cache={"shared_tokens": 800, "groups": 100})
    g_small, g_large = c.grid(cache_tokens=20_000.0), c.grid(cache_tokens=1e9)
    assert g_large.mean(g_large.cached_tokens) == 800
    assert 50 < g_small.mean(g_small.cached_tokens) < 200  # half of 20,000 tokens holds 12.5 of 100 groups
    kept = chat(prefix_cache={"shared_tokens": 800, "groups": 100, "routing": "affinity"}).grid(
        replicas=10, cache_tokens=20_000.0
    )
    assert kept.mean(kept.cached_tokens) == 800  # a tenth of the groups each


def test_a_trace_keeps_its_correlation() -> None:
    rng = np.random.default_rng(5)
    inputs = rng.lognormal(7, 1, 4000).astype(int) + 1
    outputs = (inputs // 10 + rng.integers(1, 50, 4000)).astype(int)
    summary = summarise(
        TraceRow(float(i), int(a), int(b), int(a // 2)) for i, (a, b) in enumerate(zip(inputs, outputs, strict=True))
    )
    joint = trace_lengths(summary)
    c = ClassLoad("t", 1.0, joint, PrefixHits(traced=True, routing="affinity"))
    g = c.grid()
    assert g.mean(g.input_tokens) == pytest.approx(inputs.mean(), rel=1e-6)
    assert g.mean(g.output_tokens) == pytest.approx(outputs.mean(), rel=1e-6)
    cross = g.mean(g.input_tokens * g.output_tokens) - g.mean(g.input_tokens) * g.mean(g.output_tokens)
    sd = math.sqrt(
        (g.mean(g.input_tokens**2) - g.mean(g.input_tokens) ** 2)
        * (g.mean(g.output_tokens**2) - g.mean(g.output_tokens) ** 2)
    )
    assert cross / sd == pytest.approx(float(np.corrcoef(inputs, outputs)[0, 1]), abs=0.03)
    assert mean_hit(c, 4) == pytest.approx(0.5, abs=0.02)
    assert joint.longest == inputs.max() + outputs.max()
    s = c.sample(np.random.default_rng(1), 60_000)
    assert s.input_tokens.mean() == pytest.approx(inputs.mean(), rel=0.03)


def test_a_trace_and_thinking_do_not_go_together() -> None:
    summary = summarise([TraceRow(0.0, 5, 5, 0), TraceRow(1.0, 6, 5, 0)])
    with pytest.raises(UserError, match="both a trace and thinking"):
        class_load(TrafficClass.model_validate({"trace": "t.csv", "thinking": 100}), trace=summary)
