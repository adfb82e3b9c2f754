"""The points at which `benchmarks.load` holds the closed form against the simulation, in five groups.

printed  load points and sweeps of the queueing comparison this model started from (one synthetic replica: 6 ms +
         0.0325 ms a token + 0.05 us a context token)
more     forty others on that replica: chat, RAG, agents with long prefixes, batch; budgets, caps, caches, pairs
real     step tables of catalogue models
fresh    written down before the model's figures for them were seen, and kept whatever they say: other models, mixed
         classes, bursts, speculation, prefix hits over replicas, thinking, prefill-first, ranks in lock-step
drawn    at random from a seed, over all of these at once
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from planner.catalog.gpus import find_gpu
from planner.catalog.models import find_model
from planner.intent.document import Lengths
from planner.perf.arch import Shape
from planner.perf.calibration import calibration_for
from planner.perf.deployment import Deployment, hardware
from planner.perf.families import read_arch
from planner.perf.lengths import distribution
from planner.perf.pool import Drafting, Handover, PoolSpec
from planner.perf.quantities import uniform
from planner.perf.steptable import build_step_table
from planner.perf.table import Curve, StepTable
from planner.perf.traffic import ClassLoad, JointLengths, PrefixHits


def additive() -> StepTable:
    """6 ms + 0.0325 ms per token + 0.05 us per context token: about an 8B model in bf16 on an H100."""
    linear = Curve((0.0, 1.0), (6e-3, 6e-3 + 0.0325e-3))
    return StepTable(linear, linear, (1,), (Curve((0.0, 1.0), (0.0, 5e-8)),), Curve((0.0, 1.0), (0.0, 0.0)))


@dataclass(frozen=True)
class Point:
    """One comparison. With `decode` the pool is the prefill half of a pair; rates are then per prefill replica."""

    group: str
    name: str
    pool: PoolSpec
    classes: tuple[ClassLoad, ...]
    """Their rates give the mix alone."""
    load: float = 0.0
    """Share of lambda_max."""
    rate_per_s: float = 0.0
    """The rate itself where the comparison states it; then `load` is 0."""
    decode: PoolSpec | None = None
    pools: tuple[int, int] = (1, 1)
    replicas: int = 1
    """Simulated side by side; the closed form looks at one of them."""
    routing: Literal["round-robin", "least-loaded"] = "round-robin"


def traffic(
    isl: float,
    osl: float,
    cv: float,
    *,
    out_cv: float | None = None,
    share: float = 0.0,
    arrivals_cv: float = 1.0,
    name: str = "c",
    rate: float = 1.0,
) -> ClassLoad:
    joint = JointLengths(
        distribution(Lengths(mean=isl, cv=cv)), distribution(Lengths(mean=osl, cv=cv if out_cv is None else out_cv))
    )
    return ClassLoad(name, rate, joint, PrefixHits(share=share), arrivals_cv)


CHAT, FIXED, RAG = traffic(1024, 256, 1.0), traffic(1024, 256, 0.0), traffic(6000, 300, 0.7)
AGENT = traffic(14000, 180, 0.8, share=0.85)
BATCH = traffic(600, 1500, 0.6)
REPLICA = PoolSpec(additive(), 128, 2048, 1e9)
WIDE = REPLICA.with_(max_num_seqs=256, max_num_batched_tokens=8192)
HANDOVER = Handover(bytes_per_token=131072, bytes_per_s=50e9)
PROMPT_S = 6e-3 + 0.0325e-3 * 1024
"""One chat prompt of mean length alone in a step: what the printed prefill-only points call the service time."""


def printed() -> Iterator[Point]:
    """Load points and sweeps of the queueing comparison, at its rates."""
    yield Point("printed", "chat fixed", REPLICA, (FIXED,), 0.6)
    for load in (0.4, 0.75, 0.85, 0.95):
        yield Point("printed", "chat", REPLICA, (CHAT,), load)
    for load in (0.6, 0.85, 0.95):
        yield Point("printed", "rag", REPLICA, (RAG,), load)
    for budget in (512, 1024, 2048, 8192):
        pool = REPLICA.with_(max_num_batched_tokens=budget)
        yield Point("printed", f"chat B={budget}", pool, (CHAT,), rate_per_s=8.77)
    for seqs in (16, 32, 48, 64, 96):
        yield Point("printed", f"chat N={seqs}", REPLICA.with_(max_num_seqs=seqs), (CHAT,), rate_per_s=8.77)
    for name, cls in (("cv=1", CHAT), ("cv=0", FIXED)):
        for rho in (0.3, 0.5, 0.7, 0.85):
            yield Point(
                "printed", f"prefill pool {name} rho={rho}", REPLICA.with_(role="prefill"), (cls,),
                rate_per_s=rho / PROMPT_S,
            )  # fmt: skip


def further() -> Iterator[Point]:
    """Forty more: four kinds of traffic, loads, budgets, caps, caches, pairs."""
    agent = REPLICA.with_(max_num_batched_tokens=8192)
    for load in (0.3, 0.5, 0.7, 0.8):
        yield Point("more", "chat", REPLICA, (CHAT,), load)
        yield Point("more", "rag", REPLICA, (RAG,), load)
        yield Point("more", "agent B=8192", agent, (AGENT,), load)
        yield Point("more", "batch N=256 B=8192", WIDE, (BATCH,), load)
    for budget in (512, 1024, 4096, 16384):
        yield Point("more", f"rag B={budget}", REPLICA.with_(max_num_batched_tokens=budget), (RAG,), 0.7)
        yield Point("more", f"agent B={budget}", REPLICA.with_(max_num_batched_tokens=budget), (AGENT,), 0.75)
    for load in (0.5, 0.7, 0.8):
        yield Point("more", "chat KV=60k", REPLICA.with_(kv_capacity=60_000.0), (CHAT,), load)
    for load in (0.85, 0.9, 0.95):
        yield Point("more", "agent B=8192", agent, (AGENT,), load)
    yield Point("more", "batch N=256 B=8192", WIDE, (BATCH,), 0.9)
    prefill, decode = REPLICA.with_(role="prefill", max_num_batched_tokens=8192), REPLICA.with_(role="decode")
    for load, pools in ((0.3, (1, 1)), (0.5, (1, 1)), (0.7, (1, 1)), (0.5, (1, 2)), (0.7, (2, 3)), (0.8, (1, 2))):
        yield Point("more", f"pair {pools[0]}:{pools[1]} chat", prefill, (CHAT,), load, decode=decode, pools=pools)
    for load, pools in ((0.5, (2, 1)), (0.7, (3, 1)), (0.8, (3, 1))):
        yield Point("more", f"pair {pools[0]}:{pools[1]} rag", prefill, (RAG,), load, decode=decode, pools=pools)


@functools.cache
def model_replica(
    name: str, gpu: str, shape: Shape, *, seqs: int, budget: int, engine: tuple[str, str] = ("vllm", "0.33.0")
) -> PoolSpec:
    """A catalogue model in bf16 on a catalogue GPU; attention-DP ranks where the shape has them."""
    arch, on = read_arch(dict(find_model(name).config), name), hardware(find_gpu(gpu))
    d = Deployment(arch, uniform("bf16"), "bf16", "bf16", on, shape, *engine)
    calibration = calibration_for(*engine, on)
    table = build_step_table(d, calibration, max_num_seqs=seqs, max_num_batched_tokens=budget)
    scheduler: Literal["decode-first", "prefill-first"] = (
        "prefill-first" if calibration.prefill_first else "decode-first"
    )
    return PoolSpec(table, seqs, budget, 1e9, scheduler=scheduler, lockstep_ranks=shape.dp)


LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"
QWEN_MOE, QWEN_32B = "Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-32B"
SGLANG = ("sglang", "0.5.23")


def real() -> Iterator[Point]:
    """Step tables of catalogue models."""
    cases = (
        (LLAMA_8B, "h100-sxm", 1, 256, 2048, CHAT, (0.4, 0.6, 0.8)),
        (LLAMA_70B, "h100-sxm", 4, 128, 4096, RAG, (0.4, 0.6, 0.8)),
        (QWEN_MOE, "h200-sxm", 8, 256, 8192, AGENT, (0.5, 0.75)),
        (QWEN_32B, "a100-80-sxm", 2, 256, 2048, BATCH, (0.5, 0.75)),
    )
    for name, gpu, tp, seqs, budget, cls, loads in cases:
        pool = model_replica(name, gpu, Shape(tp=tp), seqs=seqs, budget=budget)
        for load in loads:
            yield Point("real", f"{name.split('/')[1]} {gpu} tp{tp}", pool, (cls,), load)


def _mix(*parts: tuple[str, ClassLoad, float]) -> tuple[ClassLoad, ...]:
    return tuple(replace(c, name=name, rate_per_s=share) for name, c, share in parts)


def fresh() -> Iterator[Point]:
    """What the model was not made with: chosen first, looked at afterwards."""
    yield from _other_tables()
    mixes = (
        ("chat 4:1 rag", REPLICA, _mix(("chat", CHAT, 0.8), ("rag", RAG, 0.2))),
        ("chat 1:1 batch", WIDE, _mix(("chat", CHAT, 0.5), ("batch", BATCH, 0.5))),
        ("chat 3:1 agent B=8192", WIDE, _mix(("chat", CHAT, 0.75), ("agent", AGENT, 0.25))),
    )
    for name, pool, classes in mixes:
        for load in (0.4, 0.6, 0.8):
            yield Point("fresh", f"mix {name}", pool, classes, load)
    yield from _bursts()
    for drafting, cls, name, loads in (
        (Drafting(3, 0.7, 1e-3), CHAT, "k=3 chat", (0.4, 0.7)),
        (Drafting(5, 0.6, 2e-3), RAG, "k=5 rag", (0.5, 0.75)),
        (Drafting(1, 0.8), BATCH, "k=1 batch", (0.5, 0.8)),
    ):
        pool = (REPLICA if cls is not BATCH else WIDE).with_(drafting=drafting)
        for load in loads:
            yield Point("fresh", f"draft {name}", pool, (cls,), load)
    yield from _hits()
    thinking = replace(CHAT.lengths, thinking=distribution(Lengths(mean=1200, cv=0.9)))
    for load in (0.3, 0.6, 0.8):
        yield Point("fresh", "thinking", WIDE, (replace(CHAT, lengths=thinking),), load)
    yield from _prefill_first()
    yield from _lockstep()


def _other_tables() -> Iterator[Point]:
    talk = traffic(2000, 800, 0.9)
    for name, gpu, tp, seqs, budget, cls, loads in (
        (LLAMA_70B, "h100-sxm", 8, 256, 8192, CHAT, (0.3, 0.6, 0.8)),
        (LLAMA_70B, "h200-sxm", 4, 256, 4096, talk, (0.5, 0.8)),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "h100-sxm", 4, 256, 8192, CHAT, (0.5, 0.75)),
        ("openai/gpt-oss-120b", "h100-sxm", 4, 128, 4096, RAG, (0.4, 0.7)),
        ("Qwen/Qwen3-30B-A3B", "h200-sxm", 1, 256, 8192, BATCH, (0.6, 0.85)),
        (QWEN_MOE, "h200-sxm", 8, 256, 16384, RAG, (0.4, 0.7)),
        (LLAMA_8B, "l40s", 1, 64, 2048, CHAT, (0.7,)),
        ("deepseek-ai/DeepSeek-V3", "h200-sxm", 16, 128, 8192, RAG, (0.5,)),
    ):
        pool = model_replica(name, gpu, Shape(tp=tp), seqs=seqs, budget=budget)
        for load in loads:
            yield Point("fresh", f"{name.split('/')[1]} {gpu} tp{tp}", pool, (cls,), load)


def _bursts() -> Iterator[Point]:
    """Gamma gaps: CV 0.5, 2 and 4."""
    for cv in (0.5, 2.0, 4.0):
        for name, cls in (("chat", CHAT), ("rag", RAG)):
            for load in (0.4, 0.6, 0.8):
                yield Point("fresh", f"burst cv={cv:g} {name}", REPLICA, (replace(cls, arrivals_cv=cv),), load)
    yield Point("fresh", "burst cv=2 batch", WIDE, (replace(BATCH, arrivals_cv=2.0),), 0.7)
    yield Point("fresh", "burst cv=2 agent", WIDE, (replace(AGENT, arrivals_cv=2.0),), 0.7)
    prefill, decode = REPLICA.with_(role="prefill", max_num_batched_tokens=8192), REPLICA.with_(role="decode")
    yield Point("fresh", "burst cv=2 pair chat", prefill, (replace(CHAT, arrivals_cv=2.0),), 0.6, decode=decode)
    pool = model_replica(LLAMA_8B, "h100-sxm", Shape(), seqs=256, budget=2048)
    yield Point("fresh", "burst cv=2 Llama-8B", pool, (replace(CHAT, arrivals_cv=2.0),), 0.6)


def _hits() -> Iterator[Point]:
    """Prefixes shared by groups of requests, four replicas side by side."""
    pool = WIDE.with_(replicas=4, kv_capacity=400_000.0)
    for routing in ("round-robin", "affinity"):
        hits = PrefixHits(shared_tokens=4000, groups=60, routing=routing)
        cls = replace(traffic(6000, 250, 0.5), hits=hits)
        for load in (0.5, 0.75):
            yield Point("fresh", f"hits 60 groups {routing}", pool, (cls,), load, replicas=4)
    cls = traffic(3000, 300, 0.8, share=0.6)
    yield Point("fresh", "hits 60% least-loaded", pool, (cls,), 0.7, replicas=4, routing="least-loaded")
    yield Point("fresh", "hits 60% round-robin", pool, (cls,), 0.7, replicas=4)


def _prefill_first() -> Iterator[Point]:
    first = REPLICA.with_(scheduler="prefill-first")
    for name, pool, cls, loads in (
        ("chat B=2048", first, CHAT, (0.3, 0.6, 0.8, 0.9)),
        ("rag B=8192", first.with_(max_num_batched_tokens=8192), RAG, (0.3, 0.6, 0.8)),
        ("agent B=16384", first.with_(max_num_batched_tokens=16384), AGENT, (0.5, 0.75)),
        ("batch B=8192", first.with_(max_num_seqs=256, max_num_batched_tokens=8192), BATCH, (0.6, 0.8)),
        (
            "70B h100 tp4",
            model_replica(LLAMA_70B, "h100-sxm", Shape(tp=4), seqs=128, budget=8192, engine=SGLANG),
            RAG,
            (0.3, 0.6, 0.8),
        ),
    ):
        for load in loads:
            yield Point("fresh", f"prefill-first {name}", pool, (cls,), load)


def _lockstep() -> Iterator[Point]:
    """Attention-DP ranks; loads down to almost nothing."""
    deep = model_replica("deepseek-ai/DeepSeek-V3", "h200-sxm", Shape(dp=16, ep=True), seqs=128, budget=4096)
    for name, pool, cls, loads in (
        ("4 chat", REPLICA.with_(lockstep_ranks=4), CHAT, (0.02, 0.4, 0.8)),
        ("8 chat", REPLICA.with_(lockstep_ranks=8), CHAT, (0.02, 0.6, 0.85)),
        ("8 rag", REPLICA.with_(lockstep_ranks=8), RAG, (0.3, 0.6, 0.8)),
        ("16 agent B=8192", REPLICA.with_(lockstep_ranks=16, max_num_batched_tokens=8192), AGENT, (0.5, 0.75)),
        ("8 rag prefill-first", REPLICA.with_(lockstep_ranks=8, scheduler="prefill-first"), RAG, (0.5,)),
        ("8 chat prefill-first", REPLICA.with_(lockstep_ranks=8, scheduler="prefill-first"), CHAT, (0.7,)),
        ("16 DeepSeek-V3 chat", deep, CHAT, (0.02, 0.3, 0.5, 0.75)),
        ("16 DeepSeek-V3 rag", deep, RAG, (0.3, 0.6, 0.8)),
    ):
        for load in loads:
            yield Point("fresh", f"ranks {name}", pool, (cls,), load)


def drawn(count: int, *, seed: int) -> Iterator[Point]:
    """Points at random: lengths, spreads, budgets, caps, loads, tables, schedulers, ranks and bursts."""
    rng = np.random.default_rng(seed)
    tables = (
        ("8B", additive()),
        ("Llama-8B h100", model_replica(LLAMA_8B, "h100-sxm", Shape(), seqs=256, budget=8192).table),
        ("Llama-70B h100 tp4", model_replica(LLAMA_70B, "h100-sxm", Shape(tp=4), seqs=256, budget=8192).table),
        ("Qwen3-235B h200 tp8", model_replica(QWEN_MOE, "h200-sxm", Shape(tp=8), seqs=256, budget=8192).table),
    )
    for _ in range(count):
        name, table = tables[rng.integers(len(tables))]
        isl, osl = (
            round(float(np.exp(rng.uniform(np.log(300), np.log(12000))))),
            round(float(np.exp(rng.uniform(4, 7)))),
        )
        cv, budget = round(float(rng.uniform(0, 1.2)), 2), int(2 ** rng.integers(9, 14))
        seqs, load = int(min(2 ** rng.integers(5, 9), budget)), round(float(rng.uniform(0.2, 0.85)), 2)
        kind = rng.choice(["plain", "plain", "burst", "prefill-first", "ranks"])
        pool = PoolSpec(table, seqs, budget, 1e9)
        arrivals_cv = 1.0
        if kind == "burst":
            arrivals_cv = round(float(rng.uniform(0.5, 3.5)), 1)
            kind = f"burst cv={arrivals_cv}"
        elif kind == "prefill-first":
            pool = pool.with_(scheduler="prefill-first")
        elif kind == "ranks":
            ranks = int(2 ** rng.integers(1, 5))
            pool, kind = pool.with_(lockstep_ranks=ranks), f"{ranks} ranks"
        cls = traffic(isl, osl, cv, arrivals_cv=arrivals_cv)
        yield Point("drawn", f"{kind} {name} {isl}/{osl} cv={cv} B={budget} N={seqs}", pool, (cls,), load)
