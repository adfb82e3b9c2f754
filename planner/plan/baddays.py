"""The bad days: what each service's load and promises look like when something goes wrong, in closed form.

A node lost while its replicas reload, a rollout, both, cold prefix caches, 1.5 times the traffic, outlier prompts,
a step 20% slower than predicted. No day changes the plan; each says whether the promises still hold and by how much
they miss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.errors import UserError
from planner.perf.lengths import Constant
from planner.perf.load import LoadModel, LoadResult
from planner.perf.pool import PoolSpec
from planner.perf.table import Curve, StepTable
from planner.perf.traffic import ClassLoad, JointLengths
from planner.plan.document import BadDay
from planner.plan.text import sig
from planner.units import show_time

METHOD = "closed form"


@dataclass(frozen=True, slots=True)
class Running:
    """One aggregated pool as it runs: enough to ask what happens to it."""

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


def bad_days(pools: Sequence[Running]) -> tuple[BadDay, ...]:
    """Every day for every service, the worst pool of a service speaking for it."""
    found: list[BadDay] = []
    for name, ask in DAYS:
        for service in sorted({p.service for p in pools}):
            days = [d for p in pools if p.service == service for d in (ask(name, p),) if d is not None]
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


def _fewer(name: str, pool: Running, lost: int) -> BadDay | None:
    left = pool.replicas - lost
    if left < 1:
        reload = show_time(sig(pool.reload_s))
        return BadDay(
            name=name,
            service=pool.service,
            load=0.0,
            misses=(f"every SLO: no replica is left until one reloads ({reload})",),
            method=METHOD,
        )
    return _day(name, pool, pool.spec, pool.classes, left)


def _node(name: str, pool: Running) -> BadDay | None:
    return _fewer(name, pool, pool.lost_with_node)


def _rollout(name: str, pool: Running) -> BadDay | None:
    return _fewer(name, pool, 0 if pool.surge else 1)


def _both(name: str, pool: Running) -> BadDay | None:
    return _fewer(name, pool, pool.lost_with_node + (0 if pool.surge else 1))


def _cold(name: str, pool: Running) -> BadDay | None:
    if not any(c.hits.share or c.hits.shared_tokens or c.hits.traced for c in pool.classes):
        return None
    return _day(name, pool, pool.spec, tuple(c.cold() for c in pool.classes), pool.replicas)


def _busy(name: str, pool: Running) -> BadDay | None:
    return _day(name, pool, pool.spec, tuple(c.at(1.5 * c.rate_per_s) for c in pool.classes), pool.replicas)


def _outliers(name: str, pool: Running) -> BadDay | None:
    """One request in fifty is as long as the service admits, its answer as long as the class's mean."""
    total = math.fsum(c.rate_per_s for c in pool.classes)
    answer = max(1.0, math.fsum(c.rate_per_s * c.lengths.output.mean for c in pool.classes) / total)
    longest = max(1, int(pool.max_model_len - answer))
    extra = ClassLoad("outliers", total * 0.02, JointLengths(Constant(float(longest)), Constant(float(round(answer)))))
    rest = tuple(c.at(0.98 * c.rate_per_s) for c in pool.classes)
    return _day(name, pool, pool.spec, (*rest, extra), pool.replicas)


def _slow(name: str, pool: Running) -> BadDay | None:
    return _day(name, pool, replace(pool.spec, table=slower(pool.spec.table, 1.2)), pool.classes, pool.replicas)


DAYS = (
    ("a node lost, its replicas reloading", _node),
    ("a rollout, replica by replica", _rollout),
    ("a rollout while a node is lost", _both),
    ("cold prefix caches", _cold),
    ("1.5x traffic", _busy),
    ("2% of prompts as long as admitted", _outliers),
    ("steps 20% slower than predicted", _slow),
)


def _day(name: str, pool: Running, spec: PoolSpec, classes: tuple[ClassLoad, ...], replicas: int) -> BadDay:
    try:
        model = LoadModel(spec, tuple(c.at(c.rate_per_s / replicas) for c in classes))
    except UserError as e:
        return BadDay(name=name, service=pool.service, load=0.0, misses=(e.message,), method=METHOD)
    rate = math.fsum(c.rate_per_s for c in classes) / replicas
    result = model.evaluate(rate)
    load = rate / model.lambda_max if model.lambda_max > 0 else math.inf
    if not result.stable or load >= 1:
        return BadDay(
            name=name,
            service=pool.service,
            load=sig(min(load, 99.0)),
            misses=(f"every SLO: overload, {load:.0%} of what {_count(replicas)} can do, the queue grows",),
            method=METHOD,
        )
    return BadDay(name=name, service=pool.service, load=sig(load), misses=_misses(result, classes), method=METHOD)


def _count(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"


def _misses(result: LoadResult, classes: Sequence[ClassLoad]) -> tuple[str, ...]:
    found = []
    for c in classes:
        figures = next(f for f in result.classes if f.name == c.name)
        for slo in c.slos:
            value = figures.value(slo)
            if value > slo.limit_s:
                who = f"{c.name} " if c.name != "default" else ""
                found.append(
                    f"{who}{slo.metric.upper()} {slo.stat} {show_time(sig(value))} (limit {show_time(slo.limit_s)})"
                )
    return tuple(found)
