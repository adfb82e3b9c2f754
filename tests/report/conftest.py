"""Plans for the report's tests: a toy planner whose answers depend on every input in a way that a test can predict."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.documents import digest
from planner.intent.document import Intent
from planner.intent.fleet import Fleet
from planner.intent.platform import Platform
from planner.plan.document import Plan

GB = 1e9


def intent_data() -> dict[str, Any]:
    return {
        "services": [
            {
                "name": "chat",
                "model": "llama-3.3-70b",
                "traffic": [{"name": "default", "rate": "24/s", "input": 3000, "output": 400}],
                "slo": {"itl.p99": "50ms", "ttft.p95": "800ms"},
                "survive": "1 node",
                "precisions": ["fp8"],
            },
            {
                "name": "autocomplete",
                "model": "llama-3.1-8b",
                "traffic": [{"name": "default", "rate": "40/s", "input": 1200, "output": 60}],
                "slo": {"itl.p99": "20ms"},
            },
        ]
    }


def fleet_data() -> dict[str, Any]:
    price = {"per_gpu_hour": "$2.95/h", "source": "price list", "as_of": "2026-11"}
    return {
        "name": "h100-prod",
        "pools": [{"name": "h100", "gpu": "h100-sxm", "nodes": 6, "gpus_per_node": 8, "price": price, "rdma": True}],
    }


def toy_plan(
    intent: Intent,
    fleet: Fleet,
    platform: Platform | None = None,
    *,
    catalog: str = "a",
    calibration: str = "a",
    version: str = "0.1.0",
    speed: float = 1.0,
) -> Plan:
    """A plan by rules of thumb: replicas follow rates, TP follows the ITL limit, survival adds one replica."""
    services, pool = [], fleet.pools[0]
    price = pool.price.per_gpu_hour if pool.price else 0.0
    for s in intent.services:
        limits = {x.key: x.limit_s for x in s.slo}
        itl = limits.get("itl.p99", 0.05)
        big = "70b" in s.model.lower()
        tp = s.fixed.tp or ((8 if itl < 0.03 else 4 if itl < 0.06 else 2) if big else 1)
        rate = sum(c.rate or 0 for c in s.traffic)
        each = (0.8 if big else 9.0) * tp * speed * (1.5 if s.precisions == ("fp8",) else 1.0) * (s.load_cap / 0.8)
        replicas = s.fixed.replicas or math.ceil(rate / each) + (s.survive != "none")
        gpus = replicas * tp
        at = 0.92 * itl
        figures: list[dict[str, Any]] = [
            {
                "metric": "itl.p99",
                "value": f"{at * 1e3:.6g}ms",
                "low": f"{at * 900:.6g}ms",
                "high": f"{at * 1100:.6g}ms",
                "limit": f"{itl * 1e3:.6g}ms",
                "method": "mixed step",
                "simulated": f"{at * 980:.6g}ms",
            },
            {"metric": "itl.mean", "value": "21ms", "low": "19ms", "high": "24ms", "method": "birth-death chain"},
        ]
        if "ttft.p95" in limits:
            t = limits["ttft.p95"]
            figures.append(
                {
                    "metric": "ttft.p95",
                    "value": "520ms",
                    "low": "410ms",
                    "high": "690ms",
                    "limit": f"{t * 1e3:.6g}ms",
                    "method": "simulation",
                    "simulated": "508ms",
                }
            )
            figures += [
                {"metric": f"ttft.{q}", "value": v, "low": lo, "high": hi, "method": "simulation", "simulated": v}
                for q, v, lo, hi in (
                    ("mean", "260ms", "210ms", "320ms"),
                    ("p50", "230ms", "180ms", "290ms"),
                    ("p99", "740ms", "560ms", "980ms"),
                )
            ]
        weights = (70.6 if big else 16.1) / (2 if s.precisions == ("fp8",) and not big else 1)
        services.append(
            {
                "name": s.name,
                "model": {
                    "id": s.model,
                    "repo": s.model if "/" in s.model else f"org/{s.model}",
                    "precision": "fp8" if s.precisions == ("fp8",) else "bf16",
                    "params_total": 70_553_706_496 if big else 8_030_261_248,
                    "params_active": 70_553_706_496 if big else 8_030_261_248,
                    "weights": f"{weights}GB",
                    "family": "dense",
                    "is_moe": False,
                    "accuracy_prior": 0.996,
                    "accuracy_low": 0.993,
                    "accuracy_high": 0.999,
                    "accuracy_source": "prior",
                },
                "engine": s.engine,
                "engine_version": s.engine_version or "0.33.0",
                "target": s.target,
                "pools": [
                    {
                        "name": s.name,
                        "role": "aggregated",
                        "fleet_pool": pool.name,
                        "gpu": pool.gpu,
                        "shape": {"tp": tp},
                        "gpus_per_replica": tp,
                        "nodes_per_replica": 1,
                        "replicas": replicas,
                        "gpus": gpus,
                        "kv_dtype": "bf16",
                        "max_num_seqs": 96,
                        "max_num_batched_tokens": 2048,
                        "max_model_len": s.max_context or 8192,
                        "gpu_memory_utilization": s.gpu_memory_utilization or 0.92,
                        "graph_sizes_max": 96,
                        "rate": f"{rate:g}/s",
                        "rate_max": f"{each * replicas * 1.25:.6g}/s",
                        "load": float(f"{rate / (each * replicas * 1.25):.3g}"),
                        "running_mean": 41.0,
                        "running_p99": 58.0,
                        "kv_sequences": 191.0,
                        "kv_tokens": 640_000,
                        "kv_use_p99": 0.31,
                        "mbu": 0.62,
                        "mfu": 0.48,
                        "memory": {
                            "total": "85.5GB",
                            "usable": "78.7GB",
                            "weights": f"{weights / tp:.4g}GB",
                            "activations": "1.9GB",
                            "cuda_graphs": "0.9GB",
                            "overhead": "2.1GB",
                            "kv_cache": "52GB",
                            "method": "engine arithmetic",
                        },
                        "classes": [
                            {
                                "name": c.name,
                                "rate": f"{c.rate or 0:g}/s",
                                "input_mean_tokens": 3000.0 if big else 1200.0,
                                "output_mean_tokens": 400.0 if big else 60.0,
                                "figures": figures,
                            }
                            for c in s.traffic
                        ],
                        "cost": f"${gpus * price:.2f}/h",
                        "power": f"{gpus * 700}W",
                        "reasons": {"max_num_seqs": "p99 ITL 46 ms of 50; KV would hold 191"},
                    }
                ],
                "cost": {
                    "per_hour": f"${gpus * price:.2f}/h",
                    "per_million_output_tokens": round(gpus * price / rate / 1.44, 3),
                    "per_million_input_tokens": round(gpus * price / rate / 10.8, 3),
                },
                "why": [f"{s.name} tp{tp}: tp{max(1, tp // 2)} misses ITL even at a 512-token budget (59ms)"],
                "runner_up": f"tp{2 * tp} x {max(1, replicas // 2)}: {gpus + 4} GPUs",
                "bound_by": ["survive 1 node: +4 GPUs"] if s.survive != "none" else [],
            }
        )
    total = sum(p["gpus"] for s in services for p in s["pools"])
    return Plan.model_validate(
        {
            "planner_version": version,
            "status": "optimal",
            "verification": {"by": "simulation", "rounds": 1, "note": "10,000 requests per replica"},
            "totals": {
                "gpus": total,
                "fleet_gpus": pool.nodes * (pool.gpus_per_node or 8),
                "cost": f"${total * price:.2f}/h",
                "power": f"{total * 700}W",
                "odds": 0.84,
                "odds_note": "one measurement of chat ITL would raise it to 93%",
            },
            "services": services,
            "bad_days": [
                {"name": "one node lost", "service": "chat", "load": 0.75, "misses": [], "method": "simulation"},
                {
                    "name": "rollout and a node lost",
                    "service": "chat",
                    "load": 0.87,
                    "misses": ["ttft.p95 910ms of 800ms"],
                    "method": "simulation",
                },
            ],
            "decide": [
                "accept fp8 for chat (accuracy prior 99.6%, 99.3 to 99.9)",
                "no free block of 4: roll out below 20 req/s",
            ],
            "assumed": ["chat 24/s in the busiest minute", "H100 efficiency as calibrated on 412 results"],
            "warnings": ["p99 ITL is modelled and simulated, not measured"],
            "measure_first": ["chat ITL at 48 running: bench/chat-vllm.sh"],
            "solver": {
                "name": "CP-SAT",
                "version": "9.11",
                "objective": intent.objective,
                "value": total * price,
                "bound": total * price,
                "gap": 0.0,
                "tie_breaks": True,
            },
            "digests": {
                "intent": digest(intent.model_dump(mode="json")),
                "fleet": digest(fleet.model_dump(mode="json")),
                "catalog": f"sha256:{catalog * 64}",
                "calibration": f"sha256:{calibration * 64}",
            },
            "intent": intent.model_dump(mode="json"),
            "fleet": fleet.model_dump(mode="json"),
            "platform": (platform or Platform()).model_dump(mode="json"),
        }
    )


def toy_render(plan: Plan) -> dict[str, str]:
    """Files of a plan: one Deployment per pool, the reasons as comments."""
    tree = {}
    for s in plan.services:
        for p in s.pools:
            tree[f"{p.name}/deployment.yaml"] = (
                f"# planner {plan.planner_version}: {p.reasons['max_num_seqs']}\n"
                "apiVersion: apps/v1\nkind: Deployment\n"
                f"metadata:\n  name: {p.name}\nspec:\n  replicas: {p.replicas}\n  template:\n    spec:\n"
                f"      containers:\n      - name: {s.engine}\n        image: vllm/vllm-openai:v{s.engine_version}\n"
                f"        args:\n        - --model={s.model.repo}\n        - --tensor-parallel-size={p.shape.tp}\n"
                f"        - --max-num-seqs={p.max_num_seqs}\n        - --max-model-len={p.max_model_len}\n"
                f"        - --gpu-memory-utilization={p.gpu_memory_utilization}\n"
            )
    return tree


Make = Callable[..., Plan]


@pytest.fixture
def make() -> Make:
    """make(intent=..., fleet=...) edits plain data in place and plans it."""

    def build(
        intent: Callable[[dict[str, Any]], Any] | None = None,
        fleet: Callable[[dict[str, Any]], Any] | None = None,
        platform: dict[str, Any] | None = None,
        **kw: Any,
    ) -> Plan:
        i, f = intent_data(), fleet_data()
        if intent is not None:
            intent(i)
        if fleet is not None:
            fleet(f)
        return toy_plan(
            Intent.model_validate(i), Fleet.model_validate(f), Platform.model_validate(platform or {}), **kw
        )

    return build


@pytest.fixture
def render() -> Callable[[Plan], dict[str, str]]:
    return toy_render


@pytest.fixture
def replan() -> Callable[..., Plan]:
    return toy_plan


@pytest.fixture(scope="session")
def examples() -> Path:
    return Path(__file__).resolve().parent.parent.parent / "examples"
