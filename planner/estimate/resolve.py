"""A measured row -> the deployments that ran it, their caps and their calibration."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from planner.catalog.gpus import find_gpu
from planner.catalog.memoryconstants import constants
from planner.catalog.quantsupport import version_key
from planner.errors import UserError
from planner.estimate.names import arch_of, weights_of
from planner.estimate.rows import Row
from planner.perf.arch import Shape
from planner.perf.deployment import Deployment, Hardware, KvDtype, hardware
from planner.perf.identity import ByIdentity
from planner.perf.memory import Memory, memory


@dataclass(frozen=True, slots=True)
class Resolved:
    """What one row ran on. For prefill/decode apart, `deployment` is the decode worker."""

    deployment: Deployment
    prefill: Deployment | None
    ranks: float
    """Ranks (replicas x attention DP) that share the concurrency and the rate."""
    prefill_ranks: float
    kv_tokens: float
    """Tokens one rank's cache holds."""
    max_seqs: float
    """Sequences that cap and cache admit at the row's lengths."""
    chunk_tokens: float


ENGINE_IDS = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}


LARGEST_REPLICA = 1024

# What a run whose image was not recorded most likely had: the release of the reference date.
_UNRECORDED = {"vllm": "0.15.0", "sglang": "0.5.9", "trtllm": "1.2.0"}


@functools.cache
def release_of(engine: str, version: str) -> str:
    """A release number for the rules of the catalogue: as stated, else the one of the time.

    TensorRT-LLM behind Dynamo is stated by Dynamo's number (0.7, 0.8), which ships TensorRT-LLM 1.2.
    """
    known = constants()
    since = {"vllm": known.vllm[0].since, "sglang": known.sglang[0].since, "trtllm": known.trtllm[0].since}
    first: str = since[engine]
    text = version.lower().lstrip("v")
    if "2023" in text or "2024" in text:
        dated = {"vllm": "0.5.4" if "2024" in text else "0.2.0"}.get(engine, first)
        return first if version_key(dated) < version_key(first) else dated
    m = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if m is None or (engine == "trtllm" and text.startswith(("0.7.", "0.8.", "1.x"))):
        return _UNRECORDED[engine]
    stated = f"{m.group(1)}.{m.group(2)}.{m.group(3) or 0}"
    return first if version_key(stated) < version_key(first) else stated


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


_MEMORY: ByIdentity[Memory] = ByIdentity(8192)

# Admission counts this share of the answer: TensorRT-LLM's default scheduler (GUARANTEED_NO_EVICT) reserves it whole;
# vLLM admits on what is there and preempts; SGLang counts a share that decays as it learns the lengths.
RESERVE = {"trtllm": 1.0, "vllm": 0.5, "sglang": 0.6}


def memory_of(d: Deployment, *, chunk_tokens: float, longest_tokens: float) -> Memory:
    """What the cache of one rank holds; UserError where the model does not fit at all."""
    # A decode worker never runs a long prefill.
    chunk = 512 if d.role == "decode" else int(chunk_tokens)

    def make() -> Memory:
        found = memory(d, max_num_batched_tokens=chunk, max_num_seqs=256, max_model_len=int(longest_tokens) + 64)
        if found.kv_bytes > 0:
            return found
        # It ran, so it was made to fit: less for activations, more of the memory.
        return memory(
            d,
            max_num_batched_tokens=min(chunk, 2048),
            max_num_seqs=64,
            max_model_len=int(longest_tokens) + 64,
            utilization=0.95,
        )

    found = _MEMORY.get(
        d.arch, (d.weights, d.kv_dtype, d.shape, d.hardware, d.engine, d.engine_version, chunk, longest_tokens), make
    )
    if found.kv_bytes <= 0:
        raise UserError(
            "case", f"{d.arch.name} {d.precision} does not fit {d.shape.label} of {d.hardware.gpu_id}: {found.reason}"
        )
    return found


@functools.lru_cache(maxsize=8192)
def deployment(
    *, model: str, gpu: str, engine: str, version: str, shape: Shape, precision: str, kv: KvDtype, role: str
) -> Deployment:
    """One value per distinct configuration, so that everything cached on it is found again."""
    hw = hardware_of(gpu)
    arch = arch_of(model)
    return Deployment(
        arch=arch,
        weights=weights_of(model, precision),
        precision=precision,
        kv_dtype=kv,
        hardware=hw,
        shape=shape,
        engine=engine,
        engine_version=version,
        role=role,  # type: ignore[arg-type]
    )


def capacity_of(row: Row, d: Deployment) -> Memory:
    """What the cache of one rank holds at the row's lengths."""
    return memory_of(d, chunk_tokens=chunk_of(row), longest_tokens=row.reserved_tokens)


def resolve(row: Row) -> Resolved:
    """Deployments and caps of one row. UserError where the catalogue lacks something or the model does not fit."""
    kv, chunk, engine = kv_dtype_of(row), chunk_of(row), ENGINE_IDS[row.engine]

    def make(shape: Shape, role: str) -> Deployment:
        layers = arch_of(row.model).layer_count
        if shape.pp > layers:
            raise UserError("case", f"{shape.pp} pipeline stages of only {layers} layers")
        if shape.gpus > LARGEST_REPLICA:
            raise UserError("case", f"a replica of {shape.gpus} GPUs; at most {LARGEST_REPLICA} are modelled")
        return deployment(
            model=row.model,
            gpu=row.gpu,
            engine=engine,
            version=release_of(engine, row.engine_version),
            shape=shape,
            precision=row.precision,
            kv=kv,
            role=role,
        )

    def capacity(d: Deployment) -> tuple[float, float]:
        m = capacity_of(row, d)
        held = m.max_sequences(row.isl_tokens + RESERVE[d.engine] * row.osl_tokens)
        return float(m.kv_tokens), max(min(max_seqs_of(row), held), 1.0)

    if row.decode is not None and row.prefill is not None:
        dec = make(Shape(tp=row.decode.tp, dp=row.decode.dp, ep=row.decode.ep), "decode")
        pre = make(Shape(tp=row.prefill.tp, dp=row.prefill.dp, ep=row.prefill.ep), "prefill")
        return Resolved(
            dec,
            pre,
            float(row.decode.workers * row.decode.dp),
            float(row.prefill.workers * row.prefill.dp),
            *capacity(dec),
            chunk,
        )
    # dp without experts spread over it means plain replicas.
    attention_dp = row.dp > 1 and row.ep and arch_of(row.model).moe
    shape = Shape(tp=row.tp, pp=row.pp, dp=row.dp if attention_dp else 1, ep=row.ep)
    per = shape.gpus
    replicas = max(1.0, float((row.gpus or per) // per))
    if not attention_dp:
        replicas = max(replicas, float(row.dp))
    d = make(shape, "aggregated")
    return Resolved(d, None, replicas * shape.dp, 0.0, *capacity(d), chunk)
