"""Deployments under their service's traffic: what users see, which promise breaks, and what would mend it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.assess.found import Found
from planner.assess.judged import Finding, Judged, Predicted
from planner.assess.resolve import Resolved
from planner.candidates.handover import handover_between
from planner.candidates.margins import band_of
from planner.candidates.replica import calibration_of, memory_of, spec_of
from planner.errors import UserError
from planner.intent.document import Service
from planner.perf.caps import BUDGETS
from planner.perf.load import LoadModel
from planner.perf.memory import Memory
from planner.perf.pair import PairModel
from planner.perf.spread import ClassFigures
from planner.units import show_rate, show_time

SHOWN = ("ttft.p95", "ttft.p99", "itl.p99", "itl.mean", "e2e.p95")
"""Figures told without a promise."""


@dataclass(frozen=True, slots=True)
class Run:
    """One deployment ready for questions about load."""

    found: Found
    resolved: Resolved
    memory: Memory
    model: LoadModel
    instances: int | None


def loaded(service: Service, runs: dict[int, Run], judged: dict[int, Judged]) -> dict[int, Judged]:
    """Figures of one service's deployments under its traffic."""
    found: dict[int, Judged] = {}
    rate = sum(c.rate for c in service.traffic if c.rate is not None) if service.traffic[0].rate is not None else None
    together = {i: r for i, r in runs.items() if r.found.role == "aggregated"}
    known = {i: r for i, r in together.items() if r.instances}
    total = sum(r.model.lambda_max * (r.instances or 0) for r in known.values())
    for i, run in together.items():
        share = (
            rate * run.model.lambda_max * (run.instances or 0) / total
            if rate is not None and total and i in known
            else None
        )
        found[i] = _aggregated(service, run, judged[i], share)
    prefill = [i for i, r in runs.items() if r.found.role == "prefill"]
    decode = [i for i, r in runs.items() if r.found.role == "decode"]
    if len(prefill) == 1 and len(decode) == 1:
        p, d = prefill[0], decode[0]
        sides = (_Side(runs[p], judged[p], ("ttft",)), _Side(runs[d], judged[d], ("itl", "tpot", "e2e", "ttfa")))
        found |= dict(zip((p, d), _apart(service, *sides, rate), strict=True))
    elif prefill or decode:
        message = f"{len(prefill)} prefill and {len(decode)} decode deployments: figures need one of each"
        for i in (*prefill, *decode):
            found[i] = replace(judged[i], findings=(*judged[i].findings, Finding("unknown", "", message)))
    return found


def _figures(
    run: Run, classes: Sequence[ClassFigures], metrics: tuple[str, ...] | None = None
) -> tuple[Predicted, ...]:
    promised = {(c.name, s.key): s.limit_s for c in run.model.classes for s in c.slos}
    calibration = calibration_of(run.resolved.deployment)
    found = []
    for c in classes:
        keys = dict.fromkeys([*(k for n, k in promised if n == c.name), *SHOWN])
        for key in keys:
            metric, _, stat = key.partition(".")
            spread = getattr(c, metric, None)
            if spread is None or (metrics is not None and metric not in metrics):
                continue
            value, limit = spread.stat(stat), promised.get((c.name, key))
            if not math.isfinite(value):
                continue
            low, high = band_of(run.resolved.ask, calibration, metric)
            found.append(Predicted(c.name, key, value, value * low, value * high, limit, spread.method))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Offered:
    """What one deployment is asked to carry."""

    rate_rps: float | None
    """Over all instances; None where the intent gives no rate."""
    each_rps: float
    """One instance's share, or what it could be planned for."""
    planned_rps: float
    """The most one instance carries within its promises and the load cap."""


def _aggregated(service: Service, run: Run, judged: Judged, rate: float | None) -> Judged:
    capacity = run.model.capacity(load_cap=service.load_cap)
    most, instances = run.model.lambda_max, run.instances or 1
    each = rate / instances if rate is not None else capacity.planned_per_s
    offered = _Offered(rate, each or most * _IDLE, capacity.planned_per_s)
    findings = list(judged.findings)
    figures: tuple[Predicted, ...] = ()
    if rate is not None and each >= most * 0.999:
        findings.append(_overloaded(rate, instances, most, capacity.planned_per_s or service.load_cap * most))
    else:
        result = run.model.evaluate(offered.each_rps)
        figures = _figures(run, result.classes)
        findings += _misses(run, figures, offered)
        if not any(not f.holds for f in figures) and rate is not None and each > service.load_cap * most:
            findings.append(
                Finding("warns", "replicas", f"load {each / most:.0%}, above the cap of {service.load_cap:.0%}")
            )
        if result.preemption_ratio > 0.01:
            message = f"the cache is short {result.preemption_ratio:.0%} of the time: running requests are preempted"
            findings.append(Finding("warns", judged.found.flag_of("max_num_seqs"), message))
    return replace(
        judged,
        kv_sequences=run.memory.max_sequences(run.model.context),
        capacity_rps=most * instances,
        within_slo_rps=capacity.planned_per_s * instances,
        rate_rps=rate,
        load=None if rate is None else each / most,
        figures=figures,
        findings=tuple(findings),
    )


_IDLE = 1e-3
"""Share of lambda_max at which nothing queues: the best a deployment can show."""


def _overloaded(rate: float, instances: int, most: float, planned: float) -> Finding:
    message = (
        f"{show_rate(rate)} offered, {instances} {_replicas(instances)} at most {show_rate(most * instances)}: "
        "the queue grows without end, TTFT has no steady state"
    )
    needed = math.ceil(rate / max(planned, 1e-9))
    return Finding("breaks", "replicas", message, f"{needed} replicas of this kind would carry it")


def _replicas(count: int) -> str:
    return "replica carries" if count == 1 else "replicas carry"


def _misses(run: Run, figures: Sequence[Predicted], offered: _Offered) -> list[Finding]:
    """Each broken promise; the first names the flag that would mend it, where one would."""
    broken = [f for f in figures if not f.holds]
    if not broken:
        return []
    fix, flag = _remedy(run, broken, offered)
    return [Finding("breaks", flag, _broken(f), "" if n else fix) for n, f in enumerate(broken)]


def _broken(f: Predicted) -> str:
    name = f"{f.class_name} {f.metric}" if f.class_name != "default" else f.metric
    return f"{name} {show_time(f.value_s)}, limit {show_time(f.limit_s or 0.0)}"


def _remedy(run: Run, broken: Sequence[Predicted], offered: _Offered) -> tuple[str, str]:
    """(what would hold, the flag it is about): another token budget, fewer sequences, more replicas, or nothing."""
    caps = run.resolved.caps
    flag = f"{run.found.flag_of('max_num_batched_tokens')} {caps.max_num_batched_tokens}"
    for budget in sorted((b for b in BUDGETS if b != caps.max_num_batched_tokens), reverse=True):
        tried = _with_caps(run, budget=budget, seqs=min(caps.max_num_seqs, budget))
        if tried is None or offered.each_rps >= tried.lambda_max * 0.999:
            continue
        figures = tried.evaluate(offered.each_rps).classes
        if _holds(tried, figures):
            shown = ", ".join(f"{f.metric} {show_time(_value(figures, f))}" for f in broken[:2])
            return f"{budget} gives {shown}", flag
    if offered.planned_rps > 0 and offered.rate_rps is not None:
        needed = math.ceil(offered.rate_rps / offered.planned_rps)
        return f"{needed} replicas of this kind would hold it", "replicas"
    return "no token budget and no number of replicas of this layout holds it", flag


def _value(figures: Sequence[ClassFigures], wanted: Predicted) -> float:
    metric, _, stat = wanted.metric.partition(".")
    mine = next(c for c in figures if c.name == wanted.class_name)
    spread = getattr(mine, metric)
    return float(spread.stat(stat)) if spread is not None else math.inf


def _holds(model: LoadModel, figures: Sequence[ClassFigures]) -> bool:
    limits = {(c.name, s): s.limit_s for c in model.classes for s in c.slos}
    return all(c.value(s) <= limit for (n, s), limit in limits.items() for c in figures if c.name == n)


def _with_caps(run: Run, *, budget: int, seqs: int) -> LoadModel | None:
    r = run.resolved
    m = memory_of(
        r.deployment, budget=budget, seqs=seqs, max_model_len=r.caps.max_model_len, utilization=run.found.memory_ratio
    )
    if not m.fits:
        return None
    spec = spec_of(r.ask, r.deployment, m, budget=budget, seqs=seqs, replicas=run.model.pool.replicas)
    return LoadModel(spec, run.model.classes)


@dataclass(frozen=True, slots=True)
class _Side:
    """Prefill or decode of a pair."""

    run: Run
    judged: Judged
    metrics: tuple[str, ...]


def _apart(service: Service, prefill: _Side, decode: _Side, rate: float | None) -> tuple[Judged, ...]:
    """Prefill and decode apart: TTFT is told by the prefill side, the rest by the decode side."""
    sides = (prefill, decode)
    try:
        handover = handover_between(prefill.run.resolved.deployment, decode.run.resolved.deployment)
    except UserError as e:
        more = Finding("fails", "", e.message, "; ".join(e.helps))
        return tuple(replace(s.judged, starts=False, findings=(*s.judged.findings, more)) for s in sides)
    pair = PairModel(prefill.run.model.pool, decode.run.model.pool, handover, prefill.run.model.classes)
    most = (pair.prefill_max_per_s, pair.decode.lambda_max)
    each = [None if rate is None or not s.run.instances else rate / s.run.instances for s in sides]
    figures: Sequence[ClassFigures] = ()
    if each[0] is not None and each[1] is not None and each[0] < most[0] * 0.999 and each[1] < most[1] * 0.999:
        figures = pair.evaluate(each[0], each[1]).classes
    result = []
    for side, per, limit in zip(sides, each, most, strict=True):
        findings, told = list(side.judged.findings), _figures(side.run, figures, side.metrics)
        instances = side.run.instances or 1
        if rate is not None and per is not None and per >= limit * 0.999:
            findings.append(_overloaded(rate, instances, limit, service.load_cap * limit))
        findings += [Finding("breaks", "", _broken(f)) for f in told if not f.holds]
        result.append(
            replace(
                side.judged,
                kv_sequences=side.run.memory.max_sequences(side.run.model.context),
                capacity_rps=limit * instances,
                rate_rps=rate,
                load=None if per is None else per / limit,
                figures=told,
                findings=tuple(findings),
            )
        )
    return tuple(result)
