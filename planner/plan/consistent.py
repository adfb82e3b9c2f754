"""Whether a plan agrees with itself: an edited plan.yaml is refused where it is read, by whichever command reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from planner.catalog.gpus import find_gpu
from planner.documents import Document
from planner.errors import UserError, did_you_mean
from planner.intent.fleet import Pool
from planner.plan.document import Plan, PoolDoc

Steps = tuple[str | int, ...]
_HELP = "plan.yaml is generated: change the intent and run `plan` again"


def check_consistent(plan: Plan, document: Document) -> None:
    """UserError at the first value that contradicts another one."""
    for path, message, helps in _contradictions(plan):
        raise UserError("plan-inconsistent", message, document.where(path), (), (*helps, _HELP))


def _contradictions(plan: Plan) -> Iterator[tuple[Steps, str, tuple[str, ...]]]:
    asked = {s.name: s for s in plan.intent.services}
    fleet = {p.name: p for p in plan.fleet.pools}
    pools: set[str] = set()
    for i, service in enumerate(plan.services):
        at: Steps = ("services", i)
        if service.name not in asked:
            yield (*at, "name"), f"the plan's intent has no service {service.name!r}", did_you_mean(service.name, asked)
            continue
        if service.name in {s.name for s in plan.services[:i]}:
            yield (*at, "name"), f"service {service.name!r} stands twice", ()
        if not service.pools:
            yield (*at, "pools"), f"service {service.name!r} has no pools", ()
        classes = [c.name for c in asked[service.name].traffic]
        for j, pool in enumerate(service.pools):
            here: Steps = (*at, "pools", j)
            if pool.name in pools:
                yield (*here, "name"), f"pool {pool.name!r} stands twice", ()
            pools.add(pool.name)
            if pool.fleet_pool not in fleet:
                helps = did_you_mean(pool.fleet_pool, fleet)
                yield (*here, "fleet_pool"), f"the plan's fleet has no pool {pool.fleet_pool!r}", helps
                continue
            for path, message in _layout(pool, fleet[pool.fleet_pool]):
                yield (*here, *path), f"pool {pool.name!r}: {message}", ()
            for k, c in enumerate(pool.classes):
                if c.name not in classes:
                    message = f"service {service.name!r} has no traffic class {c.name!r}"
                    yield (*here, "classes", k, "name"), message, did_you_mean(c.name, classes)
    for name in asked:
        if name not in {s.name for s in plan.services}:
            yield ("services",), f"the intent's service {name!r} has no answer", ()
    yield from _sums(plan)


def _layout(pool: PoolDoc, at: Pool) -> Iterator[tuple[Steps, str]]:
    s = pool.shape
    if min(s.tp, s.pp, s.dp, pool.replicas, pool.gpus_per_replica, pool.nodes_per_replica) < 1:
        yield ("shape",), "a layout of less than one GPU"
        return
    if s.tp * s.pp * s.dp != pool.gpus_per_replica:
        yield (
            ("gpus_per_replica",),
            f"tp {s.tp} x pp {s.pp} x dp {s.dp} is {s.tp * s.pp * s.dp} GPUs, not {pool.gpus_per_replica}",
        )
    if pool.gpus_per_replica * pool.replicas != pool.gpus:
        made = pool.gpus_per_replica * pool.replicas
        yield ("gpus",), f"{pool.replicas} replicas of {pool.gpus_per_replica} GPUs are {made} GPUs, not {pool.gpus}"
    if pool.gpu != at.gpu:
        yield ("gpu",), f"runs on {pool.gpu}, but fleet pool {at.name!r} holds {at.gpu}"
        return
    per_node, nodes = _per_node(at), pool.nodes_per_replica
    if pool.gpus_per_replica % nodes or pool.gpus_per_replica // nodes > per_node:
        message = f"{pool.gpus_per_replica} GPUs do not spread evenly over {nodes} nodes of {per_node}"
        yield ("nodes_per_replica",), message
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"):
        if getattr(pool, name) < 1:
            yield (name,), f"{name} is {getattr(pool, name)}"


def _sums(plan: Plan) -> Iterator[tuple[Steps, str, tuple[str, ...]]]:
    every = [p for s in plan.services for p in s.pools]
    total = sum(p.gpus for p in every)
    if plan.totals.gpus != total:
        yield ("totals", "gpus"), f"the pools have {total} GPUs, not {plan.totals.gpus}", ()
    for i, at in enumerate(plan.fleet.pools):
        used = _used(every, at.name)
        there = (at.nodes - at.reserved_nodes) * _per_node(at)
        if used > there:
            yield ("fleet", "pools", i), f"fleet pool {at.name!r} has {there} GPUs free; the plan uses {used}", ()


def _used(pools: Iterable[PoolDoc], name: str) -> int:
    return sum(p.gpus for p in pools if p.fleet_pool == name)


def _per_node(at: Pool) -> int:
    return at.gpus_per_node or find_gpu(at.gpu).node.gpus
