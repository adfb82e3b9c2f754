"""A running deployment as the baseline of a plan: what the solver compares a new answer with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.assess.found import Found
from planner.assess.judge import service_of
from planner.assess.resolve import resolve
from planner.errors import UserError
from planner.intent.document import Intent
from planner.intent.fleet import Fleet


@dataclass(frozen=True, slots=True)
class RunningPool:
    """Replicas that run today, in the solver's terms."""

    service: str
    key: str
    """As a candidate of the same decisions is called."""
    replicas: int
    gpus_per_replica: int


def as_baseline(found: Sequence[Found], *, intent: Intent, fleet: Fleet) -> tuple[RunningPool, ...]:
    """Deployments that serve the intent's services; UserError where one of them cannot be placed."""
    result = []
    for f in found:
        service = service_of(f, intent)
        if service is None:
            continue
        try:
            r = resolve(f, service=service, fleet=fleet, gpu=None)
        except UserError as e:
            raise UserError(e.code, f"{f.place}: {e.message}", e.where, e.notes, e.helps) from e
        if f.replicas is None:
            raise UserError(
                "unknown-replicas", f"{f.place}: the number of replicas is not said", None, (),
                ("put replicas into the manifest, or name a plan as the baseline",),
            )  # fmt: skip
        d, caps = r.deployment, r.caps
        key = (
            f"{r.pool.name} {d.hardware.gpu_id} {d.shape.label} {d.precision} kv-{d.kv_dtype} "
            f"b{caps.max_num_batched_tokens} s{caps.max_num_seqs} {d.role}"
        )
        result.append(RunningPool(service.name, key, f.replicas * r.copies, d.shape.gpus))
    return tuple(result)
