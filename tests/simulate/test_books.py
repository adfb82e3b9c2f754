"""Exact bookkeeping, whatever happens: caps, full caches, failures, hand-overs, an early end."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import UserError
from planner.intent.traces import TraceRow
from planner.perf.load import LoadModel
from planner.perf.pool import Handover
from planner.perf.table import Curve
from planner.perf.traffic import PrefixHits
from planner.simulate.arrivals import replayed
from planner.simulate.run import Failure, SimPool, SimResult, SimSpec, TraceReplay, one_replica, simulate, verify
from tests.simulate.helpers import pool, traffic


def balanced(r: SimResult, *, all_done: bool = True) -> None:
    b = r.books
    assert b.arrived == b.finished + b.rejected + b.unfinished
    if all_done:
        assert b.unfinished == 0
        if not b.rejected:
            assert b.tokens_out == b.tokens_asked


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_seqs": 8},
        {"kv_capacity": 30_000.0},
        {"kv_capacity": 30_000.0, "scheduler": "prefill-first"},
        {"kv_capacity": 20_000.0, "kv_cost": Curve((0.0, 512.0, 513.0), (64.0, 576.0, 576.0))},
        {"max_num_batched_tokens": 256},
    ],
)
def test_every_request_is_accounted_for(changes: dict[str, object]) -> None:
    r = simulate(SimSpec((SimPool("p", pool(**changes)),), (traffic(800, 200, cv=0.8, rate=8.0),), requests=3000))
    balanced(r)
    assert r.books.arrived == 3000


def test_a_full_cache_preempts_and_recomputes() -> None:
    roomy = simulate(SimSpec((SimPool("p", pool()),), (traffic(800, 400, rate=5.0),), requests=3000))
    tight = simulate(
        SimSpec((SimPool("p", pool(kv_capacity=26_000.0)),), (traffic(800, 400, rate=5.0),), requests=3000)
    )
    balanced(tight)
    assert roomy.books.preemptions == 0
    assert tight.books.preemptions > 0
    assert tight.pools[0].kv_p99_ratio > 0.9
    assert tight.classes[0].value("ttft", "p99") > roomy.classes[0].value("ttft", "p99")


def test_requests_that_never_fit_are_rejected() -> None:
    r = simulate(SimSpec((SimPool("p", pool(kv_capacity=3000.0)),), (traffic(800, 200, rate=1.0),), requests=1000))
    balanced(r)
    assert 0 < r.books.rejected < 1000


def test_the_admission_cap_rejects_and_counts_as_missed() -> None:
    c = traffic(1024, 256, rate=20.0, slo=("ttft.p99=1000s",))
    r = simulate(SimSpec((SimPool("p", pool(max_num_seqs=16)),), (c,), requests=3000, max_waiting=10))
    balanced(r)
    assert r.books.rejected > 0
    assert r.classes[0].goodput_ratio < 0.9


def test_an_early_end_reports_what_is_unfinished() -> None:
    r = simulate(SimSpec((SimPool("p", pool()),), (traffic(1024, 256, rate=30.0),), requests=3000, horizon_s=60.0))
    balanced(r, all_done=False)
    assert r.books.unfinished > 0


@pytest.mark.parametrize("routing", ["round-robin", "least-loaded"])
def test_replicas_share_the_traffic(routing: str) -> None:
    c = traffic(1024, 256, rate=36.0)
    r = simulate(SimSpec((SimPool("p", pool(), 4, routing),), (c,), requests=8000))  # type: ignore[arg-type]
    balanced(r)
    one = simulate(SimSpec((SimPool("p", pool()),), one_replica((c,), replicas=4), requests=8000))
    # Round-robin arrivals are smoother than Poisson, least-loaded ones are better still: never slower than thinned.
    assert r.classes[0].value("ttft", "mean") <= one.classes[0].value("ttft", "mean") * 1.02
    assert r.classes[0].value("itl", "mean") == pytest.approx(one.classes[0].value("itl", "mean"), rel=0.12)


@pytest.mark.parametrize("failed", [0, 1])
def test_prefill_and_decode_apart_with_a_failure(failed: int) -> None:
    h = Handover(bytes_per_token=131072, bytes_per_s=25e9)
    pools = (
        SimPool("p", pool(role="prefill", max_num_batched_tokens=8192), 2, "least-loaded"),
        SimPool("d", pool(role="decode"), 2),
    )
    c = traffic(1024, 256, rate=24.0)
    whole = simulate(SimSpec(pools, (c,), handover=h, requests=4000))
    balanced(whole)
    hurt = simulate(SimSpec(pools, (c,), handover=h, requests=4000, failures=(Failure(failed, 80.0, 30.0),)))
    balanced(hurt)
    assert hurt.books.restarted > 0
    assert hurt.classes[0].value("ttft", "p99") > whole.classes[0].value("ttft", "p99")
    # No prompt rides in a decode step: the worst gap is far from a mixed step's 70 ms.
    assert whole.classes[0].value("itl", "p99") < 0.025


def test_the_last_replica_lost_rejects_the_rest() -> None:
    r = simulate(
        SimSpec((SimPool("p", pool()),), (traffic(100, 50, rate=5.0),), requests=500, failures=(Failure(0, 50.0),))
    )
    balanced(r)
    assert r.books.rejected > 100


def test_slower_with_the_rate() -> None:
    figures = []
    for rate in (3.0, 6.0, 9.0, 12.0):
        c = simulate(SimSpec((SimPool("p", pool()),), (traffic(1024, 256, rate=rate),), requests=5000)).classes[0]
        figures.append(
            (c.value("ttft", "mean"), c.value("itl", "mean"), c.value("e2e", "mean"), c.value("ttft", "p90"))
        )
    for before, after in pairwise(figures):
        assert all(b < a for b, a in zip(before, after, strict=True))


def test_seeds_decide_everything() -> None:
    spec = SimSpec((SimPool("p", pool()),), (traffic(500, 100, rate=9.0),), requests=1500)
    same = [simulate(spec).as_data() for _ in range(2)]
    assert same[0] == same[1]
    other = SimSpec(spec.pools, spec.classes, requests=1500, seeds=(2,))
    assert simulate(other).as_data() != same[0]


def test_verdicts_know_their_confidence() -> None:
    c = traffic(1024, 256, rate=9.0, slo=("itl.p99=200ms", "ttft.p99=50ms"))
    _, found = verify(SimSpec((SimPool("p", pool()),), (c,), requests=6000, seeds=(1, 2)))
    by = {v.slo.metric: v for v in found}
    assert by["itl"].holds
    assert not by["itl"].fails
    assert by["ttft"].fails
    assert 0 < by["ttft"].half_width_s < 0.2 * by["ttft"].simulated_s


def test_classes_keep_their_own_figures() -> None:
    short, long = traffic(200, 100, rate=4.0, name="short"), traffic(6000, 100, rate=1.0, name="long")
    r = simulate(SimSpec((SimPool("p", pool()),), (short, long), requests=5000))
    balanced(r)
    assert r.sample("long").value("ttft", "p50") > 3 * r.sample("short").value("ttft", "p50")
    assert r.sample("long").value("itl", "mean") == pytest.approx(r.sample("short").value("itl", "mean"), rel=0.2)
    assert len(r.sample("short").ttft_s) == pytest.approx(4 * len(r.sample("long").ttft_s), rel=0.15)


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "timestamp_s,input_tokens,output_tokens\n"
        + "".join(f"{i * 0.2},{100 + i % 7},{20 + i % 5}\n" for i in range(1000))
    )
    c = traffic(103, 22, rate=5.0)
    r = simulate(SimSpec((SimPool("p", pool()),), (c,), traces={"chat": TraceReplay(path)}))
    balanced(r)
    assert r.books.arrived == 1000
    assert r.rate_per_s == pytest.approx(5.0, rel=0.01)
    fast = simulate(SimSpec((SimPool("p", pool()),), (c,), traces={"chat": TraceReplay(path)}, rate_scale=4.0))
    assert fast.duration_s == pytest.approx(r.duration_s / 4)
    timeless = tmp_path / "l.csv"
    timeless.write_text("input_tokens,output_tokens\n5,5\n")
    with pytest.raises(UserError, match="cannot be replayed"):
        simulate(SimSpec((SimPool("p", pool()),), (c,), traces={"chat": TraceReplay(timeless)}))


def test_ranks_in_lockstep_wait_for_each_other() -> None:
    """Four ranks on four times the traffic of one: the same work, but every rank's prompts lengthen all steps."""
    alone = simulate(SimSpec((SimPool("p", pool()),), (traffic(1024, 256, rate=5.0),), requests=3000))
    group = simulate(SimSpec((SimPool("p", pool(lockstep_ranks=4)),), (traffic(1024, 256, rate=20.0),), requests=6000))
    balanced(group)
    assert group.classes[0].value("itl", "mean") > 1.25 * alone.classes[0].value("itl", "mean")
    # Decode alone has nothing to wait for but the longest context.
    decode = {"role": "decode"}
    one, four = (
        simulate(
            SimSpec(
                (SimPool("p", pool(lockstep_ranks=r, **decode)),),
                (traffic(1024, 256, rate=8.0 * r),),
                requests=3000 * r,
            )
        )
        for r in (1, 4)
    )
    balanced(four)
    assert four.classes[0].value("itl", "mean") == pytest.approx(one.classes[0].value("itl", "mean"), rel=0.05)


def test_a_lockstep_group_can_be_lost() -> None:
    pools = (SimPool("p", pool(lockstep_ranks=2), 2, "least-loaded"),)
    r = simulate(SimSpec(pools, (traffic(1024, 256, rate=16.0),), requests=3000, failures=(Failure(0, 60.0, 30.0),)))
    balanced(r)
    assert r.books.restarted > 0


@settings(max_examples=60)
@given(
    isl=st.sampled_from([1, 5, 300, 6000]),
    osl=st.sampled_from([1, 2, 60, 800]),
    cv=st.sampled_from([0.0, 0.4, 2.0]),
    seqs=st.sampled_from([1, 5, 200]),
    budget=st.sampled_from([1024, 8192]),
    capacity=st.sampled_from([4000.0, 40_000.0, 1e9]),
    scheduler=st.sampled_from(["decode-first", "prefill-first"]),
    ranks=st.sampled_from([1, 1, 3]),
    apart=st.booleans(),
    load=st.sampled_from([0.3, 0.9, 1.6]),
    fails=st.booleans(),
)
def test_whatever_the_setting_the_books_balance(
    *,
    isl: int,
    osl: int,
    cv: float,
    seqs: int,
    budget: int,
    capacity: float,
    scheduler: str,
    ranks: int,
    apart: bool,
    load: float,
    fails: bool,
) -> None:
    p = pool(
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        kv_capacity=capacity,
        scheduler=scheduler,
        lockstep_ranks=ranks,
    )
    c = traffic(isl, osl, cv=cv)
    rate = 2 * load * LoadModel(p, [c]).lambda_max
    pools: tuple[SimPool, ...] = (SimPool("p", p, 2, "least-loaded"),)
    if apart:
        pools = (SimPool("p", p.with_(role="prefill"), 2), SimPool("d", p.with_(role="decode"), 2))
    failures = (Failure(0, 60 / rate, 30 / rate),) if fails else ()
    handover = Handover(1e5, 1e10) if apart else None
    r = simulate(SimSpec(pools, (c.at(rate),), handover=handover, requests=200, failures=failures))
    balanced(r)
    q = r.classes[0]
    assert (q.ttft_s >= 0).all()
    assert (q.e2e_s >= q.ttft_s - 1e-9).all()


@pytest.mark.parametrize(
    ("hits", "replicas", "held", "mean"),
    [
        (PrefixHits(traced=True, routing="affinity"), 4, 1.0, 1600),
        (PrefixHits(traced=True), 4, 1.0, 512 + (1600 - 512) / 4),
        (PrefixHits(traced=True, warm=False), 4, 1.0, 0),
        (PrefixHits(share=0.4), 4, 1.0, 800),
        (PrefixHits(shared_tokens=1200.0, groups=8), 4, 0.5, 592),
        (PrefixHits(), 1, 1.0, 0),
    ],
)
def test_prefix_hits_of_a_replay_are_as_stated_or_the_traces_own(
    hits: PrefixHits, replicas: int, held: float, mean: float
) -> None:
    rows = [TraceRow(0.1 * i, 2000, 10, 1600) for i in range(4000)]
    stream = replayed(rows, rate_scale=1.0, hits=hits, replicas=replicas, held_ratio=held, seed=1)
    cached = [r.cached for r in stream]
    assert all(c % 16 == 0 for c in cached)
    assert sum(cached) / len(cached) == pytest.approx(mean, rel=0.05)
