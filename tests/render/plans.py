"""Small plans built by hand, so that rendering is tested without a solver."""

from __future__ import annotations

from typing import Any

from planner.intent.document import Intent, Service
from planner.intent.fleet import Fleet, Kubernetes, Pool, Toleration
from planner.intent.platform import Platform
from planner.plan.document import (
    ClassDoc,
    CostDoc,
    Digests,
    Figure,
    MemoryDoc,
    ModelDoc,
    Plan,
    PoolDoc,
    ServiceDoc,
    ShapeDoc,
    Solver,
    SpeculationDoc,
    Totals,
    TransferDoc,
    Verification,
)

MODELS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "id": "llama-3.1-8b-instruct",
        "repo": "meta-llama/Llama-3.1-8B-Instruct",
        "precision": "bf16",
        "params_total": 8_030_261_248,
        "params_active": 8_030_261_248,
        "weights": "16.1GB",
        "family": "dense",
        "is_moe": False,
    },
    "llama-3.3-70b-fp8": {
        "id": "llama-3.3-70b-instruct",
        "repo": "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic",
        "precision": "fp8",
        "params_total": 70_553_706_496,
        "params_active": 70_553_706_496,
        "weights": "72.7GB",
        "family": "dense",
        "is_moe": False,
    },
    "qwen3-235b-fp8": {
        "id": "qwen3-235b-a22b",
        "repo": "Qwen/Qwen3-235B-A22B-FP8",
        "precision": "fp8",
        "params_total": 235_093_634_560,
        "params_active": 22_000_000_000,
        "weights": "236GB",
        "family": "qwen_moe",
        "is_moe": True,
    },
    "deepseek-v3": {
        "id": "deepseek-v3",
        "repo": "deepseek-ai/DeepSeek-V3",
        "precision": "fp8",
        "params_total": 671_026_419_200,
        "params_active": 37_000_000_000,
        "weights": "688GB",
        "family": "deepseek",
        "is_moe": True,
    },
}
SELECTORS = {
    "h100-sxm": ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu"),
    "h200-sxm": ("nvidia.com/gpu.product", "NVIDIA-H200", "nvidia.com/gpu"),
    "b200": ("nvidia.com/gpu.product", "NVIDIA-B200", "nvidia.com/gpu"),
    "mi300x": ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM", "amd.com/gpu"),
    "l40s": ("nvidia.com/gpu.product", "NVIDIA-L40S", "nvidia.com/gpu"),
}


def fleet(gpu: str = "h100-sxm", *, nodes: int = 4, gpus_per_node: int = 8, rdma: bool = True, **more: Any) -> Fleet:
    """One pool of nodes named after its GPU."""
    key, value, resource = SELECTORS[gpu]
    pool = Pool.model_validate(
        {
            "name": f"{gpu}-nodes",
            "gpu": gpu,
            "nodes": nodes,
            "gpus_per_node": gpus_per_node,
            "rdma": rdma,
            "storage_bandwidth": "2GB/s",
            "kubernetes": Kubernetes(
                node_selector={key: value},
                tolerations=(Toleration(key=resource, operator="Exists", effect="NoSchedule"),),
                gpu_resource=resource,
                rdma_resource="rdma/ib" if rdma else None,
            ),
            **more,
        }
    )
    return Fleet(name="test", pools=(pool,))


def figures(itl_s: float = 0.05, ttft_s: float | None = 0.8) -> tuple[Figure, ...]:
    """An ITL and perhaps a TTFT limit with what is predicted."""
    found = [
        Figure.model_validate(
            {"metric": "itl.p99", "value": f"{itl_s * 880:g}ms", "low": f"{itl_s * 800:g}ms",
             "high": f"{itl_s * 980:g}ms", "limit": f"{itl_s * 1000:g}ms", "method": "step table"}
        ),
        Figure.model_validate(
            {"metric": "e2e.p99", "value": "31s", "low": "28s", "high": "36s", "method": "simulation"}
        ),
    ]  # fmt: skip
    if ttft_s is not None:
        found.append(
            Figure.model_validate(
                {"metric": "ttft.p95", "value": f"{ttft_s * 650:g}ms", "low": f"{ttft_s * 500:g}ms",
                 "high": f"{ttft_s * 900:g}ms", "limit": f"{ttft_s * 1000:g}ms", "method": "simulation"}
            )
        )  # fmt: skip
    return tuple(found)


def pool(
    name: str = "chat",
    *,
    role: str = "aggregated",
    gpu: str = "h100-sxm",
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: bool = False,
    nodes: int = 1,
    replicas: int = 3,
    seqs: int = 96,
    tokens: int = 2048,
    rate: float = 12.0,
    reasons: dict[str, str] | None = None,
    **more: Any,
) -> PoolDoc:
    """One pool; what a test does not care about has plain values."""
    gpus = tp * pp * dp
    return PoolDoc.model_validate(
        {
            "name": name,
            "role": role,
            "fleet_pool": f"{gpu}-nodes",
            "gpu": gpu,
            "shape": ShapeDoc(tp=tp, pp=pp, dp=dp, ep=ep),
            "gpus_per_replica": gpus,
            "nodes_per_replica": nodes,
            "replicas": replicas,
            "gpus": gpus * replicas,
            "kv_dtype": "bf16",
            "max_num_seqs": seqs,
            "max_num_batched_tokens": tokens,
            "max_model_len": 8192,
            "gpu_memory_utilization": 0.9,
            "graph_sizes_max": seqs,
            "rate": f"{rate:g}/s",
            "rate_max": f"{rate * 2:g}/s",
            "load": 0.5,
            "running_mean": 41.0,
            "running_p99": 70.0,
            "kv_sequences": 191.0,
            "kv_tokens": 400_000,
            "kv_use_p99": 0.55,
            "mbu": 0.61,
            "mfu": 0.33,
            "memory": MemoryDoc.model_validate(
                {"total": "85.5GB", "usable": "77GB", "weights": "16.1GB", "activations": "2GB",
                 "cuda_graphs": "1GB", "overhead": "1.5GB", "kv_cache": "56.4GB", "method": "closed form"}
            ),
            "classes": (
                ClassDoc.model_validate(
                    {"name": "default", "rate": f"{rate:g}/s", "input_mean_tokens": 3500.0,
                     "output_mean_tokens": 500.0, "figures": figures()}
                ),
            ),
            "cost": f"${gpus * replicas * 3}/h",
            "power": f"{gpus * replicas * 700}W",
            "reasons": {
                "max_num_seqs": f"{seqs} sequences: p99 ITL 44ms of 50ms; KV would hold 191",
                "max_num_batched_tokens": f"{tokens} tokens a step: a full chunk takes 44ms of 50ms",
                "replicas": f"{replicas} replicas carry {rate:g}/s at load 0.5",
                "tensor_parallel": f"tp {tp}: the smallest that fits",
            } if reasons is None else reasons,
            **more,
        }
    )  # fmt: skip


def service(
    name: str = "chat",
    model: str = "llama-3.1-8b",
    *,
    engine: str = "vllm",
    target: str = "kubernetes",
    pools: tuple[PoolDoc, ...] | None = None,
    speculation: SpeculationDoc | None = None,
    prefix_cache: float | None = None,
    trough: float | None = None,
    survive: str = "none",
    model_changes: dict[str, Any] | None = None,
) -> tuple[ServiceDoc, Service]:
    """A planned service and the intent behind it."""
    pools = pools or (pool(name),)
    disaggregated = any(p.role != "aggregated" for p in pools)
    doc = ServiceDoc.model_validate(
        {
            "name": name,
            "model": ModelDoc.model_validate(MODELS[model] | (model_changes or {})),
            "engine": engine,
            "engine_version": {"vllm": "0.33.0", "sglang": "0.5.23"}.get(engine, "1.3.0"),
            "target": target,
            "pools": pools,
            "speculation": speculation,
            "transfer": TransferDoc.model_validate(
                {"prompt_kv": "459MB", "time": "12ms", "over": "RDMA, 50GB/s per GPU"}
            ) if disaggregated else None,
            "cost": CostDoc.model_validate(
                {"per_hour": f"${sum(p.cost for p in pools):g}/h", "per_million_output_tokens": 0.41,
                 "per_million_input_tokens": 0.06}
            ),
            "why": ("tp1: larger tensor parallelism costs more and is not needed for 50ms",),
        }
    )  # fmt: skip
    traffic: dict[str, Any] = {
        "rate": "12/s",
        "input": 3500,
        "output": 500,
        "slo": {"itl": "50ms", "ttft.p95": "800ms"},
    }
    if prefix_cache is not None:
        traffic["prefix_cache"] = prefix_cache
    if trough is not None:
        traffic["trough"] = trough
    intent = Service.model_validate(
        {"name": name, "model": model, "engine": engine, "target": target, "traffic": traffic, "survive": survive}
    )
    return doc, intent


def plan(
    *services: tuple[ServiceDoc, Service],
    fleet_: Fleet | None = None,
    platform: Platform | None = None,
    version: str = "0.1.0",
) -> Plan:
    """A plan of these services (one chat service by default)."""
    services = services or (service(),)
    gpus = sum(p.gpus for s, _ in services for p in s.pools)
    cost = sum(p.cost for s, _ in services for p in s.pools)
    fleet_ = fleet_ or fleet()
    return Plan.model_validate(
        {
            "planner_version": version,
            "status": "optimal",
            "verification": Verification(by="simulation", rounds=1),
            "totals": Totals.model_validate(
                {"gpus": gpus, "fleet_gpus": 32, "cost": f"${cost:g}/h", "power": f"{gpus * 700}W", "odds": 0.84}
            ),
            "services": tuple(s for s, _ in services),
            "decide": ("accept bf16 weights",),
            "assumed": ("chat: 12/s in the busiest minute, 3500/500 tokens",),
            "measure_first": ("chat ITL at 48 running",),
            "solver": Solver(
                name="CP-SAT", version="9.11", objective="cost", value=cost, bound=cost, gap=0.0, tie_breaks=True
            ),
            "digests": Digests(intent="sha256:1", fleet="sha256:2", catalog="sha256:3", calibration="sha256:4"),
            "intent": Intent(services=tuple(i for _, i in services)),
            "fleet": fleet_,
            "platform": platform or Platform(),
        }
    )
