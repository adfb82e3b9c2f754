"""Sessions from the intent to the plan: what is counted on of their histories, and what a cold cache would mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import UserError
from planner.intent.resolve import Words
from planner.pipeline import make_plan
from planner.pipeline.question import ask
from planner.plan.document import Plan
from planner.plan.text import dumps, loads

ROOT = Path(__file__).resolve().parent.parent.parent
INTENT = """
services:
  - name: chat
    model: meta-llama/Llama-3.1-8B-Instruct
    fixed: {tp: 1, max_num_seqs: 128, max_num_batched_tokens: 2048}
    traffic:
      - name: talk
        rate: 40/s
        input: {mean: 600, cv: 1}
        output: {mean: 250, cv: 0.8}
        sessions: {turns: 6, think_time: THINK}
        prefix_cache: {shared_tokens: 200, routing: ROUTING}
    slo: {ttft.p99: 2s}
"""


def planned(folder: Path, *, think: str = "30s", routing: str = "affinity", more: str = "") -> Plan:
    path = folder / "intent.yaml"
    path.write_text(INTENT.replace("THINK", think).replace("ROUTING", routing) + more)
    question = ask(fleet=ROOT / "fleets" / "h100.yaml", intent_files=(path,), words=Words())
    return make_plan(question, verify=not more and routing == "affinity")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    folder = tmp_path_factory.mktemp("sessions")
    return {
        "affinity": planned(folder),
        "slow": planned(folder, think="20min", routing="affinity"),
        "round-robin": planned(folder, routing="round-robin"),
    }


def ratio(plan: Plan) -> float:
    found = plan.services[0].pools[0].classes[0].history_hit_ratio
    assert found is not None
    return found


def test_the_plan_says_what_it_counts_on(plans: dict[str, Plan]) -> None:
    plan = plans["affinity"]
    hits = ratio(plan)
    assert 0.2 < hits < 0.9
    (assumed,) = plan.assumed
    assert f"sessions of 6 turns 30s apart, {hits:.0%} of earlier turns found in the cache" in assumed
    assert f"{hits:.0%} of talk's earlier tokens" in plan.services[0].pools[0].reasons["prefix_cache"]
    assert loads(dumps(plan)).services == plan.services


def test_the_simulation_agrees_and_is_no_worse(plans: dict[str, Plan]) -> None:
    plan = plans["affinity"]
    assert plan.verification.by == "simulation"
    figures = {f.metric: f for f in plan.services[0].pools[0].classes[0].figures}
    for name in ("ttft.mean", "ttft.p99", "tpot.mean"):
        told, seen = figures[name].value, figures[name].simulated
        assert seen is not None
        assert 0.6 * told < seen < 1.1 * told


def test_pauses_and_routing_cost_hits_and_gpus(plans: dict[str, Plan]) -> None:
    assert ratio(plans["slow"]) < 0.05 < ratio(plans["round-robin"]) < ratio(plans["affinity"])
    rates = {k: p.services[0].pools[0].rate_max / p.services[0].pools[0].replicas for k, p in plans.items()}
    assert rates["affinity"] > 1.02 * rates["slow"]


def test_cold_caches_are_a_bad_day(plans: dict[str, Plan]) -> None:
    days = {d.name: d for d in plans["affinity"].bad_days}
    assert days["cold prefix caches"].load > plans["affinity"].services[0].pools[0].load


def test_a_trace_is_no_session(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("input_tokens,output_tokens\n" + "900,100\n" * 50)
    text = INTENT.replace("input: {mean: 600, cv: 1}", "trace: t.csv").replace(
        "        output: {mean: 250, cv: 0.8}\n", ""
    )
    path = tmp_path / "intent.yaml"
    path.write_text(text.replace("THINK", "30s").replace("ROUTING", "affinity"))
    with pytest.raises(UserError, match="both a trace and sessions"):
        make_plan(ask(fleet=ROOT / "fleets" / "h100.yaml", intent_files=(path,), words=Words()), verify=False)
