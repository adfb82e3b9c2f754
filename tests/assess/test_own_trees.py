"""What the planner renders, `plan assess` reads back exactly: every target, engine and layout."""

from __future__ import annotations

from typing import Any

import pytest

from planner.assess.read import read_files
from planner.catalog.engines import DYNAMO_CARRIES
from planner.errors import UserError
from planner.intent.document import Intent
from planner.intent.fleet import Fleet
from planner.intent.platform import Platform
from planner.plan.document import Plan, PoolDoc, ServiceDoc, TransferDoc
from planner.render import render
from tests.report.conftest import fleet_data, intent_data, toy_plan

TARGETS = ("kubernetes", "dynamo", "kserve", "llm-d", "compose", "none")
ENGINES = {"vllm": "0.33.0", "sglang": "0.5.23"}


def base() -> Plan:
    intent = intent_data()
    intent["services"] = intent["services"][:1]
    intent["services"][0]["model"] = "meta-llama/Llama-3.3-70B-Instruct"
    platform = Platform(images={"vllm-router": "registry.example.org/vllm-router:0.1.17"})
    return toy_plan(Intent.model_validate(intent), Fleet.model_validate(fleet_data()), platform)


def as_target(plan: Plan, engine: str, target: str) -> Plan:
    version = DYNAMO_CARRIES[engine] if target == "dynamo" else ENGINES[engine]
    asked = tuple(s.model_copy(update={"engine": engine, "target": target}) for s in plan.intent.services)
    services = tuple(
        s.model_copy(update={"engine": engine, "engine_version": version, "target": target}) for s in plan.services
    )
    return plan.model_copy(update={"services": services, "intent": plan.intent.model_copy(update={"services": asked})})


def with_pools(plan: Plan, pools: list[PoolDoc], **service: Any) -> Plan:
    one: ServiceDoc = plan.services[0].model_copy(update={"pools": tuple(pools), **service})
    return plan.model_copy(update={"services": (one,)})


def pool(plan: Plan, **update: Any) -> PoolDoc:
    found = plan.services[0].pools[0]
    shape = found.shape.model_copy(update=update.pop("shape", {}))
    gpus = shape.tp * shape.pp * shape.dp
    replicas = update.get("replicas", found.replicas)
    more = {"shape": shape, "gpus_per_replica": gpus, "gpus": gpus * replicas, "nodes_per_replica": -(-gpus // 8)}
    return found.model_copy(update=more | update)


def moe(plan: Plan) -> Plan:
    """The same with a model that has experts."""
    s = plan.services[0]
    model = s.model.model_copy(
        update={"id": "deepseek-ai/DeepSeek-V3", "repo": "deepseek-ai/DeepSeek-V3", "is_moe": True}
    )
    asked = plan.intent.services[0].model_copy(update={"model": model.id})
    intent = plan.intent.model_copy(update={"services": (asked,)})
    return plan.model_copy(update={"services": (s.model_copy(update={"model": model}),), "intent": intent})


def pairs() -> list[tuple[str, Plan]]:
    plan = base()
    spread = {"tp": 1, "dp": 8, "ep": True}
    transfer = TransferDoc(prompt_kv=1e9, time=0.02, over="rdma")
    apart = [
        pool(plan, name="chat-prefill", role="prefill", shape={"tp": 2}, replicas=3, max_num_batched_tokens=8192),
        pool(plan, name="chat-decode", role="decode", shape={"tp": 4}, replicas=2, max_num_seqs=128),
    ]
    return [
        ("one node", plan),
        ("tp8, fp8 cache", with_pools(plan, [pool(plan, shape={"tp": 8}, kv_dtype="fp8", replicas=2)])),
        ("two nodes", with_pools(plan, [pool(plan, shape={"tp": 8, "pp": 2}, replicas=2)])),
        ("attention dp and experts", moe(with_pools(plan, [pool(plan, shape=spread, replicas=3)]))),
        ("experts over two nodes", moe(with_pools(plan, [pool(plan, shape=spread | {"dp": 16}, replicas=1)]))),
        ("prefill and decode apart", with_pools(plan, apart, transfer=transfer)),
    ]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", [n for n, _ in pairs()])
def test_reads_back_what_was_rendered(name: str, engine: str, target: str) -> None:
    plan = as_target(dict(pairs())[name], engine, target)
    try:
        tree = {str(f.path): f.text for f in render(plan)}
    except UserError as e:
        if e.code == "not-supported" or "not supported" in e.message:
            pytest.skip(f"not rendered: {e.message}")
        raise
    found = read_files(tree)
    assert found
    wanted = {p.name: p for s in plan.services for p in s.pools}
    seen: dict[str, int] = {}
    for f in found:
        mine = [p for p in wanted.values() if p.role == f.role]
        assert len(mine) == 1, (f.place, f.role)
        p = mine[0]
        seen[p.name] = seen.get(p.name, 0) + (f.replicas or 0) * f.copies
        assert f.problems == (), f.place
        assert f.engine == engine
        assert f.model == plan.services[0].model.repo
        s = p.shape
        assert (f.shape.tp, f.shape.pp, f.shape.dp, f.shape.ep) == (s.tp, s.pp, s.dp, s.ep), f.place
        assert f.max_num_batched_tokens in (p.max_num_batched_tokens, None)
        if p.role != "prefill" or f.max_num_seqs is not None:
            assert f.max_num_seqs == p.max_num_seqs
        assert f.max_model_len == p.max_model_len
        assert f.memory_ratio == pytest.approx(p.gpu_memory_utilization, abs=0.2)
        assert (f.kv_cache_dtype or "auto").startswith("fp8") == (p.kv_dtype == "fp8")
        if f.gpus_given is not None:
            assert f.gpus_given == p.gpus_per_replica
    if target != "none":
        assert seen == {p.name: p.replicas for p in wanted.values()}
