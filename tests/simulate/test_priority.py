"""Classes of one pool that differ in priority: against exact results, against single steps, and the books."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.perf.load import LoadModel
from planner.perf.pool import Handover, PoolSpec
from planner.perf.table import Curve, StepTable
from planner.perf.traffic import ClassLoad, JointLengths
from planner.simulate.engine import Replica
from planner.simulate.requests import Ledger, Request
from planner.simulate.run import Failure, SimPool, SimResult, SimSpec, simulate
from planner.simulate.waiting import Ranked
from tests.simulate.helpers import bent, lengths, pool, traffic
from tests.simulate.reference import Job, run

FLAT = StepTable(Curve((0.0,), (0.01,)), Curve((0.0,), (0.01,)), (1,), (Curve((0.0,), (0.0,)),), Curve((0.0,), (0.0,)))
CHAT = traffic(400, 150, name="chat", rate=4.0)
BATCH = traffic(6000, 400, cv=0.7, name="batch", rate=1.0)


def mixed(p: PoolSpec, load: float, priority: int, *, requests: int = 4000) -> SimResult:
    """Four chats to one batch request; the batch class at a priority of its own."""
    classes = (CHAT, replace(BATCH, priority=priority))
    share = load * LoadModel(p, [CHAT, BATCH]).lambda_max / 5
    spec = SimSpec((SimPool("p", p),), tuple(c.at(c.rate_per_s * share) for c in classes), requests=requests)
    return simulate(spec)


def test_one_slot_is_cobhams_queue() -> None:
    """W_k = W0 / ((1 - s_(k-1)) (1 - s_k)), and a lower number is served first whatever the order of classes."""
    outputs = {"last": 40, "first": 5, "middle": 20}
    priorities = {"last": 90, "first": 0, "middle": 7}
    rates = {"last": 0.6, "first": 5.0, "middle": 1.0}
    classes = tuple(
        ClassLoad(n, rates[n], JointLengths(lengths(100), lengths(o, 0.5)), priority=priorities[n])
        for n, o in outputs.items()
    )
    r = simulate(SimSpec((SimPool("one", PoolSpec(FLAT, 1, 4096, 1e9)),), classes, requests=40_000))
    work = {c.name: c.rate_per_s * c.lengths.output.mean * 0.01 for c in classes}
    rng = np.random.default_rng(1)
    left = sum(c.rate_per_s * float((c.lengths.output.sample(rng, 200_000) ** 2).mean()) * 1e-4 / 2 for c in classes)
    before = 0.0
    for name in ("first", "middle", "last"):
        wait = r.sample(name).value("ttft", "mean") - 0.01
        assert wait == pytest.approx(left / ((1 - before) * (1 - before - work[name])), rel=0.08)
        before += work[name]
    assert before == pytest.approx(0.69, rel=0.03)


@pytest.mark.parametrize("scheduler", ["decode-first", "prefill-first"])
@pytest.mark.parametrize(("seed", "gap_s", "slots"), [(1, 0.03, 12), (2, 0.05, 64)])
def test_jumps_equal_single_steps(scheduler: str, seed: int, gap_s: float, slots: int) -> None:
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(gap_s, 300))
    prompts = np.clip(rng.lognormal(5.5, 1, 300).astype(int), 1, 4000)
    outputs = np.clip(rng.lognormal(3.5, 1, 300).astype(int), 1, 800)
    levels = (20, 0, 5)
    which = rng.integers(3, size=300)
    slow = [Job(float(t), int(p), 0, int(o), levels[k]) for t, p, o, k in zip(at, prompts, outputs, which, strict=True)]
    spec = PoolSpec(bent(), slots, 400, 1e9, scheduler=scheduler)  # type: ignore[arg-type]
    ledger = Ledger(3, 1, 0.0, 1e9)
    replica = Replica(spec, ledger, priorities=levels)
    for i, (j, k) in enumerate(zip(slow, which, strict=True)):
        replica.advance(j.at)
        replica.arrive(Request(i, j.at, int(k), j.prompt, 0, j.output, 0), j.at)
    replica.advance(1e12)
    run(spec, slow)
    found = {a: (t, e) for a, t, e in zip(ledger.arrival_s, ledger.ttft_s, ledger.e2e_s, strict=True)}
    assert len(found) == 300
    for j in slow:
        assert found[j.at][0] == pytest.approx(j.first - j.at, abs=1e-7)
        assert found[j.at][1] == pytest.approx(j.last - j.at, abs=1e-7)


@pytest.mark.parametrize("changes", [{}, {"lockstep_ranks": 3}, {"kv_capacity": 20_000.0}])
def test_equal_priorities_change_nothing(changes: dict[str, object]) -> None:
    p = SimPool("p", pool(**changes), 2)
    classes = (traffic(300, 100, rate=8.0, name="a"), traffic(2000, 200, rate=1.0, name="b"))
    plain, marked = (
        simulate(SimSpec((p,), tuple(replace(c, priority=n) for c in classes), requests=1500)) for n in (0, 9)
    )
    assert plain.as_data() == marked.as_data()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scheduler": "prefill-first", "max_num_batched_tokens": 8192},
        {"max_num_seqs": 24},
        {"lockstep_ranks": 4},
        {"role": "prefill"},
        {"role": "decode", "kv_capacity": 40_000.0},
        {"kv_capacity": 40_000.0},
    ],
)
def test_what_is_served_first_waits_less(changes: dict[str, object]) -> None:
    plain, ranked = (mixed(pool(**changes), 0.85, priority) for priority in (0, 10))
    for r in (plain, ranked):  # a decode replica's recomputed prompts are longer than a step's budget here
        assert r.books.finished + r.books.rejected == r.books.arrived
    for stat in ("mean", "p99"):
        assert ranked.sample("chat").value("ttft", stat) < 0.97 * plain.sample("chat").value("ttft", stat)
    assert ranked.sample("batch").value("ttft", "mean") > 0.95 * plain.sample("batch").value("ttft", "mean")
    assert mixed(pool(**changes), 0.85, 10).as_data() == ranked.as_data()


def test_the_last_in_order_is_preempted() -> None:
    """Two sequences that outgrow the cache together: the young one goes, unless the old one's class matters less."""
    for priorities, victim in (((), 1), ((5, 0), 0), ((0, 5), 1)):
        ledger = Ledger(2, 1, 0.0, 1e9)
        replica = Replica(PoolSpec(FLAT, 8, 4096, 640.0), ledger, priorities=priorities)
        for i in (0, 1):
            replica.advance(i * 0.05)
            replica.arrive(Request(i, i * 0.05, i, 160, 0, 300, 0), i * 0.05)
        replica.advance(1e9)
        assert ledger.preemptions == 1
        last = dict(zip(ledger.cls, ledger.e2e_s, strict=True))
        assert last[1 - victim] == pytest.approx(3.0, abs=0.02)  # 300 steps of 10 ms, never stopped
        assert last[victim] > 3.5


def test_a_half_read_prompt_of_less_priority_makes_room() -> None:
    ledger = Ledger(2, 1, 0.0, 1e9)
    replica = Replica(PoolSpec(FLAT, 8, 20, 960.0), ledger, priorities=(0, 5))
    replica.arrive(Request(0, 0.0, 0, 60, 0, 200, 0), 0.0)
    replica.advance(0.05)
    replica.arrive(Request(1, 0.05, 1, 860, 0, 5, 0), 0.05)  # 46 steps of 19; the cache is full before
    replica.advance(1e9)
    assert ledger.preemptions == 1
    assert ledger.e2e_s[0] == pytest.approx(2.02, abs=0.02)
    assert ledger.ttft_s[1] > 1.9


def test_the_queue_is_in_order_of_priority_then_arrival() -> None:
    queue = Ranked((5, 0))
    a, b, c, d = (Request(i, float(i), cls, 1, 0, 1, 0) for i, cls in enumerate((0, 1, 0, 1)))
    for r in (a, b, c, d):
        queue.append(r)
    first = queue.popleft()
    queue.appendleft(first)  # preempted: before its own class, not before a better one
    taken = queue.popleft(), queue.popleft(), queue.popleft()
    queue.appendleft(taken[2])
    assert [first, *taken, *queue] == [b, b, d, a, a, c]


@settings(max_examples=40)
@given(
    isl=st.sampled_from([5, 300, 6000]),
    seqs=st.sampled_from([1, 5, 200]),
    budget=st.sampled_from([1024, 8192]),
    capacity=st.sampled_from([9000.0, 40_000.0, 1e9]),
    scheduler=st.sampled_from(["decode-first", "prefill-first"]),
    ranks=st.sampled_from([1, 1, 3]),
    apart=st.booleans(),
    load=st.sampled_from([0.4, 0.9, 1.6]),
    fails=st.booleans(),
)
def test_whatever_the_setting_the_books_balance(
    *, isl: int, seqs: int, budget: int, capacity: float, scheduler: str, ranks: int, apart: bool, load: float,
    fails: bool,
) -> None:  # fmt: skip
    p = pool(
        max_num_seqs=seqs, max_num_batched_tokens=budget, kv_capacity=capacity, scheduler=scheduler,
        lockstep_ranks=ranks,
    )  # fmt: skip
    classes = (
        replace(traffic(isl, 60, cv=0.6, name="a"), priority=30),
        traffic(200, 300, name="b"),
        replace(traffic(900, 20, name="c"), priority=2),
    )
    rate = 2 * load * LoadModel(p, classes).lambda_max / 3
    pools: tuple[SimPool, ...] = (SimPool("p", p, 2, "least-loaded"),)
    if apart:
        pools = (SimPool("p", p.with_(role="prefill"), 2), SimPool("d", p.with_(role="decode"), 2))
    failures = (Failure(0, 20 / rate, 10 / rate),) if fails else ()
    handover = Handover(1e5, 1e10) if apart else None
    r = simulate(SimSpec(pools, tuple(c.at(rate) for c in classes), handover=handover, requests=200, failures=failures))
    b = r.books
    assert b.unfinished == 0
    assert b.arrived == b.finished + b.rejected
    if not b.rejected:
        assert b.tokens_out == b.tokens_asked
    for c in r.classes:
        assert (c.ttft_s >= 0).all()
        assert (c.e2e_s >= c.ttft_s - 1e-9).all()
