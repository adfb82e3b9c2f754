"""Evidence for a plan, from the plan alone: its deployments found again in the catalogue, and their neighbours.

Neighbours are the layouts and precisions that the engine runs on the same GPU and that hold the service's longest
request, so that the explorer shows what else could have been chosen; the planned one comes first.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.candidates.ask import Ask
from planner.candidates.replica import arch_of, calibration_of, deployment_of, hardware_of, memory_of
from planner.candidates.shapes import shapes
from planner.perf.arch import Shape
from planner.perf.checkpoints import checkpoint_for
from planner.perf.deployment import Deployment
from planner.perf.memory import Memory
from planner.perf.rules import check_shape
from planner.plan.document import Plan, PoolDoc, ServiceDoc
from planner.plan.models import model_named
from planner.report.evidence import Evidence, PoolEvidence, pool_evidence

MOST_NEIGHBOURS = 12
"""Tables in the page per pool: a few kilobytes each."""


def build_evidence(plan: Plan) -> Evidence:
    """Step tables, sweep, roofline and frontier of every pool. Deterministic: the plan and the catalogue decide."""
    return Evidence(tuple(_pool(plan, s, p) for s in plan.services for p in s.pools))


def mean_context_tokens(pool: PoolDoc) -> float:
    """Context of a sequence caught while running: long answers are caught more often, half-way on average.

    For a prefill pool, the prompt.
    """
    if pool.role == "prefill":
        weights = [(c.rate, c.input_mean_tokens) for c in pool.classes]
    else:
        weights = [
            (c.rate * c.output_mean_tokens, c.input_mean_tokens + c.output_mean_tokens / 2) for c in pool.classes
        ]
    total = sum(w for w, _ in weights)
    return sum(w * v for w, v in weights) / total if total else 1.0


def _pool(plan: Plan, service: ServiceDoc, pool: PoolDoc) -> PoolEvidence:
    asked = next(s for s in plan.intent.services if s.name == service.name)
    ask = Ask(asked, plan.fleet, model=model_named(plan, asked.model), engine_version=service.engine_version)
    planned = pool_deployment(ask, service, pool)
    every = [(planned, _memory(planned, pool)), *_neighbours(ask, planned, pool)]
    return pool_evidence(
        pool=pool.name,
        planned=planned,
        every=every[:MOST_NEIGHBOURS],
        calibration=calibration_of(planned),
        context_tokens=mean_context_tokens(pool),
        running=pool.running_mean,
        budget_tokens=pool.max_num_batched_tokens,
        cap_seqs=pool.max_num_seqs,
        role=pool.role,
    )


def pool_deployment(ask: Ask, service: ServiceDoc, pool: PoolDoc) -> Deployment:
    assert ask.model is not None
    s = pool.shape
    return deployment_of(
        ask,
        hardware_of(ask.pool(pool.fleet_pool)),
        checkpoint=checkpoint_for(ask.model, service.model.precision),
        kv_dtype=pool.kv_dtype,
        shape=Shape(s.tp, s.pp, s.dp, s.ep),
        role=pool.role,
    )


def _memory(d: Deployment, pool: PoolDoc) -> Memory:
    return memory_of(
        d,
        budget=pool.max_num_batched_tokens,
        seqs=pool.max_num_seqs,
        max_model_len=pool.max_model_len,
        utilization=pool.gpu_memory_utilization,
    )


def _neighbours(ask: Ask, planned: Deployment, pool: PoolDoc) -> Iterator[tuple[Deployment, Memory]]:
    """Other precisions and layouts on the same GPU: the planned precision's first."""
    assert ask.model is not None
    at = ask.pool(pool.fleet_pool)
    hw = hardware_of(at)
    most = (at.nodes - at.reserved_nodes) * hw.gpus_per_node
    precisions = dict.fromkeys(
        (planned.precision, ask.model.native.precision, *(c.precision for c in ask.model.checkpoints))
    )
    for precision in precisions:
        checkpoint = checkpoint_for(ask.model, precision)
        for shape in shapes(arch_of(ask.model), hw, pool_gpus=most):
            d = deployment_of(ask, hw, checkpoint=checkpoint, kv_dtype=pool.kv_dtype, shape=shape, role=pool.role)
            if (precision, shape) == (planned.precision, planned.shape) or check_shape(d):
                continue
            memory = _memory(d, pool)
            if memory.fits:
                yield d, memory
