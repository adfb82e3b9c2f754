"""Plan every model of the catalogue on a fleet that can hold it, and check each rendered command.

    python benchmarks/every_model.py [NAME...]

Prints one line per model: the plan, or the reason why there is none. Exits 1 where a plan's files are refused.
"""

from __future__ import annotations

import sys
import time

from planner.catalog.models import models
from planner.errors import Exit, UserError
from planner.intent.document import Intent
from planner.intent.fleet import Fleet, Pool, Price
from planner.intent.platform import Platform
from planner.pipeline import make_plan
from planner.pipeline.question import question_from
from planner.render import render

PRICE = Price(per_gpu_hour=3.0, source="made up: only shapes matter here", as_of="2026-11")
FLEET = Fleet(
    name="large",
    pools=(
        Pool(name="h200", gpu="h200-sxm", nodes=32, nic=50e9, rdma=True, price=PRICE),
        Pool(name="b300", gpu="b300-sxm", nodes=16, nic=100e9, rdma=True, price=PRICE),
    ),
)


def intent(model: str) -> Intent:
    """A small question that any server of the model must answer."""
    return Intent.model_validate(
        {
            "services": [
                {
                    "name": "service",
                    "model": model,
                    "slo": {"itl.mean": "200ms", "ttft.p95": "20s"},
                    "traffic": [{"rate": "0.5/s", "input": 1000, "output": 200}],
                }
            ]
        }
    )


def main() -> int:
    names = sys.argv[1:] or sorted(models())
    planned = refused = broken = 0
    for name in names:
        start = time.perf_counter()
        try:
            plan = make_plan(question_from(intent(name), FLEET, Platform()), verify=False)
            files = render(plan)
        except UserError as e:
            refused += e.exit_code in (Exit.INPUT, Exit.NO_PLAN)
            print(f"refused  {name}: {e.code}: {e.message}" + "".join(f" | {n}" for n in (*e.notes, *e.helps)[:2]))
            continue
        except Exception as e:  # noqa: BLE001 - a bug in one model must not hide the others'
            broken += 1
            print(f"BROKEN   {name}: {type(e).__name__}: {str(e)[:300]}")
            continue
        planned += 1
        pool = plan.services[0].pools[0]
        print(
            f"planned  {name}: {pool.gpus} x {pool.gpu} tp{pool.shape.tp} pp{pool.shape.pp} dp{pool.shape.dp}"
            f"{' ep' if pool.shape.ep else ''} {plan.services[0].model.precision}, {len(files)} files, "
            f"{time.perf_counter() - start:.1f} s"
        )
    print(f"{planned} planned, {refused} refused with a reason, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
