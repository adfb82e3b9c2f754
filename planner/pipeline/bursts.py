"""What one replica is worth under a trace that is replayed: the planned rate over the fewest replicas that survive it.

Bursts are no Poisson stream: neither the stability limit nor the closed form's rate says how many replicas they need.
So the whole trace is replayed over ever fewer replicas of each layout, best prospects first, until no layout that is
left could beat what was found even if it carried all it can. The solver gets what was seen as cuts and lifts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.candidates import candidates
from planner.candidates.ask import Ask, class_groups
from planner.candidates.candidate import Candidate
from planner.candidates.margins import margins_of
from planner.errors import Exit, UserError
from planner.intent.slo import Slo
from planner.pipeline.lift import FIRST, closed_rps, replicas_in_pool, without_first
from planner.pipeline.question import Question
from planner.pipeline.traces import mean_ratio, replaying, traces_of
from planner.pipeline.verify import exact, fails, unit_spec
from planner.plan.solution import ChosenPool, Solution
from planner.simulate.run import TraceReplay, simulate, verdicts
from planner.simulate.sizing import smallest_count
from planner.solve.question import Cut, Lift
from planner.solve.scale import each_rps
from planner.units import show_time

MOST = 12
"""Layouts of one class group that are replayed."""
BEYOND = 4
"""Times its size that a fleet is thought to have where nothing in it survives."""
SHARES = (1.0, 0.8, 0.6)
"""Shares of the limits between tokens that caps are made for: a burst runs more at once than its busiest minute."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the replays say, in the solver's terms."""

    cuts: tuple[Cut, ...] = ()
    lifts: tuple[Lift, ...] = ()


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that a replay does not keep, and the limit that it would keep, headroom included."""

    cls: str
    slo: Slo
    needs_s: float


@dataclass(frozen=True, slots=True)
class Told:
    """What the replays say of one layout's caps."""

    candidate: Candidate
    rate_rps: float
    """Of one replica, at most: 0 where no count that was tried survives."""
    survives: bool = False
    """Whether this rate was replayed; else it is a bound."""
    count: int = 0
    """Replicas that survive, or the most that were tried."""
    broken: tuple[Broken, ...] = ()
    """At the most that were tried."""

    @property
    def slow(self) -> bool:
        """Whether a promise between tokens was broken."""
        return any(b.slo.metric not in FIRST for b in self.broken)


def replayed(question: Question) -> Seen:
    """Every service with a class that replays a trace; nothing for the rest, or where the rate is what is asked."""
    cuts: list[Cut] = []
    lifts: list[Lift] = []
    if question.intent.objective == "throughput":
        return Seen()
    for ask in question.asks:
        names = tuple(n for n, _ in ask.rates)
        if not ask.has_rate or not replaying(ask, names) or ask.name in question.keep:
            continue
        traces = traces_of(question, ask, dict(ask.rates))
        today = tuple(b.key for b in question.baseline_pools if b.service == ask.name)
        asked = replace(ask, today=(*ask.today, *today))
        # The caps that the solver sees; those that are replayed come on top of them.
        visible = [c for c in candidates(asked) if _usable(c)]
        paid = question.intent.objective == "cost" and all(c.dollars_per_hour > 0 for c in visible)
        for group in dict.fromkeys(g for s in class_groups(names) for g in s):
            if replaying(ask, group):
                within, replays = _group(asked, group, traces, paid=paid)
                if group == names and ask.service.pools == "aggregated" and len(names) == 1:
                    _survives_somewhere(asked, within, replays)
                told = {t.candidate.key: t for t in replays}
                keys = {*told, *(c.key for c in visible if c.class_names == group)}
                cuts += [Cut(ask.name, k, told[k].rate_rps if k in told else 0.0, group) for k in sorted(keys)]
                lifts += [
                    Lift(t.candidate, t.rate_rps, closed_rps(ask, t.candidate)) for t in told.values() if t.survives
                ]
    return Seen(tuple(cuts), tuple(lifts))


def without_bounds(solution: Solution, services: Sequence[str]) -> Solution:
    """What binds a service that replays a trace, only replays could say: the closed form's word on it is left out."""
    return replace(
        solution,
        services=tuple(replace(s, bound_by=()) if s.name in services else s for s in solution.services),
    )


def _usable(c: Candidate) -> bool:
    return c.role == "aggregated" and not c.rejected_by


def _group(
    ask: Ask, group: tuple[str, ...], traces: Mapping[str, TraceReplay], *, paid: bool
) -> tuple[list[Told], list[Told]]:
    """The best caps of each layout with the rate of one replica, as far as the replays looked: within the fleet, and
    where nothing in it survives in one so much larger."""
    found: list[list[Told]] = []
    for room in (1, BEYOND):
        nearest: list[Told] = []
        for share in SHARES:
            told = _tried(ask, _best(ask, group, share), traces, room=room, paid=paid)
            nearest = nearest or told
            if any(t.survives for t in told):
                return (found[0] if found else told), told
            if not any(t.slow for t in told):
                break
        found.append(nearest)
    return found[0], found[1]


def _best(ask: Ask, group: tuple[str, ...], share: float) -> list[Candidate]:
    """Of each layout the caps that carry most within so tight limits between tokens, and none on the first."""
    best: dict[object, Candidate] = {}
    found = [c for c in candidates(tighter(without_first(ask), share)) if _usable(c) and c.class_names == group]
    for c in sorted(found, key=lambda c: (-c.load.planned_rps, -c.caps.max_num_seqs, c.key)):
        if c.load.planned_rps > 0:
            best.setdefault((c.fleet_pool, c.deployment.shape, c.deployment.precision, c.deployment.kv_dtype), c)
    return list(best.values())


def tighter(ask: Ask, share: float) -> Ask:
    """The same ask with so tight limits."""

    def less(slos: tuple[Slo, ...]) -> tuple[Slo, ...]:
        return tuple(replace(s, limit_s=share * s.limit_s) for s in slos)

    if share == 1.0:
        return ask
    traffic = tuple(c if c.slo is None else c.model_copy(update={"slo": less(c.slo)}) for c in ask.service.traffic)
    return ask.with_service(slo=less(ask.service.slo), traffic=traffic)


def _tried(
    ask: Ask, best: Sequence[Candidate], traces: Mapping[str, TraceReplay], *, room: int, paid: bool
) -> list[Told]:
    """Each layout's fewest replicas, in a fleet `room` times as large, as long as they could beat what was found."""
    if not best:
        return []
    names = best[0].class_names
    total = ask.rate_of(names)
    everything = replaying(ask, names)
    ratio = mean_ratio(everything) if len(everything) == len(names) else 1.0

    def cost(c: Candidate) -> float:
        return c.dollars_per_hour if paid else float(c.gpus)

    told: list[Told] = []
    least = math.inf
    prospects = sorted(best, key=lambda c: (total / c.load.planned_rps * cost(c), c.gpus, c.key))
    for c in prospects[:MOST]:
        in_pool = room * replicas_in_pool(ask, c)
        most = in_pool if math.isinf(least) else min(in_pool, math.ceil(least / cost(c) - 1e-9) - 1)
        # Even a perfectly smooth trace takes this many.
        fewest = max(1, math.ceil(total * ratio / c.load.lambda_max_rps - 1e-9))
        count, tried = None, dict[int, tuple[Broken, ...]]()
        if fewest <= most:

            def holds(n: int, c: Candidate = c, tried: dict[int, tuple[Broken, ...]] = tried) -> bool:
                tried[n] = breaks(ask, c, traces, n)
                return not tried[n]

            start = min(most, max(fewest, math.ceil(total / c.load.planned_rps)))
            count = smallest_count(holds, start=start, most=most)
        if count is not None:
            told.append(Told(c, each_rps(total, count), survives=True, count=count))
            least = min(least, count * cost(c))
        else:
            # More than were tried: at the most what one of one more would carry.
            rate = 0.0 if most == in_pool else each_rps(total, most + 1)
            told.append(Told(c, rate, count=max(tried, default=0), broken=tried[max(tried)] if tried else ()))
    return [*told, *(Told(c, 0.0) for c in prospects[MOST:])]


def breaks(ask: Ask, candidate: Candidate, traces: Mapping[str, TraceReplay], replicas: int) -> tuple[Broken, ...]:
    """Promises that so many replicas do not keep through the whole trace.

    The first token keeps the closed form's headroom for the step times' own error; between tokens the caps keep it.
    """
    pool = ChosenPool(candidate, replicas, ask.rate_of(candidate.class_names), ())
    spec = unit_spec(ask, (pool,), traces=traces)
    result = simulate(spec)
    margins = margins_of(ask, candidate.deployment)
    whole = exact((pool,), traces)
    found = []
    for v in verdicts(result, {c.name: c.slos for c in spec.classes}):
        needs = v.simulated_s * (1 + (margins[v.slo.metric] if v.slo.metric in FIRST else 0.0))
        if needs > v.slo.limit_s and (v.slo.metric in FIRST or fails(v, exact=whole)):
            found.append(Broken(v.cls, v.slo, needs))
    return tuple(found)


def _survives_somewhere(ask: Ask, within: Sequence[Told], replays: Sequence[Told]) -> None:
    """UserError, with what would do, where no layout survives the trace within the fleet."""
    if any(t.survives for t in within) or not replays:
        return
    cls = replaying(ask, [n for n, _ in ask.rates])[0]
    notes, helps = [], []
    beyond = min(
        (t for t in replays if t.survives), key=lambda t: (t.count * t.candidate.gpus, t.candidate.key), default=None
    )
    nearest = min(
        (t for t in within if t.broken), key=lambda t: max(b.needs_s / b.slo.limit_s for b in t.broken), default=None
    )
    if beyond is not None:
        c, pool = beyond.candidate, ask.pool(beyond.candidate.fleet_pool)
        per_node = c.deployment.hardware.gpus_per_node
        more = math.ceil(beyond.count * c.gpus / per_node) - (pool.nodes - pool.reserved_nodes)
        notes.append(f"{beyond.count} replicas of {_layout(c)} survive it ({beyond.count * c.gpus} GPUs)")
        helps.append(f"add {more} node{'s' if more > 1 else ''} ({more * per_node} GPUs) to pool {pool.name}")
    if nearest is not None:
        for b in nearest.broken:
            notes.append(
                f"{nearest.count} replicas of {_layout(nearest.candidate)} reach {b.slo.key} "
                f"{show_time(b.needs_s)}, headroom for the model's error included"
            )
        sets = ", ".join(f"{b.slo.key} to {math.ceil(b.needs_s * 1e3)}ms" for b in nearest.broken)
        helps.append(f"set {sets} or more")
    summary = cls.trace_summary
    if summary is not None and "1s" in summary.peak_to_mean:
        notes.append(f"the busiest second has {summary.peak_to_mean['1s']:.1f} times the trace's mean rate")
    helps.append("see what a rate without these bursts takes: state --rate, or arrivals: poisson")
    raise UserError(
        "bursts",
        f"nothing on fleet {ask.fleet.name} keeps every promise of {ask.name} through the whole of {cls.trace}",
        None,
        tuple(notes),
        tuple(helps),
        Exit.NO_PLAN,
    )


def _layout(c: Candidate) -> str:
    return f"{c.deployment.hardware.gpu_id} {c.deployment.shape.label} {c.deployment.precision}"
