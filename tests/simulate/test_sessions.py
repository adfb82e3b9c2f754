"""Sessions in the simulation: turns that follow answers, histories that a cache of real size keeps or loses."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.perf.load import LoadModel
from planner.perf.pool import Handover, PoolSpec
from planner.perf.sessions import kept_for_ever
from planner.perf.traffic import ClassLoad
from planner.simulate.cluster import Cluster, Failure, Pool
from planner.simulate.prefixes import Prefixes
from planner.simulate.requests import Ledger, Request, Session
from planner.simulate.run import SimPool, SimResult, SimSpec, one_replica, simulate
from planner.simulate.sessions import conversations
from tests.simulate.helpers import conversation, pool, traffic
from tests.simulate.test_books import balanced


def run(c: ClassLoad, *, replicas: int = 1, requests: int = 4000, **changes: object) -> SimResult:
    spec = pool(replicas=replicas, **changes)
    r = simulate(SimSpec((SimPool("p", spec, replicas, "least-loaded"),), (c,), requests=requests))
    balanced(r)
    return r


def hits(r: SimResult) -> float:
    found = r.classes[0].history_hit_ratio
    assert found is not None
    return found


# ---------------------------------------------------------------- turns


class Noted(Ledger):
    """A ledger that remembers when each turn's client had its answer."""

    __slots__ = ("answers",)

    def finish(self, r: Request, now_s: float) -> None:
        self.answers[r.index] = now_s
        super().finish(r, now_s)


def test_turns_follow_answers_and_hold_all_that_was_said() -> None:
    c = conversation(turns=3.5, think_s=4.0, rate=4.0)
    ledger = Noted(1, 10, 0.0, 500.0)
    ledger.answers = {}
    spec = pool()
    cluster = Cluster([Pool(spec, 2, ledger, routing="least-loaded", max_waiting=None)], None, ledger)
    seen: dict[int, list[tuple[Request, int, float]]] = defaultdict(list)

    def watched() -> Iterator[Request]:
        arrivals = conversations({0: c}, iter(()), cluster, others=[], seed=3, sharing=2, end_s=500.0)
        for r in arrivals:
            assert r.session is not None
            seen[r.session.number].append((r, r.session.turn, r.arrival_s))
            yield r

    cluster.run(watched(), ())
    assert ledger.finished == ledger.arrived == pytest.approx(2000, rel=0.1)
    thinks, lasts = [], []
    for session in seen.values():
        for (before, k, _), (after, following, came) in pairwise(session):
            assert following == k + 1
            assert after.input > before.input + before.output
            thinks.append(came - ledger.answers[before.index])
        lasts.append(session[-1][1])
    assert min(thinks) >= 0
    assert sum(thinks) / len(thinks) == pytest.approx(4.0, rel=0.1)
    assert max(lasts) == 4
    arrivals = [r.arrival_s for turns in seen.values() for r, _, _ in turns]
    assert sorted(arrivals) == [
        r.arrival_s for r in sorted((r for t in seen.values() for r, _, _ in t), key=lambda r: r.index)
    ]


@pytest.mark.parametrize(("think_s", "slow"), [(2.0, 1.0), (60.0, 1.0), (2.0, 3.0)])
def test_requests_come_at_the_classs_rate_however_long_answers_take(think_s: float, slow: float) -> None:
    """From the first second on: sessions are under way when a run begins."""
    r = run(conversation(rate=3.0, think_s=think_s, osl=200 * slow), requests=12_000)
    early = (r.classes[0].batch < 3).mean()
    assert len(r.classes[0].ttft_s) / (0.9 * r.duration_s) == pytest.approx(3.0, rel=0.05)
    assert early == pytest.approx(0.3, abs=0.03)


def test_seeds_decide_everything() -> None:
    c = conversation(rate=3.0)
    spec = SimSpec((SimPool("p", pool(kv_capacity=2e5), 2, "least-loaded"),), (c,), requests=800)
    assert simulate(spec).as_data() == simulate(spec).as_data()
    other = SimSpec(spec.pools, spec.classes, requests=800, seeds=(2,))
    assert simulate(other).as_data() != simulate(spec).as_data()


def test_an_early_end_reports_what_is_unfinished() -> None:
    c = conversation(rate=6.0)
    r = simulate(SimSpec((SimPool("p", pool(), 2, "least-loaded"),), (c,), requests=3000, horizon_s=100.0))
    balanced(r, all_done=False)
    assert r.books.unfinished > 0
    assert r.books.arrived < 800


# ---------------------------------------------------------------- hits


def test_a_large_cache_keeps_what_routing_brings_back() -> None:
    assert hits(run(conversation(rate=9.0), replicas=3)) > 0.99
    scattered = hits(run(conversation(routing="round-robin", rate=9.0), replicas=3, requests=9000))
    # Least-loaded routing takes no heed of sessions: each turn is on one replica of three.
    ever = conversation().history_hit_ratio(kept_for_ever(1 / 3, True))
    assert scattered == pytest.approx(ever, abs=0.03)


def test_histories_are_lost_where_the_cache_is_small_or_people_are_slow() -> None:
    by_size = [hits(run(conversation(rate=3.0), kv_capacity=k)) for k in (6e5, 1e5, 4e4)]
    assert all(a > b + 0.03 for a, b in pairwise(by_size))
    by_pause = [hits(run(conversation(rate=3.0, think_s=z), kv_capacity=2e5)) for z in (5.0, 30.0, 120.0)]
    assert all(a > b + 0.1 for a, b in pairwise(by_pause))


def test_lost_histories_are_prefilled_again() -> None:
    rich, poor = (run(conversation(rate=3.0), kv_capacity=k).classes[0] for k in (1e6, 8e4))
    assert poor.value("ttft", "mean") > 1.5 * rich.value("ttft", "mean")
    cold = simulate(SimSpec((SimPool("p", pool()),), (conversation(rate=3.0).cold(),), requests=4000)).classes[0]
    assert cold.history_hit_ratio is None
    assert cold.value("ttft", "mean") > poor.value("ttft", "mean")


def test_one_replica_of_many_sees_what_all_of_them_see() -> None:
    for routing in ("affinity", "round-robin"):
        c = conversation(routing=routing, rate=12.0)  # type: ignore[arg-type]
        spec = pool(kv_capacity=3e5, replicas=4)
        whole = simulate(SimSpec((SimPool("p", spec, 4, "round-robin"),), (c,), requests=12_000))
        one = simulate(SimSpec((SimPool("p", spec),), one_replica((c,), replicas=4), requests=6000))
        balanced(one)
        assert hits(one) == pytest.approx(hits(whole), abs=0.05)
        # Round-robin deals turns out more evenly than chance does.
        assert 0.9 < one.classes[0].value("ttft", "mean") / whole.classes[0].value("ttft", "mean") < 1.4
        assert len(one.classes[0].ttft_s) / (0.9 * one.duration_s) == pytest.approx(3.0, rel=0.06)


def test_other_classes_push_histories_out() -> None:
    talk, plain = conversation(rate=2.0), traffic(1500, 150, rate=2.0, name="plain")
    p = pool(kv_capacity=2.5e5)
    alone = simulate(SimSpec((SimPool("p", p),), (talk,), requests=4000))
    both = simulate(SimSpec((SimPool("p", p),), (plain, talk), requests=8000))
    balanced(both)
    mixed = both.sample("talk").history_hit_ratio
    assert mixed is not None
    assert mixed < hits(alone) - 0.05
    assert both.sample("plain").history_hit_ratio is None
    assert len(both.sample("plain").ttft_s) == pytest.approx(len(both.sample("talk").ttft_s), rel=0.1)


def test_thinking_is_not_found_again() -> None:
    """The prompt of the last turn is, its answer behind the thinking is not: of 800 (k - 1) tokens 200 are missing."""
    found = hits(run(conversation(rate=2.0, cv=0.0, thinking=300)))
    ks = range(2, 7)
    assert found == pytest.approx(1 - sum(200 for _ in ks) / sum(800 * (k - 1) for k in ks), abs=0.01)


def test_a_dead_replica_loses_its_histories_and_its_sessions_go_on_elsewhere() -> None:
    pools = (SimPool("p", pool(kv_capacity=1e6), 2, "least-loaded"),)
    c = conversation(rate=6.0, think_s=40.0)
    whole = simulate(SimSpec(pools, (c,), requests=3000))
    hurt = simulate(SimSpec(pools, (c,), requests=3000, failures=(Failure(0, 250.0, 60.0),)))
    balanced(hurt)
    assert hurt.books.restarted > 0
    assert hits(hurt) < hits(whole) - 0.02
    gone = simulate(SimSpec((SimPool("p", pool()),), (c,), requests=500, failures=(Failure(0, 20.0),)))
    balanced(gone)
    assert gone.books.rejected > 100  # and nobody comes back after that


def test_prefill_replicas_keep_prompts() -> None:
    h = Handover(bytes_per_token=131072, bytes_per_s=25e9)
    pools = (
        SimPool("p", pool(role="prefill", max_num_batched_tokens=8192), 2, "least-loaded"),
        SimPool("d", pool(role="decode"), 2, "least-loaded"),
    )
    r = simulate(SimSpec(pools, (conversation(rate=8.0, cv=0.0),), handover=h, requests=5000))
    balanced(r)
    model = LoadModel(pools[0].spec, [conversation(cv=0.0)])
    assert hits(r) == pytest.approx(model.history_hit_ratios(4.0)["talk"], abs=0.02)
    hurt = simulate(
        SimSpec(pools, (conversation(rate=8.0),), handover=h, requests=3000, failures=(Failure(1, 100.0, 60.0),))
    )
    balanced(hurt)


def test_ranks_in_lockstep_have_caches_of_their_own() -> None:
    r = run(conversation(rate=6.0), lockstep_ranks=2, requests=6000)
    ever = conversation().history_hit_ratio(kept_for_ever(0.5, True))
    assert hits(r) == pytest.approx(ever, abs=0.04)


@pytest.mark.parametrize(
    ("routing", "replicas", "think_s", "size", "load"),
    [
        ("affinity", 1, 2.0, 2e5, 0.8),
        ("affinity", 1, 20.0, 3e5, 0.8),
        ("affinity", 2, 60.0, 1e6, 0.7),
        ("round-robin", 2, 10.0, 3e5, 0.7),
        ("round-robin", 4, 60.0, 2e6, 0.8),
    ],
)
def test_the_closed_form_counts_on_no_more_than_the_cache_finds(
    *, routing: str, replicas: int, think_s: float, size: float, load: float
) -> None:
    """Many more points in benchmarks/sessions.py: too many by at most 0.026 of the histories."""
    c = conversation(routing=routing, think_s=think_s)  # type: ignore[arg-type]
    m = LoadModel(pool(kv_capacity=size, replicas=replicas), [c])
    rate = load * m.lambda_max
    r = run(c.at(rate * replicas), replicas=replicas, kv_capacity=size, requests=3000 * replicas)
    counted = m.history_hit_ratios(rate)["talk"]
    assert hits(r) - 0.12 < counted < hits(r) + 0.02
    form = m.evaluate(rate).classes[0]
    assert form.ttft.mean > r.classes[0].value("ttft", "mean")
    assert form.ttft.stat("p99") > 0.95 * r.classes[0].value("ttft", "p99")


# ---------------------------------------------------------------- the cache itself


def cache(size: float = 1600.0, **changes: object) -> Prefixes:
    return Prefixes(pool(kv_capacity=size, **changes), Ledger(1, 1, 0.0, 1e9))


def asks(c: Prefixes, s: Session, prompt: int, *, used: float = 0.0) -> int:
    """A turn with this prompt begins: tokens found."""
    r = Request(0, 1.0, 0, prompt, 0, 1, 0)
    r.session = s
    c.admit(r, used)
    return r.cached


def ends(c: Prefixes, s: Session | None, prompt: int, answer: int, *, thinking: int = 0, used: float = 0.0) -> None:
    r = Request(0, 1.0, 0, prompt, 0, answer, thinking)
    r.session = s
    c.put(r, used)


def talk(number: int) -> Session:
    return Session(number, 0, 9, sticky=True, warm=True)


def test_the_least_recently_used_go_first_from_their_end() -> None:
    c = cache()
    a, b, d = talk(1), talk(2), talk(3)
    for s in (a, b, d):
        ends(c, s, 399, 2)  # 400 tokens each: the last one is not in the cache
    assert c.units == 1200
    ends(c, None, 499, 1)  # nobody's, 512 in blocks: 112 over
    assert c.units == 1600
    assert asks(c, b, 900) == 400
    ends(c, b, 800, 1)
    # Of the 400 that b has grown by, a's 288 went first, then the last 112 of d's.
    assert asks(c, a, 900) == 0
    assert asks(c, d, 900) == 288


def test_what_runs_takes_its_blocks_from_here() -> None:
    c = cache()
    a, b = talk(1), talk(2)
    ends(c, a, 800, 1)
    ends(c, b, 800, 1)
    assert asks(c, talk(3), 500, used=1000.0) == 0
    assert c.units == 600
    assert asks(c, a, 1000, used=1000.0) == 0
    assert asks(c, b, 1000, used=1000.0) == 592  # whole blocks


def test_a_lost_replica_forgets() -> None:
    c = cache()
    a = talk(1)
    ends(c, a, 800, 1)
    c.clear()
    assert asks(c, a, 900) == 0
    assert c.units == 0


def test_thinking_stays_behind_for_nobody() -> None:
    c = cache()
    a = talk(1)
    ends(c, a, 320, 481, thinking=400)  # prompt 320, then thinking and the answer behind it
    assert asks(c, a, 900) == 320
    assert c.units == pytest.approx(480)
    assert asks(c, a, 900) == 0


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 5),
            st.integers(1, 600),
            st.integers(1, 300),
            st.floats(0, 2500),
            st.booleans(),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_the_cache_is_never_overfull_and_its_sum_is_exact(
    steps: list[tuple[int, int, int, float, bool, bool]],
) -> None:
    c = cache(2000.0)
    sessions = [talk(n) for n in range(6)]
    history: dict[int, int] = {}
    for who, prompt, answer, used, thinks, begins in steps:
        s = sessions[who] if who >= 0 else None
        if begins and s is not None:
            found = asks(c, s, history.get(who, 0) + prompt, used=used)
            assert 0 <= found <= history.get(who, 0)
            assert found % 16 == 0
        else:
            ends(c, s, history.get(who, 0) + prompt, answer + 1, thinking=answer if thinks else 0, used=used)
            if s is not None:
                history[who] = history.get(who, 0) + prompt + answer + 1
        assert c.units <= max(2000.0 - used, 0) + 1e-6
        assert c.units == pytest.approx(math.fsum(e.units for e in c.idle.values()), abs=1e-6)
        assert all(e.units > -1e-9 for e in c.idle.values())


def test_a_window_of_context_costs_no_more_at_rest() -> None:
    """Cache units of a model with a sliding window: a long context takes as little at rest as it does running."""
    from planner.perf.table import Curve

    spec: PoolSpec = pool(kv_capacity=3000.0, kv_cost=Curve((0.0, 512.0, 513.0), (0.0, 512.0, 512.0)))
    c = Prefixes(spec, Ledger(1, 1, 0.0, 1e9))
    a, b = talk(1), talk(2)
    ends(c, a, 4000, 1)
    ends(c, b, 4000, 1)
    assert c.units == 1024
    assert asks(c, a, 4100) == 4000
