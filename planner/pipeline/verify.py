"""Checking an answer: one replica of each pool under thinned arrivals, in the event simulation.

A promise that fails beyond the simulation's confidence sends a cut back: the rate at which that candidate did hold,
found by trying lower ones. The plan prints both figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from planner.candidates import handover_of, pool_spec
from planner.candidates.ask import Ask
from planner.pipeline.question import Question
from planner.pipeline.traces import WHOLE, cut_short, replaying, share_of, traces_of
from planner.plan.baddays import Day, Seen
from planner.plan.pools import Occupancy, pool_classes
from planner.plan.solution import ChosenPool, ChosenService, Solution
from planner.simulate.run import (
    SimPool,
    SimResult,
    SimSpec,
    TraceReplay,
    Verdict,
    one_replica,
    simulate,
    verdicts,
)
from planner.simulate.sizing import smallest_count
from planner.solve.question import Cut, Lift
from planner.solve.scale import each_rps
from planner.units import show_time

REQUESTS = 4000
SEEDS = (1, 2)
# Shares of the planned rate that are tried until every promise holds.
LOWER = (0.92, 0.84, 0.72, 0.6, 0.4)


# Solve, simulate, send a cut back, solve again: at most so often.
MOST_ROUNDS = 3

Solve = Callable[[tuple[Cut, ...], tuple[Lift, ...], bool], Solution]
"""With these cuts, these lifts, and with or without explanations."""


@dataclass(frozen=True, slots=True)
class Check:
    """What the simulation said of one solution."""

    rounds: int = 0
    cuts: tuple[Cut, ...] = ()
    figures: dict[tuple[str, str, str, str], float] = field(default_factory=dict)
    """(service, pool candidate key, class, `itl.p99`) -> simulated seconds."""
    failed: tuple[str, ...] = ()
    """Promises that the simulation did not confirm, in words."""
    doubts: tuple[str, ...] = ()
    """Promises that it puts past their limit, but by less than its own confidence."""
    lifts: tuple[Lift, ...] = ()
    """What is planned for more than the closed form would have let it carry."""
    replayed: tuple[str, ...] = ()
    """Services whose trace was replayed."""
    short: tuple[str, ...] = ()
    """Of those: whose trace is so long that only its busiest stretch was."""
    running: Mapping[tuple[str, str], Occupancy] = field(default_factory=dict)
    """(service, pool candidate key) -> what its replicas held meanwhile."""
    days: Mapping[Day, Seen] = field(default_factory=dict)
    """Bad days as the simulation sees them, where the closed form does not vouch for a pool."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A solution, what the simulation said of it, and the cuts on the way."""

    solution: Solution
    checked: Check
    cuts: tuple[Cut, ...] = ()
    lifts: tuple[Lift, ...] = ()
    """All that the solver was given; `checked.lifts` are those that the solution needs."""


def settled(
    question: Question,
    solve: Solve,
    *,
    cuts: tuple[Cut, ...] = (),
    lifts: tuple[Lift, ...] = (),
    before: int = 0,
    progress: Callable[[str], None] = lambda _t: None,
) -> Settled:
    """Solve and check until nothing is cut, at most `MOST_ROUNDS` times; `before`: rounds that led here."""
    for number in range(1, MOST_ROUNDS + 1):
        solution = solve(cuts, lifts, True)
        progress(f"checking by simulation, round {before + number}")
        checked = check(question, solution, rounds=before + number)
        if not checked.cuts:
            break
        if number < MOST_ROUNDS:
            cuts = (*cuts, *checked.cuts)
    return Settled(solution, replace(checked, lifts=used(solution, lifts)), cuts, lifts)


def used(solution: Solution, lifts: Sequence[Lift]) -> tuple[Lift, ...]:
    """Lifts without which the solution's replicas would carry less than they are planned for."""
    return tuple(
        x
        for x in lifts
        for s in solution.services
        for p in s.pools
        if x.raises(p.candidate) and p.rate_rps / p.replicas > x.closed_rps
    )


def check(question: Question, solution: Solution, *, rounds: int) -> Check:
    """Simulate every pool of every service at its planned rate."""
    cuts: list[Cut] = []
    figures: dict[tuple[str, str, str, str], float] = {}
    failed: list[str] = []
    doubts: list[str] = []
    running: dict[tuple[str, str], Occupancy] = {}
    for service in solution.services:
        ask = next(a for a in question.asks if a.name == service.name)
        traces = traces_of(question, ask, {n: r * (solution.scale or 1.0) for n, r in ask.rates})
        for unit in units(service):
            result, found = _simulate(ask, unit, traces)
            for verdict in found:
                for pool in unit:
                    figures[service.name, pool.candidate.key, verdict.cls, verdict.slo.key] = verdict.simulated_s
            _unlimited(ask, service, unit, result, figures)
            if any(name in traces for name in unit[0].candidate.class_names):
                for pool, sample in zip(unit, result.pools, strict=True):
                    running[service.name, pool.candidate.key] = Occupancy(
                        sample.running_mean, sample.running_p99, sample.kv_p99_ratio
                    )
            broken = [v for v in found if fails(v, exact=exact(unit, traces))]
            words = [_words(service.name, v) for v in broken]
            doubts += [_words(service.name, v) for v in found if not v.holds and v not in broken]
            if not exact(unit, traces) and grows(result):
                words.append(f"{service.name}: the queue grows without end at the planned rate")
            if words:
                failed += words
                cuts += _cuts(ask, service, unit, traces)
    replays = {a.name: replaying(a, [n for n, _ in a.rates]) for a in question.asks}
    replayed = tuple(name for name, classes in replays.items() if classes)
    short = tuple(name for name, classes in replays.items() if any(cut_short(c) for c in classes))
    return Check(
        rounds, tuple(cuts), figures, tuple(failed), tuple(doubts), replayed=replayed, short=short, running=running
    )


def units(service: ChosenService) -> tuple[tuple[ChosenPool, ...], ...]:
    """Pools that are simulated together: each aggregated pool alone, prefill with its decode pool."""
    apart = [p for p in service.pools if p.candidate.role == "aggregated"]
    pairs: dict[tuple[str, ...], list[ChosenPool]] = {}
    for p in service.pools:
        if p.candidate.role != "aggregated":
            pairs.setdefault(p.candidate.class_names, []).append(p)
    found: list[tuple[ChosenPool, ...]] = [(p,) for p in apart]
    found += [tuple(sorted(both, key=lambda p: p.candidate.role, reverse=True)) for both in pairs.values()]
    return tuple(found)


def exact(unit: Sequence[ChosenPool], traces: Mapping[str, TraceReplay]) -> bool:
    """Whether nothing is drawn by chance: every class of the unit replays a trace."""
    return all(name in traces for name in unit[0].candidate.class_names)


def fails(verdict: Verdict, *, exact: bool) -> bool:
    """A promise that is broken: in a replay at all, else beyond the simulation's confidence."""
    return not verdict.holds if exact else verdict.fails


def unit_spec(
    ask: Ask,
    unit: Sequence[ChosenPool],
    *,
    rate_ratio: float = 1.0,
    requests: int = REQUESTS,
    seeds: tuple[int, ...] = SEEDS,
    traces: Mapping[str, TraceReplay] = MappingProxyType({}),
) -> SimSpec:
    """The smallest whole part of a unit: one replica, or prefill and decode replicas in their ratio.

    A unit whose classes replay `traces` is simulated whole: thinning would take a burst's shape away.
    """
    classes = pool_classes(ask, unit[0], rate_ratio=rate_ratio)
    mine = {n: t for n, t in traces.items() if n in unit[0].candidate.class_names}
    share = 1 if mine else math.gcd(*(p.replicas for p in unit))
    if mine:
        requests, seeds = WHOLE, seeds[:1]
    pools = tuple(
        SimPool(
            name=p.candidate.role,
            spec=replace(pool_spec(ask, p.candidate), replicas=p.replicas),
            replicas=p.replicas // share,
            routing="least-loaded" if p.replicas // share > 1 else "round-robin",
        )
        for p in unit
    )
    handover = handover_of(ask, unit[0].candidate, unit[1].candidate) if len(unit) == 2 else None
    return SimSpec(
        pools=pools,
        classes=one_replica(classes, replicas=share),
        handover=handover,
        requests=requests,
        seeds=seeds,
        traces={c.name: share_of(ask, c, traces[c.name]) for c in classes if c.name in mine},
        warmup_ratio=0.0 if mine else 0.1,
    )


def _simulate(
    ask: Ask, unit: Sequence[ChosenPool], traces: Mapping[str, TraceReplay], *, rate_ratio: float = 1.0
) -> tuple[SimResult, tuple[Verdict, ...]]:
    return held(unit_spec(ask, unit, rate_ratio=rate_ratio, traces=traces))


def held(spec: SimSpec) -> tuple[SimResult, tuple[Verdict, ...]]:
    """Promises against a simulation with the classes' own burstiness and, where that is another, with Poisson
    arrivals: the worse of both counts. The result is the former's."""
    result = simulate(spec)
    limits = {c.name: c.slos for c in spec.classes}
    own = verdicts(result, limits)
    if all(c.arrivals_cv == 1.0 or c.name in spec.traces for c in spec.classes):
        return result, own
    poisson = simulate(replace(spec, classes=tuple(replace(c, arrivals_cv=1.0) for c in spec.classes)))
    both = zip(own, verdicts(poisson, limits), strict=True)
    return result, tuple(b if b.simulated_s > a.simulated_s else a for a, b in both)


def _unlimited(
    ask: Ask,
    service: ChosenService,
    unit: Sequence[ChosenPool],
    result: SimResult,
    figures: dict[tuple[str, str, str, str], float],
) -> None:
    """The simulated counterparts of predicted figures that nobody limited."""
    for pool in unit:
        for p in pool.predictions:
            key = (service.name, pool.candidate.key, p.class_name, p.metric)
            metric, _, stat = p.metric.partition(".")
            sample = next((c for c in result.classes if c.name == p.class_name), None)
            if key not in figures and sample is not None and metric != "ttfa":
                value = sample.value(metric, stat)
                if math.isfinite(value):
                    figures[key] = value


def _cuts(ask: Ask, service: ChosenService, unit: Sequence[ChosenPool], traces: Mapping[str, TraceReplay]) -> list[Cut]:
    def kept(more: Sequence[ChosenPool], ratio: float) -> bool:
        result, found = _simulate(ask, more, traces, rate_ratio=ratio)
        return not any(fails(v, exact=replayed) for v in found) and (replayed or not grows(result))

    replayed = exact(unit, traces)
    if replayed and len(unit) == 1:
        # Bursts are not thinned: how many replicas does this kind need for the same traffic?
        (pool,) = unit
        count = smallest_count(
            lambda n: kept([replace(pool, replicas=n)], 1.0), start=pool.replicas + 1, most=2 * pool.replicas + 8
        )
        rate = each_rps(pool.rate_rps, count) if count else 0.0
        return [Cut(service.name, pool.candidate.key, rate, pool.candidate.class_names)]
    holds = 0.0
    for ratio in LOWER:
        if kept(unit, ratio):
            holds = ratio
            break
    return [Cut(service.name, p.candidate.key, holds * p.rate_rps / p.replicas, p.candidate.class_names) for p in unit]


def grows(result: SimResult) -> bool:
    """Whether requests wait longer and longer: the mean queue of the last quarter against the second's.

    A stable queue's quarters differ by chance; one that only ever grows is at least twice as long by then.
    """
    for pool in result.pools:
        waiting = [w for _, w, _ in pool.series]
        n = len(waiting) // 4
        if n:
            early, late = sum(waiting[n : 2 * n]) / n, sum(waiting[-n:]) / n
            if late > 2 * early + 2 and pool.utilisation_ratio > 0.99:
                return True
    return False


def _words(service: str, v: Verdict) -> str:
    who = f"{service} {v.cls} " if v.cls != "default" else f"{service} "
    metric = f"{v.slo.metric.upper()} {v.slo.stat}"
    return f"{who}{metric} {show_time(v.simulated_s)} simulated, limit {show_time(v.slo.limit_s)}"
