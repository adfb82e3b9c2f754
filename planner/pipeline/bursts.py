"""What one replica is worth under a trace that is replayed: the planned rate over the fewest replicas that survive it.

Bursts are no Poisson stream: neither the stability limit nor the closed form's rate says how many replicas they need.
So the whole trace is replayed over ever fewer replicas of each layout, best prospects first, until no layout that is
left could beat what was found even if it carried all it can. The solver gets what was seen as cuts and lifts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from planner.candidates import candidates
from planner.candidates.ask import Ask, class_groups
from planner.candidates.candidate import Candidate
from planner.candidates.margins import margins_of
from planner.pipeline.lift import FIRST, closed_rps, without_first
from planner.pipeline.question import Question
from planner.pipeline.traces import mean_ratio, replaying, traces_of
from planner.pipeline.verify import exact, fails, unit_spec
from planner.plan.solution import ChosenPool, Solution
from planner.simulate.run import TraceReplay, simulate, verdicts
from planner.simulate.sizing import smallest_count
from planner.solve.question import Cut, Lift
from planner.solve.scale import each_rps

MOST = 12
"""Layouts of one class group that are replayed."""
BEYOND = 4
"""Times its size that a fleet is thought to have where nothing in it survives."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the replays say, in the solver's terms."""

    cuts: tuple[Cut, ...] = ()
    lifts: tuple[Lift, ...] = ()


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
        # With and without promises on the first token: the solver sees the former's caps, the replays try the latter's.
        both = (asked, without_first(asked))
        every = {(c.class_names, c.key): c for q in both for c in candidates(q) if _usable(c)}
        free = list(every.values())
        for group in dict.fromkeys(g for s in class_groups(names) for g in s):
            if replaying(ask, group):
                mine = [c for c in free if c.class_names == group]
                for candidate, rate in _group(ask, mine, traces, paid=_paid(question, mine)):
                    cuts += [Cut(ask.name, c.key, rate, group) for c in mine if c.deployment == candidate.deployment]
                    if rate > 0:
                        lifts.append(Lift(candidate, rate, closed_rps(ask, candidate)))
    return Seen(tuple(cuts), tuple(lifts))


def without_bounds(solution: Solution, services: Sequence[str]) -> Solution:
    """What binds a service that replays a trace, only replays could say: the closed form's word on it is left out."""
    return replace(
        solution,
        services=tuple(replace(s, bound_by=()) if s.name in services else s for s in solution.services),
    )


def _usable(c: Candidate) -> bool:
    return c.role == "aggregated" and not c.rejected_by


def _paid(question: Question, found: Sequence[Candidate]) -> bool:
    return question.intent.objective == "cost" and all(c.dollars_per_hour > 0 for c in found)


def _group(
    ask: Ask, found: Sequence[Candidate], traces: Mapping[str, TraceReplay], *, paid: bool
) -> list[tuple[Candidate, float]]:
    """The best caps of each layout with the rate of one replica, as far as the replays looked."""

    def cost(c: Candidate) -> float:
        return c.dollars_per_hour if paid else float(c.gpus)

    best: dict[object, Candidate] = {}
    for c in sorted(found, key=lambda c: (-c.load.planned_rps, -c.caps.max_num_seqs, c.key)):
        if c.load.planned_rps > 0:
            best.setdefault((c.fleet_pool, c.deployment.shape, c.deployment.precision, c.deployment.kv_dtype), c)
    if not best:
        return []
    names = next(iter(best.values())).class_names
    total = ask.rate_of(names)
    ratio = mean_ratio(replaying(ask, names)) if exact_names(ask, names) else 1.0

    def fewest(c: Candidate) -> int:
        """Even a perfectly smooth trace takes this many."""
        return max(1, math.ceil(total * ratio / c.load.lambda_max_rps - 1e-9))

    prospects = sorted(best.values(), key=lambda c: (total / c.load.planned_rps * cost(c), c.gpus, c.key))
    # Where nothing in the fleet survives, how much larger it would have to be is the next question.
    for room in (1, BEYOND):
        told: list[tuple[Candidate, float]] = []
        paid_so_far = math.inf
        for c in prospects[:MOST]:
            in_pool = room * _replicas_in_pool(ask, c)
            most = in_pool if math.isinf(paid_so_far) else min(in_pool, math.ceil(paid_so_far / cost(c) - 1e-9) - 1)
            count = None
            if fewest(c) <= most:
                start = min(most, max(fewest(c), math.ceil(total / c.load.planned_rps)))
                count = smallest_count(partial(survives, ask, c, traces), start=start, most=most)
            if count is not None:
                told.append((c, each_rps(total, count)))
                paid_so_far = min(paid_so_far, count * cost(c))
            else:
                # More than were tried: at the most what one of one more would carry.
                told.append((c, 0.0 if most == in_pool else each_rps(total, most + 1)))
        if paid_so_far < math.inf:
            break
    return [*told, *((c, 0.0) for c in prospects[MOST:])]


def exact_names(ask: Ask, names: Sequence[str]) -> bool:
    return len(replaying(ask, names)) == len(names)


def _replicas_in_pool(ask: Ask, c: Candidate) -> int:
    pool = ask.pool(c.fleet_pool)
    nodes = pool.nodes - pool.reserved_nodes
    return nodes // c.nodes if c.nodes else nodes * (c.deployment.hardware.gpus_per_node // c.gpus)


def survives(ask: Ask, candidate: Candidate, traces: Mapping[str, TraceReplay], replicas: int) -> bool:
    """Whether so many replicas keep every promise through the whole trace.

    The first token keeps the closed form's headroom for the step times' own error; between tokens the caps keep it.
    """
    pool = ChosenPool(candidate, replicas, ask.rate_of(candidate.class_names), ())
    spec = unit_spec(ask, (pool,), traces=traces)
    result = simulate(spec)
    margins = margins_of(ask, candidate.deployment)
    whole = exact((pool,), traces)
    return result.books.rejected == 0 and all(
        not fails(v, exact=whole)
        and (v.slo.metric not in FIRST or v.simulated_s * (1 + margins[v.slo.metric]) <= v.slo.limit_s)
        for v in verdicts(result, {c.name: c.slos for c in spec.classes})
    )
