"""Impossible questions: the clash named is the planted one, and the printed way out is enough and no more than enough.

A planted set M is the only minimal clash if and only if M alone is infeasible and the whole question without any one
member of M is feasible; both are checked here by solving, and where the fleet is small by brute force as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from handmade import Toy, ask, evaluator, fleet, no_figures
from optimality import Instance, brute

from planner.errors import Exit, UserError
from planner.intent.fleet import Fleet
from planner.solve.infeasible import feasible, find_clash
from planner.solve.prepare import Evaluator
from planner.solve.question import Clause, Question
from planner.solve.rules import rule_of
from planner.solve.rules.fleet_inventory import ENDLESS
from planner.solve.solver import solve

NODE = {"override": {"scale_up_domain": 8}}
ONE_NODE: dict[str, Any] = {"name": "a", "nodes": 1, **NODE}
TWO_NODES: dict[str, Any] = {"name": "a", "nodes": 2, **NODE}
OPEN = {"load_cap": 1.0, "degraded_cap": 1.0}
"""Without load caps there is one rule fewer to clash with."""


@dataclass(frozen=True)
class Case:
    name: str
    toys: list[Toy]
    clash: set[str]
    """Codes with their details, as a clause prints them."""
    service: dict[str, Any] = field(default_factory=dict)
    pools: tuple[dict[str, Any], ...] = (TWO_NODES,)
    helps: tuple[str, ...] = ()
    others: dict[str, tuple[list[Toy], dict[str, Any]]] = field(default_factory=dict)


def slow(tp: int, floor_ms: float, most: float = 10.0, **kw: Any) -> Toy:
    """A shape whose idle ITL is `floor_ms`, growing by 1 ms per request/s."""
    return Toy("a", tp=tp, most_rps=most, floor_s={"itl": floor_ms / 1000}, slope_s={"itl": 0.001}, **kw)


def metric(name: str, floor_ms: float, tp: int = 1, **kw: Any) -> Toy:
    return Toy("a", tp=tp, floor_s={name: floor_ms / 1000}, slope_s={name: 0.001}, **kw)


CASES = [
    Case(
        "itl below physics",
        [slow(1, 12), slow(2, 7.5)],
        {"slo-itl chat itl.p99"},
        {"slo": {"itl": "5ms"}, "rate": "2/s"},
        helps=("set itl.p99 to 8ms or more",),
    ),
    Case(
        "mean itl below physics",
        [slow(1, 12), slow(2, 7.5)],
        {"slo-itl chat itl.mean"},
        {"slo": {"itl.mean": "5ms", "itl": "60ms"}, "rate": "2/s"},
    ),
    Case(
        "ttft below physics",
        [metric("ttft", 210)],
        {"slo-ttft chat ttft.p95"},
        {"slo": {"ttft.p95": "200ms", "itl": "1s"}, "rate": "1/s"},
        helps=("set ttft.p95 to 211ms or more",),
    ),
    Case(
        "tpot below physics", [metric("tpot", 21)], {"slo-tpot chat tpot.p99"}, {"slo": {"tpot": "20ms"}, "rate": "1/s"}
    ),
    Case(
        "e2e below physics",
        [metric("e2e", 9000)],
        {"slo-e2e chat e2e.p99"},
        {"slo": {"e2e": "8s", "ttft": "3s"}, "rate": "1/s"},
        helps=("set e2e.p99 to 9001ms or more",),
    ),
    Case(
        "ttfa below physics",
        [metric("ttfa", 900)],
        {"slo-ttfa chat ttfa.p99"},
        {"slo": {"ttfa": "800ms"}, "rate": "1/s"},
    ),
    Case(
        "accuracy floor above every checkpoint",
        [slow(1, 5, accuracy=0.985), slow(2, 4, accuracy=0.97)],
        {"accuracy-floor chat 0.99"},
        {"accuracy_floor": 0.99},
        helps=("lower accuracy_floor of chat to 0.985",),
    ),
    Case(
        "fixed tp that no shape has",
        [slow(1, 5), slow(2, 4)],
        {"fixed-choices chat tp"},
        {"fixed": {"tp": 4}},
        helps=("remove tp: 4 from fixed of chat",),
    ),
    Case(
        "fixed budget that no shape has",
        [slow(1, 5)],
        {"fixed-choices chat max_num_batched_tokens"},
        {"fixed": {"max_num_batched_tokens": 256}},
    ),
    Case("engine runs nothing", [slow(1, 5, refused=True)], {"engine-supports"}),
    Case(
        "prefill and decode apart without RDMA",
        [slow(1, 5, role="prefill"), slow(1, 5, role="decode")],
        {"kv-transfer"},
        {"pools": "disaggregated"},
        helps=("enable RDMA in pool a (rdma: true)",),
    ),
    Case(
        "too much traffic",
        [slow(1, 5)],
        {"fleet-inventory", "traffic-served chat"},
        {"rate": "170/s", **OPEN},
        helps=("add 1 node (8 GPUs) to pool a", "lower the rate of chat to 94% (160/s)"),
    ),
    Case(
        "far too much traffic",
        [slow(1, 5), slow(2, 4)],
        {"fleet-inventory", "traffic-served chat"},
        {"rate": "900/s", **OPEN},
        helps=("add 10 nodes (80 GPUs) to pool a", "lower the rate of chat to 17% (153/s)"),
    ),
    Case(
        "a node to lose and one node",
        [slow(1, 5)],
        {"survive chat 1 node", "fleet-inventory"},
        {"survive": "1 node", "rate": "20/s"},
        (ONE_NODE,),
        helps=("set survive of chat to 1 replica", "add 1 node (8 GPUs) to pool a"),
    ),
    Case(
        "a replica to lose and room for one",
        [slow(8, 5, most=100)],
        {"survive chat 1 replica", "fleet-inventory"},
        {"survive": "1 replica", "rate": "20/s"},
        (ONE_NODE,),
        helps=("set survive of chat to none", "add 1 node (8 GPUs) to pool a"),
    ),
    Case(
        "loss, fleet and traffic",
        [slow(1, 5)],
        {"survive chat 1 node", "fleet-inventory", "traffic-served chat"},
        {"survive": "1 node", "rate": "100/s", **OPEN},
        helps=(
            "set survive of chat to 1 replica",
            "add 1 node (8 GPUs) to pool a",
            "lower the rate of chat to 80% (80/s)",
        ),
    ),
    Case(
        "promise, fleet and traffic",
        [slow(1, 5)],
        {"slo-itl chat itl.p99", "fleet-inventory", "traffic-served chat"},
        {"slo": {"itl": "10ms"}, "rate": "100/s", **OPEN},
        helps=("set itl.p99 to 12ms or more", "add 1 node (8 GPUs) to pool a", "lower the rate of chat to 80% (80/s)"),
    ),
    Case(
        "promise against accuracy",
        [slow(2, 12, accuracy=1.0), slow(1, 6, accuracy=0.97, precision="fp8")],
        {"slo-itl chat itl.p99", "accuracy-floor chat 0.99"},
        {"slo": {"itl": "10ms"}, "accuracy_floor": 0.99, "rate": "1/s"},
        helps=("set itl.p99 to 13ms or more", "lower accuracy_floor of chat to 0.97"),
    ),
    Case(
        "promise against a fixed tp",
        [slow(1, 12), slow(4, 6)],
        {"slo-itl chat itl.p99", "fixed-choices chat tp"},
        {"slo": {"itl": "10ms"}, "fixed": {"tp": 1}, "rate": "1/s"},
        helps=("set itl.p99 to 13ms or more", "remove tp: 1 from fixed of chat"),
    ),
    Case(
        "promise against the engine",
        [slow(1, 12), slow(4, 6, refused=True)],
        {"slo-itl chat itl.p99", "engine-supports"},
        {"slo": {"itl": "10ms"}, "rate": "1/s"},
    ),
    Case(
        "two promises, a shape for each",
        [
            Toy("a", floor_s={"itl": 0.02}, slope_s={"itl": 0.001}),
            Toy("a", tp=2, floor_s={"ttft": 0.4}, slope_s={"ttft": 0.001}),
        ],
        {"slo-itl chat itl.p99", "slo-ttft chat ttft.p99"},
        {"slo": {"itl": "10ms", "ttft": "300ms"}, "rate": "1/s"},
        helps=("set itl.p99 to 21ms or more", "set ttft.p99 to 401ms or more"),
    ),
    Case(
        "three promises, a shape for each pair",
        [metric("itl", 20), metric("ttft", 400, tp=2), metric("e2e", 9000, tp=4)],
        {"slo-itl chat itl.p99", "slo-ttft chat ttft.p99", "slo-e2e chat e2e.p99"},
        {"slo": {"itl": "10ms", "ttft": "300ms", "e2e": "8s"}, "rate": "1/s"},
    ),
    Case(
        "groups of three in nodes of four",
        [Toy("a", tp=3, most_rps=10)],
        {"packing", "fleet-inventory", "traffic-served chat"},
        {"rate": "40/s", **OPEN},
        ({"name": "a", "nodes": 3, "gpus_per_node": 4, "override": {"scale_up_domain": 4}},),
        helps=("add 1 node (4 GPUs) to pool a", "lower the rate of chat to 75% (30/s)"),
    ),
    Case(
        "groups of five in nodes of eight",
        [Toy("a", tp=5, most_rps=10)],
        {"packing", "fleet-inventory", "traffic-served chat"},
        {"rate": "30/s", **OPEN},
    ),
    Case(
        "three pools, three shapes",
        [Toy(p, most_rps=10) for p in "abc"],
        {"distinct-shapes", "fleet-inventory", "traffic-served chat"},
        {"rate": "200/s", **OPEN},
        tuple({"name": p, "nodes": 1, **NODE} for p in "abc"),
    ),
    Case(
        "a fixed count too small",
        [slow(1, 5)],
        {"fixed-choices chat replicas", "traffic-served chat"},
        {"fixed": {"replicas": 3}, "rate": "40/s", **OPEN},
        helps=("remove replicas: 3 from fixed of chat", "lower the rate of chat to 75% (30/s)"),
    ),
    Case(
        "a fixed count too large",
        [slow(8, 5)],
        {"fixed-choices chat replicas", "fleet-inventory"},
        {"fixed": {"replicas": 3}, "rate": "5/s"},
        helps=("remove replicas: 3 from fixed of chat", "add 1 node (8 GPUs) to pool a"),
    ),
    Case(
        "accuracy against a fixed precision",
        [slow(1, 5, accuracy=1.0), slow(1, 5, accuracy=0.97, precision="fp8")],
        {"accuracy-floor chat 0.99", "fixed-choices chat precision"},
        {"accuracy_floor": 0.99, "fixed": {"precision": "fp8"}},
    ),
    Case(
        "two services, one fleet",
        [slow(1, 5)],
        {"fleet-inventory", "traffic-served chat", "traffic-served code"},
        {"rate": "90/s", **OPEN},
        others={"code": ([slow(1, 5)], {"rate": "90/s", **OPEN})},
        helps=(
            "add 1 node (8 GPUs) to pool a",
            "lower the rate of chat to 77% (69.3/s)",
            "lower the rate of code to 77% (69.3/s)",
        ),
    ),
    Case(
        "one of two services asks too much of physics",
        [slow(1, 5)],
        {"slo-itl code itl.p99"},
        {"rate": "9/s"},
        others={"code": ([slow(1, 12)], {"slo": {"itl": "6ms"}, "rate": "1/s"})},
        helps=("set itl.p99 to 13ms or more",),
    ),
    Case(
        "a class's own promise",
        [slow(1, 12)],
        {"slo-itl chat fast itl.p99"},
        {
            "traffic": [
                {"name": "fast", "input": 10, "output": 10, "rate": "1/s", "slo": {"itl": "8ms"}},
                {"name": "easy", "input": 10, "output": 10, "rate": "1/s"},
            ],
            "slo": {"itl": "1s"},
        },
        helps=("set itl.p99 of class fast to 13ms or more",),
    ),
    Case(
        "whole nodes for groups over the network",
        [Toy("a", tp=8, pp=2, nodes=2, most_rps=10)],
        {"fleet-inventory"},
        {"rate": "2/s"},
        (ONE_NODE,),
        helps=("add 1 node (8 GPUs) to pool a",),
    ),
]


def question(case: Case) -> tuple[Question, Evaluator, Fleet, dict[str, list[Toy]]]:
    f = fleet(*case.pools)
    services = {"chat": (case.toys, case.service), **case.others}
    asks = tuple(ask(f, name=name, **kw) for name, (_, kw) in sorted(services.items()))
    toys = {name: t for name, (t, _) in services.items()}
    return Question(asks, f), Evaluator(evaluator(toys)), f, toys


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_clash_is_the_planted_one(case: Case) -> None:
    q, evaluate, _, toys = question(case)
    clash = find_clash(q, evaluate)
    assert {str(c) for c in clash.clauses} == case.clash
    _unique(q, clash.clauses, evaluate)
    assert _plan(q, toys) is None
    if case.helps:
        assert tuple(dict.fromkeys(r.text for _, r in clash.relaxations if r)) == case.helps
    assert any(r for _, r in clash.relaxations), "at least one way out"
    for clause, relaxation in clash.relaxations:
        if relaxation is None:
            continue
        assert feasible(relaxation.question, evaluate), f"{relaxation.text} is not enough"
        assert not feasible(relaxation.one_less, evaluate), f"{relaxation.text} is more than enough"
        # Rules without a step of their own (an engine's support, the third shape) are not brute force's to judge.
        if clause.code not in ("engine-supports", "distinct-shapes", "kv-transfer"):
            assert _plan(relaxation.question, toys) is not None, relaxation.text
            assert _plan(relaxation.one_less, toys) is None, relaxation.text


def _unique(q: Question, members: tuple[Clause, ...], evaluate: Evaluator) -> None:
    """The only minimal clash: alone it has no plan, and the whole question without any of it has one."""
    alone = q
    from planner.solve.rules import RULES

    every = [c for rule in RULES for c in rule.clauses(q)]
    for clause in every:
        if clause not in members:
            alone = rule_of(clause.code).off(alone, clause)
    assert feasible(alone, evaluate) is False
    for clause in members:
        assert feasible(rule_of(clause.code).off(q, clause), evaluate), f"{clause} is not needed"


def _plan(q: Question, toys: dict[str, list[Toy]]) -> object | None:
    """Brute force, where it is small enough to be asked."""
    if (
        any(p.nodes >= ENDLESS for p in q.fleet.pools)
        or sum(p.nodes * (p.gpus_per_node or 8) for p in q.fleet.pools) > 24
    ):
        return None if not feasible(q, Evaluator(evaluator(toys))) else q
    pools = tuple(p.model_copy(update={"gpus_per_node": p.gpus_per_node or 8}) for p in q.fleet.pools)
    return brute(Instance(q.asks, q.fleet.model_copy(update={"pools": pools}), toys, q.objective))


def test_there_are_thirty_cases() -> None:
    assert len(CASES) >= 30


def test_error_reads_like_the_compiler() -> None:
    case = next(c for c in CASES if c.name == "promise, fleet and traffic")
    _, _, f, toys = question(case)
    with pytest.raises(UserError) as e:
        solve(
            [ask(f, **case.service)], f, evaluate=evaluator(toys), predict=no_figures,
        )  # fmt: skip
    assert e.value.exit_code is Exit.NO_PLAN
    assert str(e.value) == (
        "error[slo-itl]: no plan keeps itl p99 <= 10ms for toy on fleet toys\n"
        "  = note: these clash; without any one of them there is a plan: slo-itl chat itl.p99, fleet-inventory, "
        "traffic-served chat\n"
        "  = note: best reachable itl.p99 is 5ms (h100-sxm, tp1, bf16, 2048-token budget, at almost no load)\n"
        "  = help: set itl.p99 to 12ms or more\n"
        "  = help: add 1 node (8 GPUs) to pool a\n"
        "  = help: lower the rate of chat to 80% (80/s)"
    )


def test_fleet_too_small_says_what_it_cannot_carry() -> None:
    f = fleet(ONE_NODE)
    toys = {n: [slow(1, 5)] for n in ("chat", "code", "mail")}
    asks = [ask(f, name=n, rate=r) for n, r in (("chat", "30/s"), ("code", "20/s"), ("mail", "30/s"))]
    with pytest.raises(UserError) as e:
        solve(asks, f, evaluate=evaluator(toys), predict=no_figures)
    text = str(e.value)
    assert e.value.code == "fleet-inventory"
    assert "it carries 80.0% of every rate" in text
    assert "it carries all but chat" in text or "it carries all but mail" in text


def test_nothing_runs_is_not_a_clash() -> None:
    f = fleet(ONE_NODE)
    with pytest.raises(UserError) as e:
        solve([ask(f)], f, evaluate=lambda _: (), predict=no_figures)
    assert e.value.code == "no-configuration"
    assert e.value.exit_code is Exit.NO_PLAN
