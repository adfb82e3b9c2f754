"""Real traces planned end to end, and the plans replayed under the same traces.

    python -m benchmarks.traces --traces DIR [--only TEXT] [--no-verify]

For each trace, model and fleet: the planned rate starts at the trace's busiest minute and moves until the plan is the
smallest that keeps its promises in a replay of the whole trace (a burst is no Poisson stream: how much rate it is
worth, only a replay says). Beside it the smallest count found by search: every tensor parallelism that fits, with the
planner's caps for it, and as many replicas as it takes. Promised: the plan survives and has at most 15% more GPUs.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

from planner.candidates.replica import pool_spec
from planner.errors import UserError
from planner.intent.resolve import Words
from planner.intent.traces import TraceSummary, summarise_file
from planner.pipeline import ask, make_plan
from planner.pipeline.question import question_of
from planner.pipeline.replay import candidate_of, replay
from planner.plan.document import Plan
from planner.simulate.run import SimPool, SimSpec
from planner.simulate.sizing import smallest_pool

WHOLE = 10**9
TRACES = {
    "azure2023_conv": ("itl.p99=100ms", "ttft.p99=2s"),
    "azure2023_code": ("itl.p99=100ms", "ttft.p99=3s"),
    "mooncake_conversation": ("itl.p99=100ms", "ttft.p95=10s"),
}
MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct")
FLEETS = ("h100", "h200")
SHAPES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Case:
    trace: Path
    model: str
    fleet: Path
    slo: tuple[str, ...]
    verify: bool = True

    def plan(self, rate_per_s: float, *, tp: int | None = None) -> Plan | None:
        words = Words(
            model=self.model,
            trace=str(self.trace),
            rate=f"{rate_per_s:.4f}/s",
            slo=self.slo,
            tp=tp,
            objective="gpus",
            target="none",
        )
        try:
            return make_plan(ask(fleet=self.fleet, words=words), verify=self.verify)
        except UserError:
            return None

    def survives(self, plan: Plan) -> bool:
        found = replay(plan, trace=self.trace, requests=WHOLE)
        return all(v.holds for r in found for v in r.verdicts) and all(not r.result.books.rejected for r in found)


def gpus(plan: Plan) -> int:
    return sum(p.replicas * p.gpus_per_replica for s in plan.services for p in s.pools)


def smallest_plan(case: Case, summary: TraceSummary) -> tuple[Plan, float] | None:
    """The smallest plan that survives, by the rate it is made for: from the busiest minute up or down."""
    assert summary.rate_per_s is not None
    plans: dict[float, Plan | None] = {}
    kept: dict[str, bool] = {}

    def holds(rate: float) -> bool:
        plan = plans.setdefault(rate, case.plan(rate))
        if plan is None:
            return False
        key = shape_of(plan)
        if key not in kept:
            kept[key] = case.survives(plan)
        return kept[key]

    low, high = summary.rate_per_s / 4, summary.rate_per_s * summary.peak_to_mean["60s"]
    while not holds(high):
        if plans[high] is None:
            # The fleet ends before: the largest rate it can be asked for.
            for _ in range(5):
                mid = (low + high) / 2
                plans[mid] = case.plan(mid)
                low, high = (mid, high) if plans[mid] is not None else (low, mid)
            if not holds(low):
                return None
            low, high = summary.rate_per_s / 4, low
            break
        low, high = high, high * 1.5
    for _ in range(5):
        mid = (low * high) ** 0.5
        low, high = (low, mid) if holds(mid) else (mid, high)
        if plans.get(low) is not None and shape_of(plans[low]) == shape_of(plans[high]):
            break
    plan = plans[high]
    assert plan is not None
    return plan, high


def shape_of(plan: Plan | None) -> str:
    assert plan is not None
    return ", ".join(
        f"{p.replicas} x {p.gpus_per_replica} B={p.max_num_batched_tokens} N={p.max_num_seqs}"
        for s in plan.services
        for p in s.pools
    )


def smallest_found(case: Case, summary: TraceSummary, most_gpus: int) -> tuple[int, str] | None:
    """Every tensor parallelism that fits, with the planner's caps at the mean rate: as few replicas as survive."""
    assert summary.rate_per_s is not None
    best: tuple[int, str] | None = None
    for tp in SHAPES:
        plan = next(
            (p for share in (1.0, 0.5, 0.2) if (p := case.plan(share * summary.rate_per_s, tp=tp)) is not None), None
        )
        if plan is None:
            continue
        service = plan.services[0]
        pool = service.pools[0]
        asked = question_of(plan).asks[0]
        spec = SimSpec(
            (SimPool(pool.name, pool_spec(asked, candidate_of(plan, service, pool)), 1, "least-loaded"),),
            tuple(replace(c, slos=asked.slos_of(c.name)) for c in asked.classes),
            requests=WHOLE,
            trace=case.trace,
        )
        each = pool.gpus_per_replica
        most = (best[0] - 1 if best is not None else most_gpus) // each
        count = smallest_pool(spec, start=max(1, most // 4), most=most) if most else None
        if count is not None and (best is None or count * each < best[0]):
            best = count * each, f"{count} x {each} GPUs, tp{tp}"
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--traces", type=Path, required=True, help="folder with the trace files")
    parser.add_argument("--fleets", type=Path, default=Path("fleets"))
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--no-verify", action="store_true", help="plan in closed form alone")
    args = parser.parse_args()
    for name, slo in TRACES.items():
        summary = summarise_file(args.traces / f"{name}.csv")
        for model in MODELS:
            for fleet in FLEETS:
                words = f"{name} {model.split('/')[1]} {fleet}"
                if args.only not in words:
                    continue
                start = time.perf_counter()
                case = Case(args.traces / f"{name}.csv", model, args.fleets / f"{fleet}.yaml", slo, not args.no_verify)
                planned = smallest_plan(case, summary)
                found = smallest_found(case, summary, most_gpus=32)
                took = f"({time.perf_counter() - start:.0f} s)"
                if planned is None:
                    print(f"{words}: no plan survives; search: {found or 'nothing either'} {took}", flush=True)
                    continue
                plan, rate = planned
                line = f"{words}: {gpus(plan)} GPUs ({shape_of(plan)}), planned for {rate:.2f}/s"
                if found is not None:
                    line += f"; search found {found[0]} ({found[1]}): {100 * (gpus(plan) / found[0] - 1):+.0f}%"
                print(line, took, flush=True)


if __name__ == "__main__":
    main()
