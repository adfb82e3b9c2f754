"""bench/: the load test that would prove the plan, for the common clients, at the planned rate, lengths and limits.

Clients differ in what their lengths mean: vLLM's random data is uniform around the nominal length, SGLang's below it
(its default range averages half, so the range is closed here), the others take a mean and a deviation.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from planner.intent.document import Lengths, TrafficClass
from planner.plan.document import ClassDoc
from planner.render.args import number
from planner.render.artefact import Artefact
from planner.render.facts import PoolFacts
from planner.render.files import refused
from planner.render.router import disaggregated
from planner.render.text import comment, object_name, plain
from planner.units import show_time

SECONDS = 600
LEAST, MOST = 200, 20_000
Z = {"p90": 1.2815515655446004, "p95": 1.6448536269514722, "p99": 2.3263478740408408}


@dataclass(frozen=True, slots=True)
class LoadTest:
    """One traffic class as a load test."""

    name: str
    notes: tuple[str, ...]
    url: str
    model: str
    tokenizer: str
    rate: str
    burstiness: str
    requests: int
    seconds: int
    input_tokens: int
    output_tokens: int
    prefix_tokens: int
    random_tokens: int
    range_ratio: str
    input_stdev: int
    output_stdev: int
    goodput_vllm: tuple[str, ...]
    goodput_aiperf: str
    guidellm_backend: str
    """The rest of a JSON text that begins with the server's address."""
    guidellm_tokenizer: str
    guidellm_data: str
    max_tokens: int
    extra_body: str
    """JSON that every request carries on top; empty: nothing."""
    extra_inputs: str
    """The same as AIPerf writes it."""


def cv(lengths: Lengths | None) -> float:
    """Standard deviation over mean of a length; percentiles are of a lognormal, as the intent defines them.

    ln(p/mean) = z s - s^2/2 gives s, and cv = sqrt(exp(s^2) - 1).
    """
    if lengths is None:
        return 0.0
    if lengths.histogram is not None:
        total = sum(w for _, w in lengths.histogram)
        mean = sum(t * w for t, w in lengths.histogram) / total
        return math.sqrt(sum(w * (t - mean) ** 2 for t, w in lengths.histogram) / total) / mean
    if lengths.cv is not None or lengths.mean is None:
        return lengths.cv or 0.0
    if lengths.p50 is not None:
        s = math.sqrt(max(0.0, 2 * math.log(lengths.mean / lengths.p50)))
        return math.sqrt(math.expm1(s * s))
    for stat, z in Z.items():
        value = getattr(lengths, stat)
        if value is not None:
            root = z * z - 2 * math.log(value / lengths.mean)
            s = z - math.sqrt(max(0.0, root))
            return math.sqrt(math.expm1(s * s))
    return 0.0


def slug(name: str) -> str:
    """A traffic class's name as a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "class"


def load_tests(pools: list[PoolFacts]) -> list[LoadTest]:
    """A load test per traffic class of a service."""
    f = pools[0]
    found: dict[str, LoadTest] = {}
    for traffic in f.intent.traffic:
        name = slug(traffic.name)
        if name in found:
            raise refused("duplicate-name", f"two traffic classes would both be bench/{name}", "name them apart")
        docs = [(p, c) for p in pools for c in p.pool.classes if c.name == traffic.name]
        if docs:
            found[name] = _load_test(pools, name, traffic, docs)
    return list(found.values())


def _load_test(
    pools: list[PoolFacts], name: str, traffic: TrafficClass, docs: list[tuple[PoolFacts, ClassDoc]]
) -> LoadTest:
    f = pools[0]
    split = disaggregated(pools)
    # prefill and decode both carry the whole rate; aggregated pools share it
    rate = max(c.rate for _, c in docs) if split else sum(c.rate for _, c in docs)
    doc = docs[0][1]
    isl, osl = max(1, round(doc.input_mean_tokens)), max(1, round(doc.output_mean_tokens))
    share = traffic.prefix_cache.share if traffic.prefix_cache is not None else None
    shared = traffic.prefix_cache.shared_tokens if traffic.prefix_cache is not None else None
    prefix = min(isl - 1, shared if shared is not None else round(isl * (share or 0.0)))
    in_cv, out_cv = cv(traffic.input), cv(traffic.output)
    limits = sorted(
        {(g.metric, g.limit, g.value) for _, c in docs for g in c.figures if g.limit is not None}, key=lambda g: g[0]
    )
    notes = [f"{g}: at most {show_time(limit)}, planned {show_time(value)}" for g, limit, value in limits]
    backend: dict[str, Any] = {"model": f.service.model.id, "request_format": "/v1/completions"}
    if doc.priority is not None:
        notes.append(
            f"every request must carry `priority: {doc.priority}`, as clients' requests of this class must: lower is "
            "served first, and without it a request counts as 0"
        )
        backend["extras"] = {"body": {"priority": doc.priority}}
    if traffic.trace is not None:
        notes.append("lengths are the means of the trace; its own requests are the better test where a client reads it")
    # a uniform draw within +-r has a CV of r / sqrt(3)
    ratios = [min(0.99, math.sqrt(3) * v) for v in (in_cv, out_cv)]
    if math.sqrt(3) * max(in_cv, out_cv) > 0.99:
        notes.append("vLLM's client draws uniform lengths: it cannot reach the spread that was planned for")
    by_metric: dict[str, float] = {}
    for g, limit, _ in limits:
        metric = g.partition(".")[0]
        by_metric[metric] = min(limit, by_metric.get(metric, math.inf))
    goodput = {"ttft": "ttft", "itl": "tpot", "tpot": "tpot", "e2e": "e2el"}
    aiperf = {"ttft": "time_to_first_token", "itl": "inter_token_latency", "e2e": "request_latency"}
    in_ms = {m: number(round(v * 1e3, 3)) for m, v in by_metric.items()}
    vllm_goodput = {goodput[m]: f"{goodput[m]}:{in_ms[m]}" for m in sorted(in_ms) if m in goodput}
    namespace = f.plan.platform.namespace
    host = object_name(f.service.name) + (f".{namespace}" if namespace else "")
    port = f.engine.port if f.service.target in ("kubernetes", "none", "llm-d") else 8000
    if f.service.target == "dynamo":
        host, port = f"{object_name(f.service.name)}-frontend" + (f".{namespace}" if namespace else ""), 8000
    return LoadTest(
        name=name,
        notes=tuple(comment(n) for n in notes),
        url=f"http://{host}:{port}",
        model=plain(f.service.model.id, "model id"),
        tokenizer=plain(f.service.model.repo, "model"),
        rate=number(float(f"{rate:.4g}")),
        burstiness=number(float(f"{1 / traffic.arrivals.cv**2:.4g}")),
        requests=min(MOST, max(LEAST, math.ceil(rate * SECONDS))),
        seconds=SECONDS,
        input_tokens=isl,
        output_tokens=osl,
        prefix_tokens=prefix,
        random_tokens=isl - prefix,
        range_ratio=f'{{"input": {number(round(ratios[0], 3))}, "output": {number(round(ratios[1], 3))}}}',
        input_stdev=round(isl * in_cv),
        output_stdev=round(osl * out_cv),
        goodput_vllm=tuple(vllm_goodput[k] for k in sorted(vllm_goodput)),
        goodput_aiperf=" ".join(f"{aiperf[m]}:{in_ms[m]}" for m in sorted(in_ms) if m in aiperf),
        guidellm_backend='",' + compact(backend)[1:],
        guidellm_tokenizer=compact({"kind": "huggingface_auto", "model": f.service.model.repo}),
        guidellm_data=compact(_synthetic(isl, osl, round(isl * in_cv), round(osl * out_cv))),
        max_tokens=min(p.pool.max_model_len for p in pools),
        extra_body="" if doc.priority is None else compact({"priority": doc.priority}),
        extra_inputs="" if doc.priority is None else f"priority:{doc.priority}",
    )


def compact(data: dict[str, Any]) -> str:
    """JSON on one line, keys as given."""
    return json.dumps(data, separators=(",", ":"))


def _synthetic(isl: int, osl: int, isl_stdev: int, osl_stdev: int) -> dict[str, Any]:
    """GuideLLM's synthetic data; a deviation of zero is left out, it takes only positive ones."""
    data: dict[str, Any] = {"kind": "synthetic_text", "prompt_tokens": isl, "output_tokens": osl}
    if isl_stdev:
        data["prompt_tokens_stdev"] = isl_stdev
    if osl_stdev:
        data["output_tokens_stdev"] = osl_stdev
    return data


def bench_artefacts(pools: list[PoolFacts]) -> list[Artefact]:
    """`bench/<class>-<client>...` for every class and client, and how to feed the results back."""
    folder = PurePosixPath(pools[0].service.name) / "bench"
    tests = load_tests(pools)
    found = [Artefact(folder / "README.md", "bench/README.md.j2", {"tests": tests, "service": pools[0].service.name})]
    for t in tests:
        context: dict[str, Any] = {"t": t}
        for client in ("vllm", "sglang", "aiperf", "guidellm"):
            path = folder / f"{t.name}-{client}.sh"
            found.append(Artefact(path, f"bench/{client}.sh.j2", context, executable=True))
        path = folder / f"{t.name}-inference-perf.yaml"
        found.append(Artefact(path, "bench/inference-perf.yaml.j2", context))
    return found
