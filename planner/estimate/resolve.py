"""A measured row -> the deployments that ran it, their caps and their calibration."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from planner.catalog.gpus import find_gpu
from planner.errors import UserError
from planner.estimate.names import arch_of, weights_of
from planner.estimate.rows import Row
from planner.perf.arch import Shape
from planner.perf.deployment import Deployment, Hardware, KvDtype, hardware
from planner.perf.quantities import kv_bytes_per_token_per_gpu, weight_bytes_per_gpu


@dataclass(frozen=True, slots=True)
class Resolved:
    """What one row ran on. For prefill/decode apart, `deployment` is the decode worker."""

    deployment: Deployment
    prefill: Deployment | None
    ranks: float
    """Ranks (replicas x attention DP) that share the concurrency and the rate."""
    prefill_ranks: float
    kv_tokens: float
    max_seqs: float
    chunk_tokens: float


@functools.cache
def hardware_of(gpu: str) -> Hardware:
    """The GPU in its usual server, with the NICs that go with it."""
    return hardware(find_gpu(gpu), rdma=True)


def kv_dtype_of(row: Row) -> KvDtype:
    """Cache precision: as stated, else what the launch scripts of that source set (silicon_notes.md section 2).

    TensorRT-LLM's FP8 and NVFP4 checkpoints carry an FP8 cache; vLLM and SGLang keep 16 bits unless told.
    """
    if row.kv:
        return "fp8" if row.kv == "fp8" else "bf16"
    model, blackwell = row.model.lower(), row.gpu.startswith(("b200", "b300", "gb200", "gb300"))
    if row.precision in ("bf16", "int4", "int8"):
        return "bf16"
    if row.engine == "tensorrt-llm":
        return "fp8"
    if "deepseek" in model or "glm-5" in model:
        return "bf16" if row.engine == "sglang" and row.gpu.startswith("h200") else "fp8"
    if "qwen3.5" in model:
        return "fp8"
    if "gpt-oss" in model or "minimax" in model:
        return "fp8" if blackwell else "bf16"
    if "llama" in model and row.engine == "vllm":
        return "fp8" if blackwell else "bf16"
    return "bf16"


def chunk_of(row: Row) -> float:
    """Prefill tokens per step of the source's launch scripts, else the engine's default."""
    model = row.model.lower()
    if row.engine == "sglang":
        return 16384.0
    if row.engine == "vllm":
        if "minimax" in model or "kimi" in model:
            return max(2.0 * row.reserved_tokens * row.isl_tokens / (row.isl_tokens + row.osl_tokens), 2048.0)
        if "2024" in row.engine_version or "2023" in row.engine_version:
            return max(row.isl_tokens, 2048.0)
    return 8192.0


def max_seqs_of(row: Row) -> float:
    """Admission cap of the engine's default at the time."""
    if row.engine == "vllm":
        return 256.0 if "2024" in row.engine_version or "2023" in row.engine_version else 1024.0
    if row.engine == "sglang":
        return 1024.0
    return 2048.0


@functools.lru_cache(maxsize=4096)
def _kv_tokens(d: Deployment, chunk: float) -> float:
    """Tokens of the cache: 0.9 of the memory less weights and 3 GB of activations, graphs and context per GPU."""
    free = 0.9 * d.hardware.memory_bytes - weight_bytes_per_gpu(d.arch, d.weights, d.shape) - 3e9
    per_token = kv_bytes_per_token_per_gpu(d.arch, d.kv_dtype, d.shape)
    if free <= 0:
        raise UserError("case", f"{d.arch.name} {d.precision} does not fit {d.shape.label} of {d.hardware.gpu_id}")
    return free / per_token if per_token else float("inf")


@functools.lru_cache(maxsize=8192)
def deployment(model: str, gpu: str, engine: str, version: str, shape: Shape, precision: str, kv: KvDtype, role: str) -> Deployment:
    """One value per distinct configuration, so that everything cached on it is found again."""
    hw = hardware_of(gpu)
    arch = arch_of(model)
    return Deployment(
        arch=arch,
        weights=weights_of(model, arch, precision),
        precision=precision,
        kv_dtype=kv,
        hardware=hw,
        shape=shape,
        engine=engine,
        engine_version=version,
        role=role,  # type: ignore[arg-type]
    )


def resolve(row: Row) -> Resolved:
    """Deployments and caps of one row. UserError where the catalogue lacks something or the model does not fit."""
    kv, chunk = kv_dtype_of(row), chunk_of(row)

    def make(shape: Shape, role: str) -> Deployment:
        return deployment(row.model, row.gpu, row.engine, row.engine_version, shape, row.precision, kv, role)

    if row.decode is not None and row.prefill is not None:
        dec = make(Shape(tp=row.decode.tp, dp=row.decode.dp, ep=row.decode.ep), "decode")
        pre = make(Shape(tp=row.prefill.tp, dp=row.prefill.dp, ep=row.prefill.ep), "prefill")
        return Resolved(
            dec, pre, float(row.decode.workers * row.decode.dp), float(row.prefill.workers * row.prefill.dp), _kv_tokens(dec, chunk), max_seqs_of(row), chunk
        )
    # dp without spread experts and without MoE are plain replicas.
    attention_dp = row.dp > 1 and arch_of(row.model).moe and (row.ep or row.tp == 1)
    shape = Shape(tp=row.tp, pp=row.pp, dp=row.dp if attention_dp else 1, ep=row.ep)
    replicas = 1.0
    if not attention_dp:
        per = row.tp * row.pp
        replicas = max(1.0, (row.gpus or per * row.dp) // per)
        replicas = max(replicas, float(row.dp))
    d = make(shape, "aggregated")
    return Resolved(d, None, replicas * shape.dp, 0.0, _kv_tokens(d, chunk), max_seqs_of(row), chunk)
