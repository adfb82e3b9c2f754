"""SGLang: a pool of the plan -> `python3 -m sglang.launch_server` arguments.

`--tp-size` is the whole group (attention TP x attention DP), caps are written for the whole replica (SGLang divides
them by the attention-DP size), and the memory fraction and graph sizes are always explicit: SGLang's own defaults move
with the GPU, the role and speculation.
"""

from __future__ import annotations

from planner.errors import not_supported
from planner.plan.document import Plan, PoolDoc, ServiceDoc
from planner.render.args import LEADER, RANK, Arg, Env, arg, argv, number
from planner.render.facts import PoolFacts, pool_facts, slo_limits
from planner.render.files import refused
from planner.render.flags import check_argv
from planner.render.source import CACHE, model_access
from planner.render.text import plain

DIST_PORT = 20000
"""With attention DP SGLang also binds the six ports above it."""
BOOTSTRAP_PORT = 8998
DEEPEP_DISPATCH_LEAST = 128


def sglang_argv(service: ServiceDoc, pool: PoolDoc, plan: Plan) -> list[str]:
    """The launch of the pool's first node, checked against the flag table."""
    facts = pool_facts(plan, service, pool)
    return [*facts.engine.command, *argv(sglang_args(facts))]


def sglang_args(f: PoolFacts) -> tuple[Arg, ...]:
    """The arguments of every node of one replica."""
    args = (
        *_model(f),
        *_parallel(f),
        *_precision(f),
        *_caps(f),
        *_scheduling(f),
        *_speculation(f),
        *_transfer(f),
        *_metrics(f),
        *_nodes(f),
    )
    check_argv(f.engine, argv(args))
    return args


def _model(f: PoolFacts) -> list[Arg]:
    access = model_access(f.service.model, f.plan.platform, "sglang", local=f.service.target == "none")
    return [
        arg("--model-path", access.reference, f.why("precision")),
        arg("--served-model-name", plain(f.service.model.id, "model id")),
        arg("--host", "0.0.0.0"),  # noqa: S104 - the default 127.0.0.1 reaches no probe
        arg("--port", f.engine.port),
        *access.args,
    ]


def attention_dp(f: PoolFacts) -> int:
    """Attention data parallelism inside the tensor-parallel group; 1 where dp means whole copies of a dense model."""
    return f.pool.shape.dp if f.service.model.is_moe else 1


def _parallel(f: PoolFacts) -> list[Arg]:
    s = f.pool.shape
    attn_dp = attention_dp(f)
    tp = s.tp * attn_dp
    args = [
        arg("--tp-size", tp, f.why("tensor_parallel", "shape")),
        arg("--pp-size", s.pp, f.why("pipeline_parallel")),
    ]
    if s.dp > 1 and attn_dp == 1:
        if f.multi_node:
            raise not_supported("SGLang copies of a dense model over several nodes", helps=("plan replicas instead",))
        args.append(arg("--dp-size", s.dp, f.why("data_parallel")))
    if attn_dp > 1:
        args.append(arg("--attn-dp-size", attn_dp, f.why("data_parallel")))
    if s.ep:
        if not f.service.model.is_moe:
            raise refused("plan-inconsistent", f"pool {f.pool.name!r} has expert parallelism but no experts")
        args.append(arg("--ep-size", tp, f.why("expert_parallel")))
        args.append(arg("--moe-a2a-backend", f.pool.all2all or "none", f.why("all2all")))
        if f.pool.all2all == "deepep" and f.pool.role != "aggregated":
            # `normal` turns decode graphs off, which is right for prefill; `low_latency` is for decode
            args.append(arg("--deepep-mode", "normal" if f.pool.role == "prefill" else "low_latency"))
    return args


def _precision(f: PoolFacts) -> list[Arg]:
    old = f.gpu.capability is not None and f.gpu.capability < (8, 0)
    dtype = "float16" if old else "auto" if f.service.model.precision == "int4" else "bfloat16"
    # plain `fp8` is vLLM's word and refused here
    kv = "fp8_e4m3" if f.pool.kv_dtype == "fp8" else "bf16" if dtype == "bfloat16" else "auto"
    args = [arg("--dtype", dtype)]
    if f.service.model.online_quantization is not None:
        args.append(arg("--quantization", f.service.model.online_quantization))
    args.append(arg("--kv-cache-dtype", kv, f.why("kv_dtype")))
    return args


def _caps(f: PoolFacts) -> list[Arg]:
    p = f.pool
    ranks = attention_dp(f)
    tokens = p.max_num_batched_tokens * ranks
    args = [
        arg("--context-length", p.max_model_len, f.why("max_model_len")),
        arg("--max-running-requests", p.max_num_seqs * ranks, f.why("max_num_seqs")),
        arg("--chunked-prefill-size", tokens, f.why("max_num_batched_tokens")),
        arg("--max-prefill-tokens", tokens),
        arg("--mem-fraction-static", p.gpu_memory_utilization, f.why("memory", "gpu_memory_utilization")),
    ]
    if p.role != "prefill":  # a prefill server captures no decode graphs
        args.append(arg("--cuda-graph-max-bs-decode", p.graph_sizes_max, f.why("graph_sizes_max", "cuda_graphs")))
    return args


def _scheduling(f: PoolFacts) -> list[Arg]:
    """Priorities as vLLM has them, which the plan counts on: lower first, 0 where a request has none, nothing that
    runs is stopped for what waits, and the last in order makes room when the cache is full."""
    if f.pool.scheduling != "priority":
        return []
    return [
        arg("--enable-priority-scheduling", None, f.why("scheduling")),
        arg("--schedule-low-priority-values-first"),
        arg("--default-priority-value", 0),
        arg("--disable-priority-preemption"),
        arg("--retraction-policy", "priority"),
    ]


def _speculation(f: PoolFacts) -> list[Arg]:
    s = f.service.speculation
    if s is None:
        return []
    if f.pool.shape.pp > 1:
        raise not_supported("speculative decoding with pipeline parallelism on SGLang")
    why = f.speculation_why
    if s.method == "ngram":
        return [arg("--speculative-algorithm", "NGRAM", why), arg("--speculative-num-draft-tokens", s.tokens)]
    algorithm = {"mtp": "NEXTN", "eagle3": "EAGLE3", "draft_model": "STANDALONE"}[s.method]
    args = [arg("--speculative-algorithm", algorithm, why)]
    if s.method != "mtp":
        if s.draft_model is None:
            raise refused("speculation", f"{s.method} needs a draft model", "name it: speculation.draft_model")
        args.append(arg("--speculative-draft-model-path", plain(s.draft_model, "draft model")))
    return [
        *args,
        arg("--speculative-num-steps", s.tokens),
        arg("--speculative-eagle-topk", 1),
        arg("--speculative-num-draft-tokens", s.tokens + 1),
    ]


def _transfer(f: PoolFacts) -> list[Arg]:
    if f.pool.role == "aggregated":
        return []
    return [
        arg("--disaggregation-mode", f.pool.role),
        arg("--disaggregation-transfer-backend", "nixl", f.transfer_why),
        arg("--disaggregation-bootstrap-port", BOOTSTRAP_PORT),
    ]


def _metrics(f: PoolFacts) -> list[Arg]:
    """Metrics on, with a bucket edge at every limit the engine's own edges miss: alerts then sit on the limit."""
    args = [arg("--enable-metrics")]
    for metric, flag in sorted(f.engine.bucket_flags.items()):
        own = set(f.engine.bucket_edges.get(metric, ()))
        limits = slo_limits(f, metric)
        if limits - own:
            args.append(Arg(flag, None, tuple(number(e) for e in sorted(own | limits)), "edges at the limits"))
    return args


def _nodes(f: PoolFacts) -> list[Arg]:
    if not f.multi_node:
        return []
    return [
        arg("--nnodes", f.pods),
        arg("--node-rank", RANK),
        Arg("--dist-init-addr", (LEADER, f":{DIST_PORT}")),
    ]


def sglang_env(f: PoolFacts) -> tuple[Env, ...]:
    """Environment of every node."""
    env = [Env("SGLANG_CACHE_DIR", f"{CACHE}/sglang")]
    if f.pool.all2all == "deepep":
        drafts = 1 + (f.service.speculation.tokens if f.service.speculation else 0)
        wanted = max(DEEPEP_DISPATCH_LEAST, f.pool.max_num_seqs * drafts)
        env.append(
            Env(
                "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
                str(wanted),
                why="the decode batch of a rank must fit",
            )
        )
    return tuple(env)
