"""Priorities from the intent to the plan: a pool that serves both classes is planned by them, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.intent.resolve import Words
from planner.pipeline import make_plan
from planner.pipeline.question import Question, ask
from planner.plan.document import Plan
from planner.plan.text import dumps, loads

ROOT = Path(__file__).resolve().parent.parent.parent
INTENT = """
services:
  - name: chat
    model: meta-llama/Llama-3.1-8B-Instruct
    fixed: {tp: 2, max_num_seqs: 256, max_num_batched_tokens: 2048}
    traffic:
      - {name: interactive, rate: 20/s, input: {mean: 400, cv: 1}, output: {mean: 150, cv: 1}, slo: {ttft.p99: 600ms}}
      - {name: batch, rate: 4/s, input: {mean: 6000, cv: 0.7}, output: {mean: 400, cv: 1}, priority: PLACE, slo: {}}
"""


def planned(folder: Path, place: int) -> Plan:
    path = folder / f"intent-{place}.yaml"
    path.write_text(INTENT.replace("PLACE", str(place)))
    return make_plan(question(path), verify=False)


def question(path: Path) -> Question:
    return ask(fleet=ROOT / "fleets" / "h100.yaml", intent_files=(path,), words=Words())


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Plan]:
    folder = tmp_path_factory.mktemp("priority")
    return planned(folder, 10), planned(folder, 0)


def test_a_pool_of_both_says_how_it_is_scheduled(plans: tuple[Plan, Plan]) -> None:
    (service,) = plans[0].services
    (pool,) = service.pools
    assert pool.scheduling == "priority"
    assert {c.name: c.priority for c in pool.classes} == {"interactive": 0, "batch": 10}
    assert "interactive 0, batch 10" in pool.reasons["scheduling"]
    assert any("send `priority` with every request (interactive 0, batch 10)" in a for a in plans[0].assumed)
    figures = {c.name: {f.metric: f for f in c.figures} for c in pool.classes}
    assert "head-of-line priority" in figures["interactive"]["ttft.p99"].method
    text = dumps(plans[0])
    assert dumps(loads(text)) == text


def test_it_takes_fewer_gpus_than_serving_in_order_of_arrival(plans: tuple[Plan, Plan]) -> None:
    ranked, plain = plans
    assert ranked.totals.gpus < plain.totals.gpus
    assert all(p.scheduling is None for s in plain.services for p in s.pools)
    assert not any("`priority`" in a for a in plain.assumed)
    assert "scheduling:" not in dumps(plain)
