"""Speed of the solver: one service, and 100 services (mixed models and SLOs) on 5 GPU types and 4,000 GPUs.

    python benchmarks/speed_solve.py [--toys] [--services N ...]

Candidates come from the catalogue and the closed-form load model (`--toys`: made by hand, for the solver alone).
Prints time to evaluate, time to solve, status and gap for each count; the target is a proof or a gap of at most 1% in
60 s on two cores, and a cost per service that grows by at most half from 10 to 100.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

from handmade import Toy, evaluator, fleet, no_figures
from handmade import ask as toy_ask

from planner.candidates import candidates
from planner.candidates.ask import Ask
from planner.candidates.candidate import Candidate
from planner.intent.document import Service
from planner.intent.fleet import Fleet
from planner.solve.solver import solve

GPUS = (
    ("h100-sxm", 8, "$2.95/h"), ("h200-sxm", 8, "$4.5/h"), ("b200-sxm", 8, "$5.5/h"), ("a100-80-sxm", 8, "$1.6/h"),
    ("l40s", 8, "$1.55/h"),
)  # fmt: skip
MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B",
    "openai/gpt-oss-120b", "openai/gpt-oss-20b", "mistralai/Mixtral-8x7B-Instruct-v0.1",
)  # fmt: skip


def big_fleet() -> Fleet:
    """Five pools of 100 nodes of 8."""
    return fleet(
        *({"name": g, "gpu": g, "nodes": 100, "gpus_per_node": n, "price": price} for g, n, price in GPUS), name="big"
    )


def real_asks(count: int, on: Fleet) -> list[Ask]:
    """Services of mixed models, lengths, rates and promises."""
    from planner.catalog.models import find_model
    from planner.perf.traffic import class_load

    made = []
    for i in range(count):
        r = random.Random(i)
        model = MODELS[i % len(MODELS)]
        service = Service.model_validate(
            {
                "name": f"s{i:03d}",
                "model": model,
                "traffic": {
                    "input": r.choice((500, 1000, 3000)),
                    "output": r.choice((200, 400)),
                    "rate": f"{r.choice((3, 5, 8, 12, 20))}/s",
                },
                "slo": {"itl": r.choice(("40ms", "60ms", "100ms")), "ttft": r.choice(("1s", "2s", "4s"))},
                "survive": r.choice(("none", "1 replica", "1 node")),
            }
        )
        found = find_model(model)
        classes = tuple(class_load(c, slos=service.slo) for c in service.traffic)
        made.append(Ask(service, on, model=found, classes=classes, engine_version="0.33.0"))
    return made


def toy_asks(count: int, on: Fleet) -> tuple[list[Ask], dict[str, list[Toy]]]:
    asks, toys = [], {}
    for i in range(count):
        r = random.Random(i)
        name = f"s{i:03d}"
        asks.append(
            toy_ask(
                on, name=name, rate=f"{r.randint(40, 400)}/s", slo={"itl": r.choice(("15ms", "25ms", "50ms"))},
                survive=r.choice(("none", "1 replica", "1 node")),
            )
        )  # fmt: skip
        toys[name] = [
            Toy(
                g, tp=tp, most_rps=round(base * tp * e * r.uniform(0.8, 1.2), 3), budget=b,
                floor_s={"itl": 0.03 / tp**0.8 / speed}, slope_s={"itl": 0.001 / tp},
            )
            for g, base, speed in (
                ("h100-sxm", 10, 1), ("h200-sxm", 13, 1.3), ("b200-sxm", 22, 2), ("a100-80-sxm", 5, 0.6),
                ("l40s", 3, 0.3),
            )
            for tp, e in ((1, 1.0), (2, 0.95), (4, 0.85), (8, 0.7))
            for b in (512, 1024, 2048)
        ]  # fmt: skip
    return asks, toys


def measure(count: int, *, toys: bool) -> None:
    on = big_fleet()
    started = time.perf_counter()
    evaluate: Callable[[Ask], tuple[Candidate, ...]]
    asks: list[Ask]
    if toys:
        asks, made = toy_asks(count, on)
        evaluate = evaluator(made)
    else:
        asks, evaluate = real_asks(count, on), candidates
    told: list[float] = []

    def progress(text: str) -> None:
        told.append(time.perf_counter())

    workers = 1 if toys or count == 1 else 2
    kw: dict[str, Any] = {"evaluate": evaluate, "predict": no_figures, "explain": False, "workers": workers}
    solution = solve(asks, on, progress=progress, **kw)
    done = time.perf_counter()
    evaluated = told[-1] if told else started
    gpus = sum(p.candidate.gpus * p.replicas for s in solution.services for p in s.pools)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{count:4d} services: {evaluated - started:6.1f} s to evaluate, {done - evaluated:6.1f} s to solve "
        f"({(done - started) / count * 1000:.0f} ms per service), {solution.status}, gap {solution.gap:.2%}, "
        f"tie-breaks {solution.tie_breaks}, {gpus} GPUs, ${solution.value:,.2f}/h, {memory:.2f} GB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--toys", action="store_true")
    parser.add_argument("--services", type=int, nargs="*", default=[1, 10, 100])
    args = parser.parse_args()
    for count in args.services:
        measure(count, toys=args.toys)


if __name__ == "__main__":
    main()
