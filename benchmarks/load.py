"""Closed-form load model against the event simulation, with the same step times: queueing alone is compared.

    python -m benchmarks.load [--quick] [--csv FILE]

Points: those of the queueing comparison this model started from (one synthetic replica: 6 ms + 0.0325 ms a token +
0.05 us a context token), forty more of four kinds of traffic, and some on step tables of real models. Prints every
point, then the errors against what is promised: mean ITL within 10% up to load 0.85, p99 ITL within 15%, sustainable
rate within 5%, p99 TTFT on the safe side in at least 90% of the points up to the default load cap.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.intent.document import Lengths
from planner.perf.lengths import distribution
from planner.perf.load import LoadModel
from planner.perf.pair import PairModel
from planner.perf.pool import Handover, PoolSpec
from planner.perf.table import Curve, StepTable
from planner.perf.traffic import ClassLoad, JointLengths, PrefixHits
from planner.simulate.run import SimPool, SimSpec, simulate

COMPARED = (
    ("ttft", "mean"),
    ("ttft", "p90"),
    ("ttft", "p99"),
    ("itl", "mean"),
    ("itl", "p99"),
    ("tpot", "p99"),
    ("e2e", "p99"),
)


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
    traffic: ClassLoad
    load: float
    decode: PoolSpec | None = None
    pools: tuple[int, int] = (1, 1)


def traffic(isl: float, osl: float, cv: float, *, out_cv: float | None = None, share: float = 0.0) -> ClassLoad:
    joint = JointLengths(
        distribution(Lengths(mean=isl, cv=cv)), distribution(Lengths(mean=osl, cv=cv if out_cv is None else out_cv))
    )
    return ClassLoad("c", 1.0, joint, PrefixHits(share=share))


CHAT, FIXED, RAG = traffic(1024, 256, 1.0), traffic(1024, 256, 0.0), traffic(6000, 300, 0.7)
AGENT = traffic(14000, 180, 0.8, share=0.85)
BATCH = traffic(600, 1500, 0.6)
REPLICA = PoolSpec(additive(), 128, 2048, 1e9)
HANDOVER = Handover(bytes_per_token=131072, bytes_per_s=50e9)


def printed() -> Iterator[Point]:
    """Load points and sweeps of the queueing comparison."""
    yield Point("printed", "chat fixed", REPLICA, FIXED, 0.6)
    for load in (0.4, 0.75, 0.85, 0.95):
        yield Point("printed", "chat", REPLICA, CHAT, load)
    for load in (0.6, 0.85, 0.95):
        yield Point("printed", "rag", REPLICA, RAG, load)
    for budget in (512, 1024, 2048, 8192):
        yield Point("printed", f"chat B={budget}", REPLICA.with_(max_num_batched_tokens=budget), CHAT, 0.61)
    for seqs in (32, 48, 64, 96):
        pool = REPLICA.with_(max_num_seqs=seqs)
        yield Point("printed", f"chat N={seqs}", pool, CHAT, 8.77 / LoadModel(pool, [CHAT]).lambda_max)


def further() -> Iterator[Point]:
    """Forty more: four kinds of traffic, loads, budgets, caps, caches, pairs."""
    for load in (0.3, 0.5, 0.7, 0.8):
        yield Point("more", "chat", REPLICA, CHAT, load)
        yield Point("more", "rag", REPLICA, RAG, load)
        yield Point("more", "agent B=8192", REPLICA.with_(max_num_batched_tokens=8192), AGENT, load)
        yield Point(
            "more", "batch N=256 B=8192", REPLICA.with_(max_num_seqs=256, max_num_batched_tokens=8192), BATCH, load
        )
    for budget in (512, 1024, 4096, 16384):
        yield Point("more", f"rag B={budget}", REPLICA.with_(max_num_batched_tokens=budget), RAG, 0.7)
        yield Point("more", f"agent B={budget}", REPLICA.with_(max_num_batched_tokens=budget), AGENT, 0.75)
    for load in (0.5, 0.7, 0.8):
        yield Point("more", "chat KV=60k", REPLICA.with_(kv_capacity=60_000.0), CHAT, load)
    for load in (0.85, 0.9, 0.95):
        yield Point("more", "agent B=8192", REPLICA.with_(max_num_batched_tokens=8192), AGENT, load)
    yield Point("more", "batch N=256 B=8192", REPLICA.with_(max_num_seqs=256, max_num_batched_tokens=8192), BATCH, 0.9)
    prefill, decode = REPLICA.with_(role="prefill", max_num_batched_tokens=8192), REPLICA.with_(role="decode")
    for load, pools in ((0.3, (1, 1)), (0.5, (1, 1)), (0.7, (1, 1)), (0.5, (1, 2)), (0.7, (2, 3)), (0.8, (1, 2))):
        yield Point("more", f"pair {pools[0]}:{pools[1]} chat", prefill, CHAT, load, decode, pools)
    for load, pools in ((0.5, (2, 1)), (0.7, (3, 1)), (0.8, (3, 1))):
        yield Point("more", f"pair {pools[0]}:{pools[1]} rag", prefill, RAG, load, decode, pools)


def real() -> Iterator[Point]:
    """Step tables of catalogue models."""
    from planner.catalog.gpus import find_gpu
    from planner.catalog.models import find_model
    from planner.perf.arch import Shape
    from planner.perf.calibration import calibration_for
    from planner.perf.deployment import Deployment, hardware
    from planner.perf.families import read_arch
    from planner.perf.quantities import uniform
    from planner.perf.steptable import build_step_table

    cases = (
        ("meta-llama/Llama-3.1-8B-Instruct", "h100-sxm", 1, 256, 2048, CHAT, (0.4, 0.6, 0.8)),
        ("meta-llama/Llama-3.3-70B-Instruct", "h100-sxm", 4, 128, 4096, RAG, (0.4, 0.6, 0.8)),
        ("Qwen/Qwen3-235B-A22B", "h200-sxm", 8, 256, 8192, AGENT, (0.5, 0.75)),
        ("Qwen/Qwen3-32B", "a100-80-sxm", 2, 256, 2048, BATCH, (0.5, 0.75)),
    )
    for name, gpu, tp, seqs, budget, cls, loads in cases:
        arch, on = read_arch(dict(find_model(name).config), name), hardware(find_gpu(gpu))
        d = Deployment(arch, uniform("bf16"), "bf16", "bf16", on, Shape(tp=tp), "vllm", "0.33.0")
        table = build_step_table(
            d, calibration_for("vllm", "0.33.0", on), max_num_seqs=seqs, max_num_batched_tokens=budget
        )
        pool = PoolSpec(table, seqs, budget, 1e9)
        for load in loads:
            yield Point("real", f"{name.split('/')[1]} {gpu} tp{tp}", pool, cls, load)


@dataclass(frozen=True)
class Row:
    point: Point
    rate_per_s: float
    form: dict[str, float]
    seen: dict[str, float]
    width: dict[str, float]
    """95% half-widths of the simulation."""

    def error(self, key: str) -> float:
        return self.form[key] / self.seen[key] - 1


def measure(p: Point, *, requests: int, seeds: tuple[int, ...]) -> Row:
    if p.decode is not None:
        pair = PairModel(p.pool, p.decode, HANDOVER, [p.traffic])
        most = min(p.pools[0] * pair.prefill_max_per_s, p.pools[1] * pair.decode.lambda_max)
        rate = p.load * most
        figures = pair.evaluate(rate / p.pools[0], rate / p.pools[1]).classes[0]
        pools = (SimPool("p", p.pool, p.pools[0]), SimPool("d", p.decode, p.pools[1]))
        # Random thinning, as the model has it, is what several independent replicas see: simulate one of each and
        # let the router be least-loaded only where there are more.
        spec = SimSpec(pools, (p.traffic.at(rate),), handover=HANDOVER, requests=requests, seeds=seeds)
    else:
        model = LoadModel(p.pool, [p.traffic])
        rate = p.load * model.lambda_max
        figures = model.evaluate(rate).classes[0]
        spec = SimSpec((SimPool("a", p.pool),), (p.traffic.at(rate),), requests=requests, seeds=seeds)
    result = simulate(spec).classes[0]
    form, seen, width = {}, {}, {}
    for metric, stat in COMPARED:
        key = f"{metric}.{stat}"
        form[key] = getattr(figures, metric).stat(stat)
        seen[key] = result.value(metric, stat)
        width[key] = result.half_width(metric, stat)
    return Row(p, rate, form, seen, width)


def saturated(pool: PoolSpec, cls: ClassLoad, *, requests: int) -> tuple[float, float]:
    """lambda_max of the model, and the throughput of an overloaded replica in the middle of a long run."""
    model = LoadModel(pool, [cls])
    rate = 1.5 * model.lambda_max
    # Requests finished between a fifth of the run and its last arrival, by the difference of two early ends.
    ends = [0.3 * requests / rate, requests / rate]
    done = [
        simulate(SimSpec((SimPool("a", pool),), (cls.at(rate),), requests=requests, horizon_s=end)).books.finished
        for end in ends
    ]
    return model.lambda_max, (done[1] - done[0]) / (ends[1] - ends[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer requests: for a look, not for a verdict")
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    requests, seeds = (5_000, (1,)) if args.quick else (20_000, (1, 2))
    rows = []
    print(f"{'group':8}{'point':34}{'load':>5}  closed form / simulation (ms; error)")
    for p in [*printed(), *further(), *real()]:
        row = measure(p, requests=requests, seeds=seeds)
        rows.append(row)
        cells = "  ".join(
            f"{k} {1e3 * row.form[k]:.4g}/{1e3 * row.seen[k]:.4g} ({100 * row.error(k):+.0f}%)" for k in row.form
        )
        print(f"{p.group:8}{p.name:34}{p.load:5.2f}  {cells}", flush=True)
    if args.csv:
        with args.csv.open("w", newline="") as f:
            out = csv.writer(f)
            out.writerow(
                [
                    "group",
                    "point",
                    "load",
                    "rate_per_s",
                    *(f"{k} {w}" for k in rows[0].form for w in ("form_s", "simulated_s", "half_width_s")),
                ]
            )
            for r in rows:
                cells = [v for k in r.form for v in (r.form[k], r.seen[k], r.width[k])]
                out.writerow(
                    [r.point.group, r.point.name, r.point.load, f"{r.rate_per_s:.4f}", *(f"{v:.5f}" for v in cells)]
                )
    report(rows)
    rates(requests)


def report(rows: list[Row]) -> None:
    print("\nerrors of the closed form, by load")
    for low, high in ((0.0, 0.8), (0.8, 0.851), (0.851, 1.0)):
        some = [r for r in rows if low < r.point.load <= high]
        print(f"  load {low:.2f} to {high:.2f}: {len(some)} points")
        for key in rows[0].form:
            errors = np.array([r.error(key) for r in some])
            worst = errors[np.abs(errors).argmax()]
            print(
                f"    {key:10} median {100 * np.median(errors):+.1f}%  worst {100 * worst:+.1f}%"
                f"  median absolute {100 * np.median(np.abs(errors)):.1f}%"
            )
    below = [r for r in rows if r.point.load <= 0.851]
    within = [abs(r.error("itl.mean")) <= 0.10 for r in below]
    print(f"\nmean ITL within 10% up to load 0.85: {sum(within)} of {len(within)}")
    p99 = [abs(r.error("itl.p99")) <= 0.15 for r in rows]
    outside = [_named(r, "itl.p99") for r, ok in zip(rows, p99, strict=True) if not ok]
    print(f"p99 ITL within 15%: {sum(p99)} of {len(p99)}; outside: {outside}")
    capped = [r for r in rows if r.point.load <= 0.8]
    safe = [r.form["ttft.p99"] >= r.seen["ttft.p99"] for r in capped]
    print(f"p99 TTFT on the safe side up to load 0.8: {sum(safe)} of {len(safe)} ({100 * sum(safe) / len(safe):.0f}%)")
    print("  not:", ", ".join(_named(r, "ttft.p99") for r, ok in zip(capped, safe, strict=True) if not ok))


def _named(r: Row, key: str) -> str:
    return f"{r.point.name} {r.point.load:.2f} {100 * r.error(key):+.0f}%"


def rates(requests: int) -> None:
    print("\nsustainable rate: lambda_max against the throughput of an overloaded replica (requests/s)")
    errors = []
    wide = REPLICA.with_(max_num_batched_tokens=8192)
    cases = [
        ("chat fixed", REPLICA, FIXED),
        ("chat", REPLICA, CHAT),
        ("rag", REPLICA, RAG),
        ("agent", wide, AGENT),
        ("batch", wide.with_(max_num_seqs=256), BATCH),
        ("chat B=512", REPLICA.with_(max_num_batched_tokens=512), CHAT),
        ("chat N=32", REPLICA.with_(max_num_seqs=32), CHAT),
        ("chat KV=60k", REPLICA.with_(kv_capacity=60_000.0), CHAT),
        ("rag KV=150k", REPLICA.with_(kv_capacity=150_000.0), RAG),
        ("prefill pool chat", wide.with_(role="prefill"), CHAT),
        ("decode pool chat", REPLICA.with_(role="decode"), CHAT),
        ("prefill-first chat", REPLICA.with_(scheduler="prefill-first"), CHAT),
    ]
    cases += [(p.name, p.pool, p.traffic) for p in {q.name: q for q in real()}.values()]
    for name, pool, cls in cases:
        form, seen = saturated(pool, cls, requests=requests)
        errors.append(form / seen - 1)
        print(f"  {name:34} {form:8.3f} / {seen:8.3f} ({100 * errors[-1]:+.1f}%)")
    print(f"within 5%: {sum(abs(e) <= 0.05 for e in errors)} of {len(errors)}")
    assert all(math.isfinite(e) for e in errors)


if __name__ == "__main__":
    main()
