"""Public sizing questions (field_cases.yaml): the planner says what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from handmade import fleet
from questions import real_ask

from planner.candidates import candidates, predict
from planner.candidates.replica import load_model
from planner.documents import load_yaml
from planner.errors import Exit, UserError
from planner.plan.solution import Solution
from planner.solve import solve

CASES = {c["id"]: c for c in load_yaml(Path(__file__).with_name("field_cases.yaml")).data}


def answer(case: dict[str, Any], nodes: int = 1, **kw: Any) -> Solution:
    on = fleet({"name": "f", "gpu": case["gpu"], "nodes": nodes, "rdma": True, "nic": "400Gbit/s"})
    given = {"traffic": case.get("traffic"), "precisions": [case["precision"]], "slo": {}, **kw}
    ask = real_ask(on, model=case["model"], **given)
    return solve([ask], on, evaluate=candidates, predict=predict, explain=False)


@pytest.mark.parametrize("case", [c for c in CASES.values() if c["kind"] == "tp_choice"], ids=lambda c: c["id"])
def test_throughput_wants_the_smaller_tensor_parallelism(case: dict[str, Any]) -> None:
    small, large = (answer(case, fixed={"tp": case["expect"][k]}) for k in ("more_traffic", "than"))
    assert small.value > large.value
    assert all(p.candidate.deployment.shape.tp < case["expect"]["than"] for p in answer(case).services[0].pools)


def test_small_cluster_gains_little_from_prefill_apart() -> None:
    case = CASES["small-cluster-prefill-decode"]
    on = fleet({"name": "f", "gpu": case["gpu"], "nodes": 1, "gpus_per_node": 4, "rdma": True, "nic": "400Gbit/s"})
    ask = real_ask(
        on,
        model=case["model"],
        traffic={**case["traffic"], "rate": "4/s"},
        slo={"itl": "60ms", "ttft": "2s"},
        pools="auto",
    )
    found = candidates(ask)
    whole = max((c for c in found if c.role == "aggregated" and c.gpus == 4), key=lambda c: c.load.planned_rps)
    p, d = (
        max((c for c in found if c.role == r and c.gpus == 2), key=lambda c: c.load.planned_rps)
        for r in ("prefill", "decode")
    )
    together = {x.metric: x.value_s for x in predict(ask, whole, 4.0)}
    apart = {x.metric: x.value_s for x in (*predict(ask, p, 4.0, (d, 4.0)), *predict(ask, d, 4.0, (p, 4.0)))}
    assert apart["ttft.mean"] > together["ttft.mean"]
    assert apart["itl.p99"] < together["itl.p99"]
    # And the plan says so, at equal GPUs.
    s = solve([ask], on, evaluate=candidates, predict=predict)
    assert any("prefill and decode apart" in w for w in s.services[0].why)


@pytest.mark.parametrize(
    "expect",
    CASES["deepseek-r1-prefill-decode-recipes"]["expect"],
    ids=lambda e: f"{e['traffic']['input']}-{e['traffic']['output']}",
)
def test_prefill_to_decode_ratio_of_published_recipes(expect: dict[str, Any]) -> None:
    case = CASES["deepseek-r1-prefill-decode-recipes"]
    s = answer(
        case,
        nodes=12,
        traffic=expect["traffic"],
        slo={"itl": "100ms", "ttft": expect["ttft"]},
        pools="disaggregated",
        engine="sglang",
    )
    gpus = {p.candidate.role: p.candidate.gpus * p.replicas for p in s.services[0].pools}
    low, high = expect["prefill_to_decode_gpus"]
    assert low <= gpus["prefill"] / gpus["decode"] <= high, gpus
    assert all(p.candidate.gpus >= 16 for p in s.services[0].pools)


def test_long_prompts_on_one_gpu_are_limited_by_prefill() -> None:
    case = CASES["qwen3-14b-awq-16k-on-one-a100"]
    on = fleet({"name": "f", "gpu": case["gpu"], "nodes": 1, "gpus_per_node": 1})
    ask = real_ask(
        on,
        model=case["model"],
        traffic=case["traffic"],
        precisions=[case["precision"]],
        slo={},
        fixed={"max_num_seqs": 30},
    )
    best = max(candidates(ask), key=lambda c: c.load.lambda_max_rps)
    low, high = case["expect"]["capacity_rps"]
    assert low <= best.load.lambda_max_rps <= high
    model = load_model(ask, best)
    low, high = case["expect"]["idle_ttft_s"]
    assert low <= model.evaluate(model.lambda_max * 0.01).classes[0].ttft.mean <= high
    # What the cache holds is not what the promises allow.
    assert best.memory.max_sequences(16_100) > 20


def test_a_claim_that_does_not_add_up_has_no_plan() -> None:
    case = CASES["two-hundred-requests-on-eight-h100"]
    with pytest.raises(UserError) as e:
        answer(case, slo={"ttft.p95": "800ms"})
    assert e.value.exit_code is Exit.NO_PLAN
    assert all(code in str(e.value) for code in case["expect"]["because"])
