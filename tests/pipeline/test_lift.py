"""Lifts: rates that the simulation found beyond the closed form's TTFT."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.candidates import candidates, predict
from planner.candidates.candidate import Prediction
from planner.intent.resolve import Words
from planner.pipeline import lift as lifting
from planner.pipeline.lift import carries, highest, is_better, lifted, rates_between, without_first
from planner.pipeline.question import Question, ask
from planner.pipeline.verify import Settled, Solve, check, settled
from planner.plan import assemble, pools
from planner.plan.solution import ChosenPool, Solution
from planner.solve import Cut, Lift, solve
from planner.solve.prepare import with_cuts, with_lifts

FLEET = Path(__file__).resolve().parents[2] / "fleets" / "h100.yaml"


def question(*slo: str) -> Question:
    words = Words(
        model="meta-llama/Llama-3.1-8B-Instruct", input="8000", output="100", rate="20/s", slo=slo, objective="gpus",
        target="none", tp=4,
    )  # fmt: skip
    return ask(fleet=FLEET, words=words)


def solver(q: Question) -> Solve:
    def solved(cuts: tuple[Cut, ...], lifts: tuple[Lift, ...], explain: bool) -> Solution:
        del explain
        return solve(
            q.asks, q.fleet, evaluate=candidates, predict=predict, objective="gpus", cuts=cuts, lifts=lifts,
            explain=False,
        )  # fmt: skip

    return solved


@pytest.fixture(scope="module")
def bound_by_ttft() -> tuple[Question, Settled, Settled]:
    q = question("ttft.p99=300ms")
    first = settled(q, solver(q))
    return q, first, lifted(q, first, solver(q))


def test_a_plan_that_ttft_binds_takes_fewer_gpus_and_keeps_every_promise(
    bound_by_ttft: tuple[Question, Settled, Settled],
) -> None:
    q, first, again = bound_by_ttft
    assert again.solution.value < first.solution.value
    assert again.checked.lifts
    assert not again.checked.failed
    assert not check(q, again.solution, rounds=1).cuts
    a = q.asks[0]
    for pool in again.solution.services[0].pools:
        top = pool.candidate.load.lambda_max_rps
        assert pool.candidate.load.planned_rps <= a.service.load_cap * top * (1 + 1e-9)
        assert pool.rate_rps / pool.replicas <= pool.candidate.load.planned_rps * (1 + 1e-6)
        simulated = again.checked.figures[a.name, pool.candidate.key, "default", "ttft.p99"]
        assert simulated <= 0.3


def test_lifting_is_deterministic(bound_by_ttft: tuple[Question, Settled, Settled]) -> None:
    q, first, again = bound_by_ttft
    assert lifted(q, first, solver(q)) == again


def test_the_plan_says_what_was_lifted(bound_by_ttft: tuple[Question, Settled, Settled]) -> None:
    q, _, again = bound_by_ttft
    plan = assemble.assemble(q, again.solution, again.checked)
    assert "a replica that the simulation finds within every promise" in plan.verification.note
    assert plan.verification.rounds == 2
    for figure in (f for c in plan.services[0].pools[0].classes for f in c.figures if f.limit is not None):
        assert figure.value <= (figure.limit or 0.0)


@pytest.mark.parametrize("slo", [(), ("itl.p99=60ms",), ("tpot.p95=40ms", "itl.mean=30ms")])
def test_without_promises_on_the_first_token_nothing_is_looked_at(
    slo: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    q = question(*slo)
    first = Settled(solver(q)((), (), False), check(q, solver(q)((), (), False), rounds=1))

    def never(*_: object, **__: object) -> object:
        raise AssertionError("looked")

    monkeypatch.setattr(lifting, "candidates", never)
    monkeypatch.setattr(lifting, "held", never)
    assert lifted(q, first, never) is first  # type: ignore[arg-type]


def test_what_fails_its_check_is_not_taken(
    bound_by_ttft: tuple[Question, Settled, Settled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the first look wrong and every rate said to hold, the check would cut the lifts down again."""
    q, first, _ = bound_by_ttft
    monkeypatch.setattr(lifting, "carries", lambda *_, **__: True)
    again = lifted(q, first, solver(q))
    assert not again.checked.failed
    assert again.solution.value <= first.solution.value
    assert not check(q, again.solution, rounds=1).failed


def test_cuts_go_before_lifts(bound_by_ttft: tuple[Question, Settled, Settled]) -> None:
    q, _, again = bound_by_ttft
    x = again.checked.lifts[0]
    known = candidates(q.asks[0])
    mine = [c for c in with_lifts(q.asks[0], known, [x]) if x.raises(c)]
    assert [c.load.planned_rps for c in mine] == [x.rate_rps]
    (cut,) = with_cuts(mine, [Cut(x.service, x.key, 1.5)])
    assert (cut.load.planned_rps, cut.load.degraded_rps, cut.load.binding) == (1.5, 1.5, "simulation")
    # What the enumeration left out comes back, and nothing is lowered.
    assert len(with_lifts(q.asks[0], [], [x])) == 1
    low = replace(x, rate_rps=x.closed_rps / 2)
    assert with_lifts(q.asks[0], mine, [low]) == mine


def test_a_replica_at_its_limit_does_not_carry_more(bound_by_ttft: tuple[Question, Settled, Settled]) -> None:
    q, _, again = bound_by_ttft
    x = again.checked.lifts[0]
    assert carries(q.asks[0], x.candidate, x.rate_rps, total_rps=20.0)
    assert not carries(q.asks[0], x.candidate, x.candidate.load.lambda_max_rps * 0.98, total_rps=20.0)


def test_rates_rise_to_the_top_and_never_beyond() -> None:
    for total in (0.5, 7.0, 40.0, 1e5):
        rates = rates_between(1.3, 2.9, total_rps=total)
        assert list(rates) == sorted(set(rates))
        assert rates[0] > 1.3
        assert rates[-1] == 2.9
    asked: list[float] = []

    def holds(r: float) -> bool:
        asked.append(r)
        return r <= 2.0

    found = highest(holds, rates_between(1.3, 2.9, total_rps=40.0))
    assert found == 2.0  # 20 replicas share 40/s
    assert len(asked) <= 6


def test_only_promises_on_the_first_token_are_dropped() -> None:
    q = question("ttft.p99=1s", "e2e.p95=9s", "itl.p99=60ms")
    a = q.asks[0]
    assert [s.key for s in without_first(a).service.slo] == ["itl.p99"]
    own = a.service.traffic[0].model_copy(update={"slo": a.service.slo})
    assert [s.key for s in without_first(a.with_service(traffic=(own,))).slos_of("default")] == ["itl.p99"]


def test_better_is_fewer_or_more_by_what_was_asked(bound_by_ttft: tuple[Question, Settled, Settled]) -> None:
    _, first, _ = bound_by_ttft
    s = first.solution
    assert is_better(replace(s, value=s.value - 1), s)
    assert not is_better(s, s)
    most = replace(s, scale=1.0)
    assert is_better(replace(most, value=s.value + 1), most)
    assert not is_better(replace(most, value=s.value - 1), most)


def test_a_closed_form_above_a_kept_promise_gives_way_to_the_simulation(
    bound_by_ttft: tuple[Question, Settled, Settled],
) -> None:
    q, _, again = bound_by_ttft
    a, (pool, *_) = q.asks[0], again.solution.services[0].pools
    told = tuple(
        Prediction("default", m, v, v * 0.8, v * 1.5, "prompt backlog chain")
        for m, v in (("ttft.mean", 0.2), ("ttft.p99", 0.4), ("itl.p99", 0.05))
    )
    keys = {"ttft.mean": 0.1, "ttft.p99": 0.24, "itl.p99": 0.04}
    checked = replace(again.checked, figures={(a.name, pool.candidate.key, "default", m): v for m, v in keys.items()})
    chosen = ChosenPool(pool.candidate, pool.replicas, pool.rate_rps, told)
    figures = {f.metric: f for f in pools.class_document(a, chosen, a.classes[0], checked, None).figures}
    assert (figures["ttft.p99"].value, figures["ttft.p99"].method) == (0.24, "simulation; closed form 400ms")
    assert (figures["ttft.p99"].low, figures["ttft.p99"].high) == (0.192, 0.36)
    assert figures["ttft.mean"].value == 0.1  # never above the p99 that it stands beside
    assert (figures["itl.p99"].value, figures["itl.p99"].method) == (0.05, "prompt backlog chain")
