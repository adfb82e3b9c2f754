"""Real traces planned end to end, and the plans replayed under the same traces.

    python -m benchmarks.traces --traces DIR [--only TEXT] [--no-search]

For each trace, model and fleet: the plan that `plan --trace FILE --slo ...` makes, replayed under the whole trace, and
the smallest GPU count that survives it, found by search: every tensor parallelism that fits, several caps of each, as
few replicas as keep every limit (without the headroom that a plan keeps for the step times' own error). Promised: the
plan survives and has at most 15% more GPUs. Fleets are given
as many nodes as it takes, so that each case has an answer.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from planner.candidates import candidates
from planner.candidates.candidate import Candidate
from planner.errors import UserError
from planner.intent.resolve import Words
from planner.pipeline import ask, make_plan
from planner.pipeline.bursts import SHARES, tighter
from planner.pipeline.lift import without_first
from planner.pipeline.question import Question
from planner.pipeline.replay import replay
from planner.pipeline.traces import traces_of
from planner.pipeline.verify import unit_spec
from planner.plan.document import Plan
from planner.plan.solution import ChosenPool
from planner.simulate.sizing import smallest_count, survives

TRACES = {
    "azure2023_conv": ("itl.p99=100ms", "ttft.p99=2s"),
    "azure2023_code": ("itl.p99=100ms", "ttft.p99=3s"),
    "mooncake_conversation": ("itl.p99=100ms", "ttft.p95=10s"),
}
MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct")
FLEETS = ("h100", "h200")
NODES = 8
BUDGETS = (512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Case:
    trace: Path
    model: str
    fleet: Path
    slo: tuple[str, ...]

    def question(self) -> Question:
        words = Words(model=self.model, trace=str(self.trace), slo=self.slo, objective="gpus", target="none")
        return ask(fleet=self.fleet, words=words)

    def plan(self) -> Plan | None:
        try:
            return make_plan(self.question())
        except UserError as e:
            print(e)
            return None


def shape_of(plan: Plan) -> str:
    return ", ".join(
        f"{p.replicas} x tp{p.shape.tp} B={p.max_num_batched_tokens} N={p.max_num_seqs}"
        for s in plan.services
        for p in s.pools
    )


def smallest_found(case: Case) -> tuple[int, str] | None:
    """Layouts by GPUs, each with the caps that the planner knows and a grid of budgets."""
    question = case.question()
    asked = question.asks[0]
    traces = traces_of(question, asked, dict(asked.rates))
    best: tuple[int, str] | None = None
    for c in sorted(_tried(question), key=lambda c: (c.gpus, c.key)):

        def holds(n: int, c: Candidate = c) -> bool:
            pool = ChosenPool(c, n, asked.rate_of(c.class_names), ())
            return survives(unit_spec(asked, (pool,), traces=traces))[0]

        most = (best[0] - 1 if best is not None else NODES * 8) // c.gpus
        # A candidate that is not better at the most it may take needs one replay.
        count = (
            smallest_count(holds, start=most if best is not None else max(1, most // 4), most=most) if most else None
        )
        if count is not None:
            best = count * c.gpus, f"{count} x {c.deployment.shape.label} B={c.caps.max_num_batched_tokens}"
    return best


def _tried(question: Question) -> list[Candidate]:
    asked = question.asks[0]
    found: dict[str, Candidate] = {}
    for share in SHARES:
        for c in candidates(tighter(without_first(asked), share)):
            if c.role == "aggregated" and not c.rejected_by and c.load.planned_rps > 0:
                found.setdefault(c.key, c)
    by_layout: dict[object, Candidate] = {}
    for c in sorted(found.values(), key=lambda c: -c.load.planned_rps):
        by_layout.setdefault(c.deployment.shape, c)
    for c in by_layout.values():
        for budget in BUDGETS:
            caps = replace(c.caps, max_num_batched_tokens=budget)
            found.setdefault(f"{c.deployment.shape.label} {budget}", replace(c, caps=caps))
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--traces", type=Path, required=True, help="folder with the trace files")
    parser.add_argument("--fleets", type=Path, default=Path("fleets"))
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--no-search", action="store_true", help="plan and replay alone")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, slo in TRACES.items():
            for model in MODELS:
                for fleet in FLEETS:
                    words = f"{name} {model.split('/')[1]} {fleet}"
                    if args.only in words:
                        wide = _wide(args.fleets / f"{fleet}.yaml", Path(folder))
                        print(f"{words}: {_one(Case(args.traces / f'{name}.csv', model, wide, slo), args)}", flush=True)


def _wide(fleet: Path, folder: Path) -> Path:
    """The fleet with as many nodes as any case takes."""
    data = yaml.safe_load(fleet.read_text())
    for pool in data["pools"]:
        pool["nodes"] = NODES
    path = folder / fleet.name
    path.write_text(yaml.safe_dump(data))
    return path


def _one(case: Case, args: argparse.Namespace) -> str:
    start = time.perf_counter()
    plan = case.plan()
    took = time.perf_counter() - start
    if plan is None:
        return f"no plan ({took:.0f} s)"
    (seen,) = replay(plan, trace=case.trace)
    kept = ", ".join(
        f"{v.slo.key} {1e3 * v.simulated_s:.0f} of {1e3 * v.slo.limit_s:.0f} ms{'' if v.holds else ' BROKEN'}"
        for v in seen.verdicts
    )
    line = f"{plan.totals.gpus} GPUs ({shape_of(plan)}) in {took:.0f} s; replayed: {kept}"
    if args.no_search:
        return line
    found = smallest_found(case)
    if found is not None:
        line += f"; search found {found[0]} ({found[1]}): {100 * (plan.totals.gpus / found[0] - 1):+.0f}%"
    return line


if __name__ == "__main__":
    main()
