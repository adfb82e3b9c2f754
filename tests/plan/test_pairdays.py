"""Bad days of prefill and decode apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.candidates import candidates, predict
from planner.intent.resolve import Words
from planner.pipeline import ask, make_plan
from planner.plan.baddays import DAYS, Running
from planner.plan.document import Plan
from planner.plan.pairdays import RunningPair, pair_days, running_pairs
from planner.solve import solve

FLEET = Path(__file__).resolve().parents[2] / "fleets" / "h100.yaml"


def words(rate: str) -> Words:
    return Words(
        model="meta-llama/Llama-3.1-8B-Instruct", rate=rate, input="4000", output="300", tp=1, pools="disaggregated",
        slo=("itl=30ms", "ttft=1s"), objective="gpus", target="dynamo",
    )  # fmt: skip


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(ask(fleet=FLEET, words=words("40/s")), verify=False)


@pytest.fixture(scope="module")
def pair() -> RunningPair:
    q = ask(fleet=FLEET, words=words("40/s"))
    solution = solve(q.asks, q.fleet, evaluate=candidates, predict=predict, objective="gpus", explain=False)
    (found,) = running_pairs({a.name: a for a in q.asks}, solution)
    return found


def test_a_plan_of_pairs_has_bad_days(plan: Plan) -> None:
    assert [d.name for d in plan.bad_days] == [name for name, _ in DAYS if name != "cold prefix caches"]
    for day in plan.bad_days:
        assert day.method == "closed form"
        assert bool(day.misses) or day.load < 1
        if day.load >= 1:
            assert "overload" in day.misses[0]


def test_more_traffic_is_more_load(pair: RunningPair) -> None:
    def load(day: str, p: RunningPair) -> float:
        return next(d.load for d in pair_days([p]) if d.name == day)

    def wide(r: Running) -> Running:
        return replace(r, replicas=2 * r.replicas, surge=True)

    calm = load("a rollout, replica by replica", replace(pair, prefill=wide(pair.prefill), decode=wide(pair.decode)))
    busy = load("1.5x traffic", replace(pair, prefill=wide(pair.prefill), decode=wide(pair.decode)))
    assert busy == pytest.approx(1.5 * calm, rel=1e-2)


def test_what_is_lost_strikes_the_pool_that_can_spare_it_least(pair: RunningPair) -> None:
    few = replace(pair.decode, lost_with_node=1)
    many = replace(pair.prefill, replicas=20, lost_with_node=1)
    day = next(d for d in pair_days([replace(pair, prefill=many, decode=few)]) if d.name.startswith("a node lost"))
    fewer = replace(few, replicas=few.replicas - 1, lost_with_node=1)
    calm = next(
        d
        for d in pair_days([replace(pair, prefill=many, decode=replace(fewer, surge=True))])
        if d.name.startswith("a rollout, ")
    )
    assert day.load == pytest.approx(calm.load, rel=1e-3)
    alone = replace(few, replicas=1)
    (lost, *_) = pair_days([replace(pair, decode=alone)])
    assert lost.misses[0].startswith("every SLO: no replica is left")
