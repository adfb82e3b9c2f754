"""The closed-form load model: exact corners, laws, some points against the simulation (benchmarks/load.py has more)."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import UserError
from planner.perf.caps import BUDGETS, budget_for_itl, budgets, full_step_s, seqs_for_itl
from planner.perf.load import LoadModel, capacity, evaluate
from planner.perf.pair import PairModel
from planner.perf.pool import Drafting, Handover, PoolSpec
from planner.perf.queue import backlog_chain, birth_death
from planner.perf.spread import spread
from planner.perf.table import Curve, StepTable
from planner.perf.table_math import along, attention_s
from planner.simulate.run import SimPool, SimSpec, simulate
from tests.simulate.helpers import additive, bent, pool, traffic


def test_birth_death_is_m_m_1_and_m_m_c() -> None:
    one = birth_death(rate_per_s=0.7, departures_per_s=np.array([1.0]))
    assert one.queue_ratio == pytest.approx(0.7)
    # Erlang C with 3 servers at a = 2: 4/9 wait.
    three = birth_death(rate_per_s=2.0, departures_per_s=np.array([1.0, 2.0, 3.0]))
    assert three.queue_ratio == pytest.approx(4 / 9)
    assert three.queue_rate_per_s == pytest.approx(1.0)
    assert three.mean == pytest.approx(2.0)


def test_a_wider_chain_keeps_its_mode() -> None:
    mu = np.arange(1, 200, dtype=float)
    plain, wide = (birth_death(rate_per_s=60.0, departures_per_s=mu, dispersion=d) for d in (1.0, 2.0))
    n = np.arange(200)
    var = [float(r.probabilities @ n**2) - r.mean**2 for r in (plain, wide)]
    assert var[1] / var[0] == pytest.approx(2.0, rel=0.05)
    assert wide.mean == pytest.approx(plain.mean, rel=0.02)


def test_the_backlog_chain_is_m_d_1_when_every_step_takes_one_prompt() -> None:
    # One prompt is one chunk is one level; a step takes 1 s; idle in between: M/D/1 seen by arrivals.
    chain = backlog_chain(
        rate_per_s=0.6,
        prompt_tokens=np.array([100.0]),
        prompt_weights=np.array([1.0]),
        level_tokens=100.0,
        levels=60,
        chunk_levels=1,
        step_s=np.array([0.0, 1.0]),
        idle=True,
    )
    assert chain.at_arrivals[0] == pytest.approx(1 - 0.6, abs=1e-6)
    # Work found: (levels - 1) whole services and half of the one under way.
    n = np.arange(60)
    found = float(chain.at_arrivals @ np.where(n > 0, n - 1 + 0.5, 0.0))
    # Prompts that came during the step under way are not in its starting level: half a step's arrivals more.
    assert found + 0.6 * 0.6 * 0.5 == pytest.approx(0.6 / (2 * 0.4), rel=1e-3)


def test_arrays_agree_with_the_table() -> None:
    t = bent()
    n = np.arange(1, 70, dtype=float)
    for context in (50.0, 700.0, 9000.0):
        seen = attention_s(t, n, context)
        assert seen == pytest.approx([t.decode_curve(int(k))(context) for k in n])
    xs = np.array([0.0, 5.0, 8.5, 100.0, 1e6])
    assert along(t.linear_decode, xs) == pytest.approx([t.linear_decode(float(x)) for x in xs])


@pytest.mark.parametrize(
    ("p", "c", "load"),
    [
        (pool(), traffic(1024, 256), 0.6),
        (pool(max_num_batched_tokens=1024), traffic(6000, 300, cv=0.7), 0.75),
        (pool(max_num_batched_tokens=8192), traffic(14000, 180, cv=0.8, share=0.85), 0.7),
        (pool(kv_capacity=60_000.0), traffic(1024, 256), 0.7),
        (PoolSpec(bent(), 64, 2048, 1e9), traffic(500, 150), 0.7),
        (pool(drafting=Drafting(3, 0.7, 1e-3)), traffic(1024, 256), 0.6),
    ],
)
def test_closed_form_against_simulation(p: PoolSpec, c: object, load: float) -> None:
    model = LoadModel(p, [c])  # type: ignore[list-item]
    rate = load * model.lambda_max
    form = model.evaluate(rate).classes[0]
    seen = simulate(SimSpec((SimPool("p", p),), (c.at(rate),), requests=8000)).classes[0]  # type: ignore[attr-defined]
    assert form.itl.mean == pytest.approx(seen.value("itl", "mean"), rel=0.10)
    assert form.itl.quantile(0.99) == pytest.approx(seen.value("itl", "p99"), rel=0.15)
    assert form.tpot.quantile(0.99) == pytest.approx(seen.value("tpot", "p99"), rel=0.25)
    assert form.e2e is not None
    assert form.e2e.mean == pytest.approx(seen.value("e2e", "mean"), rel=0.10)
    # Stated on the safe side, but not absurdly.
    assert 0.97 <= form.ttft.quantile(0.99) / seen.value("ttft", "p99") <= 1.5
    assert form.ttft.mean == pytest.approx(seen.value("ttft", "mean"), rel=0.25)


def test_pair_against_simulation() -> None:
    prefill, decode = pool(role="prefill", max_num_batched_tokens=8192), pool(role="decode")
    h, c = Handover(131072, 50e9), traffic(1024, 256)
    r = PairModel(prefill, decode, h, [c]).evaluate(16.0, 16.0)
    seen = simulate(
        SimSpec((SimPool("p", prefill), SimPool("d", decode)), (c.at(16.0),), handover=h, requests=10_000)
    ).classes[0]
    f = r.classes[0]
    assert f.itl.quantile(0.99) == pytest.approx(seen.value("itl", "p99"), rel=0.08)
    assert f.ttft.mean == pytest.approx(seen.value("ttft", "mean"), rel=0.2)
    assert f.ttft.quantile(0.99) == pytest.approx(seen.value("ttft", "p99"), rel=0.2)


def test_a_pair_needs_rdma() -> None:
    with pytest.raises(UserError, match="need RDMA"):
        Handover(131072, 50e9, rdma=False)
    with pytest.raises(UserError, match="NIC bandwidth"):
        Handover(131072, 0.0)


def test_a_slow_link_bounds_the_pair() -> None:
    c = traffic(8000, 100, cv=0.0)
    model = PairModel(
        pool(role="prefill", max_num_batched_tokens=8192), pool(role="decode"), Handover(131072, 1e9), [c]
    )
    assert model.prefill_max_per_s == pytest.approx(1e9 / (131072 * 8000), rel=1e-6)
    assert math.isinf(model.evaluate(1.0, 1.0).classes[0].ttft.mean)


def test_above_lambda_max_nothing_is_promised() -> None:
    c = traffic(1024, 256, slo=("itl=1000s",))
    m = LoadModel(pool(), [c])
    r = m.evaluate(m.lambda_max * 1.01)
    assert not r.stable
    assert r.misses({"chat": c.slos}) == math.inf
    assert r.queue_ratio == 1.0


def test_a_request_that_cannot_fit_gives_no_capacity() -> None:
    found = capacity(pool(kv_capacity=4000.0), [traffic(1024, 256, slo=("itl=1s",))])
    assert found.planned_per_s == 0
    assert "does not fit" in found.bound_by


def test_planned_rate_is_the_smaller_of_cap_and_promises() -> None:
    loose = capacity(pool(), [traffic(1024, 256, slo=("itl=1s",))])
    assert loose.planned_per_s == pytest.approx(0.8 * loose.lambda_max_per_s)
    assert loose.bound_by == "load-cap"
    tight = capacity(pool(), [traffic(1024, 256, slo=("itl.mean=15ms",))])
    assert tight.planned_per_s == tight.lambda_slo_per_s < loose.planned_per_s
    assert tight.bound_by == "chat itl.mean"
    assert evaluate(pool(), [traffic(1024, 256)], tight.planned_per_s).classes[0].itl.mean <= 0.015
    with_margin = capacity(pool(), [traffic(1024, 256, slo=("itl.mean=15ms",))], margins={"itl": 0.2})
    assert with_margin.planned_per_s < tight.planned_per_s


def test_an_impossible_promise_is_named() -> None:
    found = capacity(pool(), [traffic(1024, 256, slo=("itl.mean=2ms", "ttft=10s"))])
    assert found.lambda_slo_per_s == 0
    assert found.bound_by == "chat itl.mean"


@settings(max_examples=12)
@given(
    limit=st.floats(0.02, 0.2),
    looser=st.floats(1.05, 3.0),
    metric=st.sampled_from(["itl", "ttft.p95", "tpot", "itl.mean", "e2e"]),
    budget=st.sampled_from([512, 2048]),
)
def test_a_stricter_promise_never_carries_more(limit: float, looser: float, metric: str, budget: int) -> None:
    scale = {"ttft.p95": 5, "e2e": 200}.get(metric, 1)
    rates = []
    for value in (limit * scale, limit * scale * looser):
        c = traffic(1024, 256, slo=(f"{metric}={value * 1e3:.3f}ms",))
        rates.append(LoadModel(pool(max_num_batched_tokens=budget), [c]).capacity(beyond_cap=False).planned_per_s)
    assert rates[0] <= rates[1] * 1.006  # the search's tolerance


def test_figures_worsen_with_the_rate() -> None:
    m = LoadModel(pool(), [traffic(1024, 256)])
    rows = []
    for load in np.linspace(0.1, 0.95, 12):
        r = m.evaluate(load * m.lambda_max)
        f = r.classes[0]
        rows.append(
            (f.itl.mean, f.itl.quantile(0.99), f.ttft.mean, f.tpot.quantile(0.99), r.running_p99, r.kv_p99_ratio)
        )
    for before, after in pairwise(rows):
        assert all(a >= b * 0.985 for b, a in zip(before, after, strict=True))


def test_kv_p99_is_of_the_sum() -> None:
    r = evaluate(pool(kv_capacity=100_000.0), [traffic(1024, 256)], 8.0)
    # Far below p99 of the batch times p99 of a sequence, above the mean.
    assert r.kv_mean_ratio < r.kv_p99_ratio < 0.75 * r.running_p99 * 5000 / 100_000
    seen = simulate(
        SimSpec((SimPool("p", pool(kv_capacity=100_000.0)),), (traffic(1024, 256, rate=8.0),), requests=10_000)
    )
    assert r.kv_p99_ratio == pytest.approx(seen.pools[0].kv_p99_ratio, rel=0.15)
    assert r.running_mean == pytest.approx(seen.pools[0].running_mean, rel=0.1)
    assert r.running_p99 == pytest.approx(seen.pools[0].running_p99, rel=0.15)


def test_windows_hold_more_sequences() -> None:
    c = traffic(4000, 500)
    whole = LoadModel(pool(kv_capacity=100_000.0), [c])
    window = LoadModel(pool(kv_capacity=100_000.0, kv_cost=Curve((0.0, 1024.0, 1025.0), (0.0, 1024.0, 1024.0))), [c])
    assert window.slots > 2.5 * whole.slots


def test_classes_share_a_replica_and_keep_their_own_figures() -> None:
    short, long = traffic(300, 100, rate=4.0, name="short"), traffic(5000, 100, rate=1.0, name="long")
    r = evaluate(pool(), [short, long], 8.0)
    by = {f.name: f for f in r.classes}
    assert by["long"].ttft.quantile(0.5) > 3 * by["short"].ttft.quantile(0.5)
    assert by["long"].itl.mean == by["short"].itl.mean
    seen = simulate(SimSpec((SimPool("p", pool()),), (short.at(6.4), long.at(1.6)), requests=10_000))
    for name in ("short", "long"):
        assert by[name].ttft.mean == pytest.approx(seen.sample(name).value("ttft", "mean"), rel=0.25)


def test_round_robin_over_replicas_costs_session_hits() -> None:
    from planner.intent.document import TrafficClass
    from planner.perf.traffic import class_load

    words = {"name": "s", "rate": "1/s", "input": 1000, "output": 100, "sessions": {"turns": 6}}
    routed = {
        r: class_load(TrafficClass.model_validate({**words, "prefix_cache": {"shared_tokens": 1, "routing": r}}))
        for r in ("affinity", "round-robin")
    }
    rates = {r: LoadModel(pool(replicas=8), [c]).lambda_max for r, c in routed.items()}
    cold = LoadModel(pool(replicas=8), [routed["affinity"].cold()]).lambda_max
    assert rates["affinity"] > 1.5 * rates["round-robin"] > 1.4 * cold


def test_thinking_delays_the_answer_not_the_first_token() -> None:
    from planner.intent.document import TrafficClass
    from planner.perf.traffic import class_load

    c = class_load(
        TrafficClass.model_validate(
            {"name": "t", "rate": "1/s", "input": 1000, "output": 100, "thinking": 900, "slo": {"ttfa.p95": "30s"}}
        )
    )
    f = evaluate(pool(), [c], 1.0).classes[0]
    assert f.ttfa is not None
    assert f.ttfa.mean - f.ttft.mean == pytest.approx(900 * f.itl.mean, rel=0.02)


def test_budget_comes_from_the_itl_promise() -> None:
    t = additive()
    found = budget_for_itl(t, 0.05, decode_seqs=64, mean_context_tokens=1500, prompt_tokens=3000)
    assert found is not None
    words = {"decode_seqs": 64, "mean_context_tokens": 1500.0, "prompt_tokens": 3000.0}
    assert full_step_s(t, budget_tokens=found, **words) <= 0.05 < full_step_s(t, budget_tokens=found + 64, **words)  # type: ignore[arg-type]
    # and with it the p99 ITL of the loaded replica stays within the promise
    c = traffic(1024, 256, slo=("itl=50ms",))
    m = LoadModel(pool(max_num_batched_tokens=found, max_num_seqs=64), [c])
    assert m.evaluate(0.7 * m.lambda_max).classes[0].itl.quantile(0.99) <= 0.05
    assert budget_for_itl(t, 0.005, decode_seqs=64, mean_context_tokens=1500, prompt_tokens=3000) is None
    assert set(BUDGETS) <= {*budgets(found, decode_seqs=64)}


def test_sequence_cap_comes_from_the_itl_promise() -> None:
    t = additive()
    n = seqs_for_itl(t, 0.02, mean_context_tokens=1500)
    assert (
        t.step_s(decode_seqs=n, context_tokens=n * 1500)
        <= 0.02
        < t.step_s(decode_seqs=n + 1, context_tokens=(n + 1) * 1500)
    )
    assert seqs_for_itl(t, 0.001, mean_context_tokens=1500) == 0


def test_a_budget_below_the_batch_is_refused_as_vllm_does() -> None:
    with pytest.raises(UserError, match="below max_num_seqs"):
        PoolSpec(additive(), 256, 128, 1e9)


def test_a_spread_reads_like_its_values() -> None:
    rng = np.random.default_rng(3)
    v = rng.lognormal(0, 1, 30_000)
    s = spread(v, np.ones(len(v)), "test")
    for q in (0.1, 0.5, 0.9, 0.99):
        assert s.quantile(q) == pytest.approx(float(np.quantile(v, q)), rel=0.02)
    assert s.mean == pytest.approx(float(v.mean()))
    assert s.stat("p99") == s.quantile(0.99)


def test_host_time_counts_in_ttft_alone() -> None:
    base = additive()
    slow = StepTable(
        base.linear_decode,
        base.linear_mixed,
        base.batch_knots,
        base.decode_attention,
        base.prefill_attention,
        request_s=0.05,
    )
    a, b = (evaluate(PoolSpec(t, 128, 2048, 1e9), [traffic(1024, 256)], 5.0).classes[0] for t in (base, slow))
    assert b.ttft.mean - a.ttft.mean == pytest.approx(0.05, rel=1e-6)
    assert b.itl.mean == a.itl.mean


@pytest.mark.parametrize(("ranks", "load"), [(4, 0.6), (8, 0.8)])
def test_lockstep_against_simulation(ranks: int, load: float) -> None:
    p, c = pool(lockstep_ranks=ranks), traffic(1024, 256)
    m = LoadModel(p, [c])
    # Whole factors below as many independent replicas.
    assert m.lambda_max < 0.7 * ranks * LoadModel(pool(), [c]).lambda_max
    rate = load * m.lambda_max
    form = m.evaluate(rate).classes[0]
    seen = simulate(SimSpec((SimPool("p", p),), (c.at(rate),), requests=10_000)).classes[0]
    assert form.itl.mean == pytest.approx(seen.value("itl", "mean"), rel=0.15)
    assert form.itl.quantile(0.99) == pytest.approx(seen.value("itl", "p99"), rel=0.15)
    assert form.ttft.quantile(0.99) >= seen.value("ttft", "p99")
