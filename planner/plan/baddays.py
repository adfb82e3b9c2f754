"""The bad days: what each service's load and promises look like when something goes wrong.

A node lost while its replicas reload, a rollout, both, cold prefix caches, 1.5 times the traffic, outlier prompts,
a step 20% slower than predicted. No day changes the plan; each says whether the promises still hold and by how much
they miss. In closed form, except for pools whose promises only the simulation vouches for: what it says of their days
is handed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.candidates import pool_spec
from planner.candidates.ask import Ask
from planner.errors import UserError
from planner.intent.slo import Slo
from planner.perf.lengths import Constant
from planner.perf.load import LoadModel, LoadResult
from planner.perf.pool import PoolSpec
from planner.perf.table import Curve, StepTable
from planner.perf.traffic import ClassLoad, JointLengths
from planner.plan.document import BadDay
from planner.plan.pools import per_node, pool_classes, pool_name
from planner.plan.solution import ChosenPool, Solution
from planner.plan.text import sig
from planner.units import show_time

METHOD = "closed form"

Day = tuple[str, str, str]
"""Service, pool, name of the day."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a simulation says of one day."""

    misses: tuple[str, ...]
    method: str


@dataclass(frozen=True, slots=True)
class Running:
    """One pool as it runs: enough to ask what happens to it."""

    service: str
    pool: str
    spec: PoolSpec
    classes: tuple[ClassLoad, ...]
    """At the rate of the whole pool."""
    replicas: int
    lost_with_node: int
    """Replicas that one node can hold."""
    reload_s: float
    """Time until a lost replica serves again."""
    max_model_len: int
    surge: bool
    """Whether spare GPUs let a rollout start the new replica before it stops the old one."""


def running_pools(asks: Mapping[str, Ask], solution: Solution) -> Iterator[tuple[ChosenPool, Running]]:
    """The pools of a solution as they run."""
    used: dict[str, int] = {}
    for service in solution.services:
        for p in service.pools:
            used[p.candidate.fleet_pool] = used.get(p.candidate.fleet_pool, 0) + p.candidate.gpus * p.replicas
    for service in solution.services:
        ask = asks[service.name]
        for i, chosen in enumerate(service.pools):
            c = chosen.candidate
            pool = ask.pool(c.fleet_pool)
            node = per_node(pool)
            yield (
                chosen,
                Running(
                    service=service.name,
                    pool=pool_name(service, chosen, i),
                    spec=pool_spec(ask, c),
                    classes=pool_classes(ask, chosen),
                    replicas=chosen.replicas,
                    lost_with_node=max(1, min(chosen.replicas, node // c.gpus)),
                    reload_s=c.memory.weights_bytes * min(c.gpus, node) / pool.storage_bandwidth + 60.0,
                    max_model_len=c.caps.max_model_len,
                    surge=(pool.nodes - pool.reserved_nodes) * node - used[c.fleet_pool] >= c.gpus,
                ),
            )


@dataclass(frozen=True, slots=True)
class Situation:
    """What runs on a bad day."""

    spec: PoolSpec
    classes: tuple[ClassLoad, ...]
    """At the rate of the whole pool."""
    replicas: int


def situations(pool: Running) -> Iterator[tuple[str, Situation]]:
    """Every day on which something of the pool is left, with what runs then."""
    for name, ask in DAYS:
        there = ask(pool)
        if there is not None and there.replicas > 0:
            yield name, there


def bad_days(pools: Sequence[Running], seen: Mapping[Day, Seen]) -> tuple[BadDay, ...]:
    """Every day for every service with aggregated pools, the worst of them speaking for it."""
    found: list[BadDay] = []
    for name, ask in DAYS:
        for service in sorted({p.service for p in pools}):
            days = []
            for p in pools:
                there = ask(p) if p.service == service else None
                if there is not None:
                    day = closed_day(name, p, there)
                    told = seen.get((service, p.pool, name))
                    days.append(
                        day if told is None else day.model_copy(update={"misses": told.misses, "method": told.method})
                    )
            if days:
                found.append(max(days, key=lambda d: (len(d.misses), d.load)))
    return tuple(found)


def slower(table: StepTable, factor: float) -> StepTable:
    """The same engine with every step `factor` times as long."""

    def curve(c: Curve) -> Curve:
        return Curve(c.x, tuple(v * factor for v in c.y))

    return replace(
        table,
        linear_decode=curve(table.linear_decode),
        linear_mixed=curve(table.linear_mixed),
        decode_attention=tuple(curve(c) for c in table.decode_attention),
        prefill_attention=curve(table.prefill_attention),
        _cache={},
    )


def _fewer(pool: Running, lost: int) -> Situation:
    return Situation(pool.spec, pool.classes, max(pool.replicas - lost, 0))


def _node(pool: Running) -> Situation:
    return _fewer(pool, pool.lost_with_node)


def _rollout(pool: Running) -> Situation:
    return _fewer(pool, 0 if pool.surge else 1)


def _both(pool: Running) -> Situation:
    return _fewer(pool, pool.lost_with_node + (0 if pool.surge else 1))


def _cold(pool: Running) -> Situation | None:
    if not any(c.hits.share or c.hits.shared_tokens or c.hits.traced or c.has_sessions for c in pool.classes):
        return None
    return Situation(pool.spec, tuple(c.cold() for c in pool.classes), pool.replicas)


def _busy(pool: Running) -> Situation:
    return Situation(pool.spec, tuple(c.at(1.5 * c.rate_per_s) for c in pool.classes), pool.replicas)


def _outliers(pool: Running) -> Situation:
    """One request in fifty is as long as the service admits, its answer as long as the class's mean."""
    total = math.fsum(c.rate_per_s for c in pool.classes)
    answer = max(1.0, math.fsum(c.rate_per_s * c.lengths.output.mean for c in pool.classes) / total)
    longest = max(1, int(pool.max_model_len - answer))
    # Any class may send them: counted with what is served first.
    first = min(c.priority for c in pool.classes)
    extra = ClassLoad(
        "outliers", total * 0.02, JointLengths(Constant(float(longest)), Constant(float(round(answer)))), priority=first
    )
    rest = tuple(c.at(0.98 * c.rate_per_s) for c in pool.classes)
    return Situation(pool.spec, (*rest, extra), pool.replicas)


def _slow(pool: Running) -> Situation:
    return Situation(replace(pool.spec, table=slower(pool.spec.table, 1.2)), pool.classes, pool.replicas)


DAYS: tuple[tuple[str, Callable[[Running], Situation | None]], ...] = (
    ("a node lost, its replicas reloading", _node),
    ("a rollout, replica by replica", _rollout),
    ("a rollout while a node is lost", _both),
    ("cold prefix caches", _cold),
    ("1.5x traffic", _busy),
    ("2% of prompts as long as admitted", _outliers),
    ("steps 20% slower than predicted", _slow),
)


def closed_day(name: str, pool: Running, there: Situation) -> BadDay:
    """One day of one pool."""

    def said(load: float, *misses: str) -> BadDay:
        return BadDay(name=name, service=pool.service, load=load, misses=misses, method=METHOD)

    if there.replicas < 1:
        return said(0.0, f"every SLO: no replica is left until one reloads ({show_time(sig(pool.reload_s))})")
    try:
        spec = replace(there.spec, replicas=there.replicas)
        model = LoadModel(spec, tuple(c.at(c.rate_per_s / there.replicas) for c in there.classes))
    except UserError as e:
        return said(0.0, e.message)
    rate = math.fsum(c.rate_per_s for c in there.classes) / there.replicas
    result = model.evaluate(rate)
    load = rate / model.lambda_max if model.lambda_max > 0 else math.inf
    if not result.stable or load >= 1:
        what = f"overload, {load:.0%} of what {_count(there.replicas)} can do, the queue grows"
        return said(sig(min(load, 99.0)), f"every SLO: {what}")
    return said(sig(load), *_misses(result, there.classes))


def _count(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"


def _misses(result: LoadResult, classes: Sequence[ClassLoad]) -> tuple[str, ...]:
    found = []
    for c in classes:
        figures = next(f for f in result.classes if f.name == c.name)
        found += [missed(c.name, s, figures.value(s)) for s in c.slos if figures.value(s) > s.limit_s]
    return tuple(found)


def missed(class_name: str, slo: Slo, value_s: float) -> str:
    """A promise that does not hold, with its figure."""
    who = f"{class_name} " if class_name != "default" else ""
    value = show_time(sig(value_s)) if math.isfinite(value_s) else "never"
    return f"{who}{slo.metric.upper()} {slo.stat} {value} (limit {show_time(slo.limit_s)})"
