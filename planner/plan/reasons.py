"""Short reasons with figures, one per decision, as they stand beside its line in the rendered files."""

from __future__ import annotations

from collections.abc import Mapping

from planner.candidates.ask import Ask
from planner.candidates.candidate import Prediction
from planner.perf.load import LoadResult
from planner.plan.solution import ChosenPool
from planner.units import show_bytes, show_rate, show_time


def pool_reasons(
    ask: Ask, chosen: ChosenPool, result: LoadResult, *, context_tokens: float, histories: Mapping[str, float]
) -> dict[str, str]:
    """Decision -> reason, in the order of the decisions."""
    c = chosen.candidate
    m, d = c.memory, c.deployment
    holds = m.max_sequences(context_tokens)
    left = show_bytes(max(m.kv_bytes, 0))
    reasons = {
        "tensor_parallel": f"{show_bytes(m.weights_bytes)} of weights per GPU, {left} left for cache",
        "replicas": f"{show_rate(chosen.rate_rps)} at {show_rate(c.load.planned_rps)} per replica at most "
        f"(bound by {c.load.binding})",
        "max_num_seqs": f"runs {result.running_mean:.0f} on average, p99 {result.running_p99:.0f}; "
        f"cache holds {holds:,.0f}",
        "max_model_len": f"longest request admitted; {m.kv_tokens:,} tokens of cache",
        "precision": f"weights in {d.precision}",
        "kv_dtype": f"cache in {d.kv_dtype}: {show_bytes(m.kv_bytes / max(m.kv_tokens, 1))} per token and GPU",
        "memory": f"{show_bytes(m.usable_bytes)} of {show_bytes(m.total_bytes)}: weights "
        f"{show_bytes(m.weights_bytes)}, activations {show_bytes(m.activation_bytes)}, "
        f"graphs {show_bytes(m.cudagraph_bytes)}, cache {left}",
    }
    if histories:
        found = ", ".join(f"{ratio:.0%} of {name}'s" for name, ratio in sorted(histories.items()))
        reasons["prefix_cache"] = f"sessions: {found} earlier tokens are found beside what runs"
    if c.role != "decode":
        reasons["max_num_batched_tokens"] = _budget(ask, chosen)
    places = {x.name: x.priority for x in ask.classes if x.name in c.class_names}
    if len(set(places.values())) > 1:
        order = ", ".join(f"{name} {place}" for name, place in sorted(places.items(), key=lambda p: (p[1], p[0])))
        reasons["scheduling"] = f"lower is served first: {order}, as each request's `priority` says"
    if c.role == "prefill":
        reasons["role"] = "prompts only; the cache goes to the decode pool"
    elif c.role == "decode":
        reasons["role"] = "answers only; prompts arrive with their cache"
        reasons["max_num_batched_tokens"] = "decode steps only: one token per running sequence"
    return reasons


def _budget(ask: Ask, chosen: ChosenPool) -> str:
    itl = _tightest(ask, chosen, "itl")
    if itl is not None:
        p, limit = itl
        stat = p.metric.partition(".")[2]
        return f"a step full of prompt keeps ITL {stat} at {show_time(p.value_s)} of {show_time(limit)}"
    ttft = _tightest(ask, chosen, "ttft")
    if ttft is not None:
        p, limit = ttft
        return f"TTFT {p.metric.partition('.')[2]} {show_time(p.value_s)} of {show_time(limit)}"
    return "no latency SLO binds it: chosen for throughput"


def _tightest(ask: Ask, chosen: ChosenPool, metric: str) -> tuple[Prediction, float] | None:
    found = []
    for p in chosen.predictions:
        for slo in ask.slos_of(p.class_name):
            if slo.key == p.metric and slo.metric == metric:
                found.append((p.value_s / slo.limit_s, p, slo.limit_s))
    if not found:
        return None
    _, p, limit = max(found, key=lambda t: t[0])
    return p, limit
