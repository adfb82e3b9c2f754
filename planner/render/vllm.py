"""vLLM: a pool of the plan -> `vllm serve` arguments.

Everything the plan decided is written out; nothing is left to a default that depends on the GPU. Rules and traps are in
the engine notes (flags of vLLM 0.33.0): long flags with dashes, `--flag=value`, JSON with sorted keys, no null.
"""

from __future__ import annotations

from typing import Any

from planner.errors import not_supported
from planner.plan.document import Plan, PoolDoc, ServiceDoc, SpeculationDoc
from planner.render.args import LEADER, RANK, Arg, Env, arg, argv
from planner.render.facts import PoolFacts, pool_facts, slo_limits
from planner.render.files import refused
from planner.render.flags import check_argv
from planner.render.source import CACHE, model_access
from planner.render.text import plain

MASTER_PORT = 29501
DP_RPC_PORT = 29550
SIDE_CHANNEL_PORT = 5600
START_RANK = "--data-parallel-start-rank"
DEFAULT_ALL2ALL = "allgather_reducescatter"
"""Needs no package beyond vLLM; DeepEP and NIXL-EP do, so the plan must ask for them."""


def vllm_argv(service: ServiceDoc, pool: PoolDoc, plan: Plan) -> list[str]:
    """`vllm serve ...` of the pool's first node, checked against the flag table."""
    facts = pool_facts(plan, service, pool)
    return [*facts.engine.command, *argv(vllm_args(facts))]


def vllm_args(f: PoolFacts) -> tuple[Arg, ...]:
    """The arguments of every node of one replica, model first."""
    args = (
        *_model(f),
        *_parallel(f),
        *_precision(f),
        *_caps(f),
        *_features(f),
        *_metrics(f),
        *_nodes(f),
        arg("--shutdown-timeout", f.drain_s, "finishes running requests before it stops"),
    )
    check_argv(f.engine, argv(args))
    return args


def _model(f: PoolFacts) -> list[Arg]:
    access = model_access(f.service.model, f.plan.platform, "vllm", local=f.service.target == "none")
    return [
        arg("", access.reference, f.why("precision")),
        arg("--served-model-name", plain(f.service.model.id, "model id")),
        arg("--host", "0.0.0.0"),  # noqa: S104 - a pod's address is not known ahead of time
        arg("--port", f.engine.port),
        *access.args,
    ]


def _parallel(f: PoolFacts) -> list[Arg]:
    s = f.pool.shape
    args = [
        arg("--tensor-parallel-size", s.tp, f.why("tensor_parallel", "shape")),
        arg("--pipeline-parallel-size", s.pp, f.why("pipeline_parallel")),
    ]
    if s.dp > 1:
        args.append(arg("--data-parallel-size", s.dp, f.why("data_parallel")))
    if s.ep:
        if not f.service.model.is_moe:
            raise refused("plan-inconsistent", f"pool {f.pool.name!r} has expert parallelism but no experts")
        args.append(arg("--enable-expert-parallel", None, f.why("expert_parallel")))
        if s.dp > 1:
            args.append(arg("--all2all-backend", f.pool.all2all or DEFAULT_ALL2ALL, f.why("all2all")))
    return args


def precision_words(f: PoolFacts) -> tuple[str, str]:
    """(--dtype, --kv-cache-dtype). A 16-bit cache is written as the activations' own type: `auto` would follow a
    checkpoint that declares an FP8 cache, and a type that differs from the model's is refused."""
    old = f.gpu.capability is not None and f.gpu.capability < (8, 0)
    dtype = "float16" if old else "auto" if f.service.model.precision == "int4" else "bfloat16"
    return dtype, "fp8" if f.pool.kv_dtype == "fp8" else dtype


def _precision(f: PoolFacts) -> list[Arg]:
    dtype, kv = precision_words(f)
    args = [arg("--dtype", dtype)]
    if f.service.model.online_quantization is not None:
        args.append(arg("--quantization", f.service.model.online_quantization))
    args.append(arg("--kv-cache-dtype", kv, f.why("kv_dtype")))
    return args


def _caps(f: PoolFacts) -> list[Arg]:
    p = f.pool
    return [
        arg("--max-model-len", p.max_model_len, f.why("max_model_len")),
        arg("--max-num-seqs", p.max_num_seqs, f.why("max_num_seqs")),
        arg("--max-num-batched-tokens", p.max_num_batched_tokens, f.why("max_num_batched_tokens")),
        arg("--gpu-memory-utilization", p.gpu_memory_utilization, f.why("memory", "gpu_memory_utilization")),
        arg("--max-cudagraph-capture-size", graph_tokens(f), f.why("graph_sizes_max", "cuda_graphs")),
    ]


def graph_tokens(f: PoolFacts) -> int:
    """Largest captured batch in tokens, as vLLM counts: a sequence that verifies k draft tokens brings k + 1."""
    return f.pool.graph_sizes_max * (1 + (f.service.speculation.tokens if f.service.speculation else 0))


def _features(f: PoolFacts) -> list[Arg]:
    args = []
    if any(c.prefix_cache is not None or c.sessions is not None for c in f.intent.traffic):
        args.append(arg("--enable-prefix-caching", None, f.why("prefix_cache")))
    if f.pool.scheduling == "priority":
        args.append(arg("--scheduling-policy", "priority", f.why("scheduling")))
    if f.service.speculation is not None:
        args.append(arg("--speculative-config", speculation(f.service.speculation), f.speculation_why))
    if f.pool.role != "aggregated":
        args.append(arg("--kv-transfer-config", kv_transfer(f.pool.role), f.transfer_why))
    return args


def speculation(s: SpeculationDoc) -> dict[str, Any]:
    """vLLM's JSON of a speculative method."""
    config: dict[str, Any] = {"method": s.method, "num_speculative_tokens": s.tokens}
    if s.method == "ngram":
        config |= {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    elif s.method in ("eagle3", "draft_model"):
        if s.draft_model is None:
            raise refused("speculation", f"{s.method} needs a draft model", "name it: speculation.draft_model")
        config["model"] = plain(s.draft_model, "draft model")
    return config


def kv_transfer(role: str, *, both: bool = False) -> dict[str, Any]:
    """NIXL hand-over. vLLM 0.33 has a role per side and deprecates `kv_both`, which older runtimes want."""
    side = "kv_both" if both else "kv_producer" if role == "prefill" else "kv_consumer"
    return {"kv_connector": "NixlConnector", "kv_role": side}


def _metrics(f: PoolFacts) -> list[Arg]:
    """A bucket edge at every limit that the engine's own edges miss: alerts then sit on the limit itself."""
    custom: dict[str, list[float]] = {}
    for metric, family in sorted(f.engine.bucket_families.items()):
        edges = set(custom.get(family, ())) | set(f.engine.bucket_edges[metric])
        limits = slo_limits(f, metric)
        if limits - edges or family in custom:
            custom[family] = sorted(edges | limits)
    return [arg("--custom-histogram-buckets", custom, "edges at the limits")] if custom else []


def _nodes(f: PoolFacts) -> list[Arg]:
    """One command for all nodes of a replica. Ranks above 0 also get `--headless`, and with data parallelism their
    first rank (see `worker_args` and `start_rank`)."""
    if not f.multi_node:
        return []
    s = f.pool.shape
    if s.dp == 1:
        return [
            arg("--distributed-executor-backend", "mp"),
            arg("--nnodes", f.pods),
            arg("--node-rank", RANK),
            arg("--master-addr", LEADER),
            arg("--master-port", MASTER_PORT),
        ]
    return [
        arg("--data-parallel-size-local", f.dp_local),
        arg("--data-parallel-address", LEADER),
        arg("--data-parallel-rpc-port", DP_RPC_PORT),
        *([arg(START_RANK, RANK)] if f.dp_local == 1 else []),
    ]


def start_rank_step(f: PoolFacts) -> int | None:
    """With several ranks per node the first rank is index x ranks, which only a shell can work out."""
    return f.dp_local if f.multi_node and f.pool.shape.dp > 1 and f.dp_local > 1 else None


def worker_args() -> tuple[Arg, ...]:
    """What nodes other than the first get on top."""
    return (arg("--headless"),)


def vllm_env(f: PoolFacts) -> tuple[Env, ...]:
    """Environment of every node."""
    if f.pool.role != "aggregated" and f.multi_node and f.pool.shape.pp > 1:
        raise not_supported("pipeline parallelism over several nodes in a disaggregated vLLM pool")
    env = [
        Env("VLLM_CACHE_ROOT", f"{CACHE}/vllm"),
        Env("VLLM_ENGINE_READY_TIMEOUT_S", str(f.start_s), why="as long as the startup probe"),
    ]
    if f.pool.role != "aggregated":
        env += [
            Env("VLLM_NIXL_SIDE_CHANNEL_HOST", field="status.podIP"),
            Env("VLLM_NIXL_SIDE_CHANNEL_PORT", str(SIDE_CHANNEL_PORT)),
        ]
    if f.multi_node:
        env.append(Env("VLLM_HOST_IP", field="status.podIP"))
    return tuple(env)
