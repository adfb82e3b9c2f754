"""Rates beyond the closed form: where only its TTFT, which errs on the safe side, holds a candidate back.

The few candidates that would carry most for their cost without promises on the first token are simulated; what they
carry within every promise goes to the solver as lifts, and a better answer must pass the same check as any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from planner.candidates import candidates
from planner.candidates.ask import Ask
from planner.candidates.candidate import Candidate
from planner.candidates.carry import Asked, Probe, Promises, carried
from planner.candidates.margins import margins_of
from planner.candidates.replica import classes_of, load_model
from planner.errors import UserError
from planner.intent.slo import Slo
from planner.pipeline.question import Question
from planner.pipeline.traces import replaying
from planner.pipeline.verify import Settled, Solve, grows, held, settled, unit_spec
from planner.plan.solution import ChosenPool, ChosenService, Solution
from planner.solve.explain import MOST_EXPLAINED
from planner.solve.question import Cut, Lift
from planner.solve.scale import each_rps

FIRST = frozenset({"ttft", "e2e", "ttfa"})
"""Metrics that hold the time to the first token: their closed form is on the safe side."""
MOST = 4
"""Candidates of one service that are simulated."""
STEPS = 8
"""Between the rate from which a candidate is worth it and what it carries without those promises."""
MOST_COUNTS = 32
"""Replica counts that are told apart; where more are possible, the steps are fine enough."""


def lifted(question: Question, first: Settled, solve: Solve) -> Settled:
    """The answer with lifts where it is better and passes its check, else the first one."""

    def better(lifts: tuple[Lift, ...], *, explain: bool) -> Solution | None:
        found = solve(first.cuts, (*first.lifts, *lifts), explain)
        return found if is_better(found, first.solution) else None

    # More services than are explained: the search would evaluate every one of them a second time.
    if len(question.asks) > MOST_EXPLAINED:
        return first
    finalists = [x for s in first.solution.services for x in _finalists(question, s, first.solution)]
    if not finalists or better(tuple(replace(x, rate_rps=_top(x)) for x in finalists), explain=False) is None:
        return first
    lifts = tuple(_carried(question, first.solution.scale or 1.0, finalists))
    if not lifts or better(lifts, explain=False) is None:
        return first
    again = settled(question, solve, cuts=first.cuts, lifts=(*first.lifts, *lifts), before=first.checked.rounds)
    return again if not again.checked.failed and is_better(again.solution, first.solution) else first


@dataclass(frozen=True, slots=True)
class Rescue:
    """What the simulation says where the closed form says that there is no plan."""

    answer: Settled | None
    looked: bool = False
    """Whether candidates were simulated."""


def rescued(question: Question, known: tuple[tuple[Cut, ...], tuple[Lift, ...]], solve: Solve) -> Rescue:
    """An answer with lifts where there is none without: the closed form alone never says that nothing carries."""
    if len(question.asks) > MOST_EXPLAINED or question.intent.objective == "throughput":
        return Rescue(None)
    cuts, before = known

    def solved(lifts: tuple[Lift, ...]) -> bool:
        try:
            solve(cuts, (*before, *lifts), False)
        except UserError:
            return False
        return True

    finalists = [x for a in question.asks for x in _prospects(question, a.with_fleet(question.fleet))]
    if not finalists or not solved(tuple(replace(x, rate_rps=_top(x)) for x in finalists)):
        return Rescue(None)
    lifts = tuple(_carried(question, 1.0, finalists))
    if not lifts or not solved(lifts):
        return Rescue(None, looked=True)
    again = settled(question, solve, cuts=cuts, lifts=(*before, *lifts))
    return Rescue(again if not again.checked.failed else None, looked=True)


def is_better(a: Solution, b: Solution) -> bool:
    """Whether a's objective beats b's, by more than rounding."""
    less = a.value - b.value if a.scale is None else b.value - a.value
    return less < -1e-6 * max(1.0, abs(b.value))


def without_first(ask: Ask) -> Ask:
    """The same ask without promises on the first token: the service's and its classes'."""
    service = ask.service

    def rest(slos: tuple[Slo, ...]) -> tuple[Slo, ...]:
        return tuple(s for s in slos if s.metric not in FIRST)

    traffic = tuple(c if c.slo is None else c.model_copy(update={"slo": rest(c.slo)}) for c in service.traffic)
    return ask.with_service(slo=rest(service.slo), traffic=traffic)


def _finalists(question: Question, chosen: ChosenService, solution: Solution) -> Iterator[Lift]:
    """The candidates that would carry most for their cost, each at the rate from which it beats what was chosen."""
    ask = next(a for a in question.asks if a.name == chosen.name).with_fleet(question.fleet)
    if not _may_be_lifted(question, ask):
        return
    # What was chosen stays in, though others that take the same GPUs may carry more without those promises.
    free = _free(question, ask, [p.candidate.key for p in chosen.pools])
    groups = tuple(dict.fromkeys(p.candidate.class_names for p in chosen.pools))
    for group in groups:
        pools = [p for p in chosen.pools if p.candidate.class_names == group]
        mine = [c for c in free if c.class_names == group]
        paid = solution.objective == "cost" and all(
            c.dollars_per_hour > 0 for c in [*mine, *(p.candidate for p in pools)]
        )
        rate = math.fsum(p.rate_rps for p in pools if p.candidate.role != "prefill")
        reached = rate / math.fsum(p.replicas * _cost(p.candidate, paid=paid) for p in pools)
        for c in _worth(mine, paid=paid)[: max(1, MOST // len(groups))]:
            closed = closed_rps(ask, c)
            low = max(closed, reached * _cost(c, paid=paid))
            if low < c.load.planned_rps:
                yield Lift(c, low, closed)


def _prospects(question: Question, ask: Ask) -> Iterator[Lift]:
    """The candidates that would carry most for their cost, each at the rate from which its pool is large enough."""
    if not _may_be_lifted(question, ask) or not ask.has_rate:
        return
    everyone = tuple(n for n, _ in ask.rates)
    mine = [c for c in _free(question, ask, []) if c.class_names == everyone]
    paid = question.intent.objective == "cost" and all(c.dollars_per_hour > 0 for c in mine)
    for c in _worth(mine, paid=paid)[:MOST]:
        low = ask.rate_of(everyone) / (replicas_in_pool(ask, c) + 0.5)
        if low < c.load.planned_rps:
            yield Lift(c, low, closed_rps(ask, c))


def _may_be_lifted(question: Question, ask: Ask) -> bool:
    """Something is promised of the first token, the service may change, and no trace was replayed for it already."""
    names = [n for n, _ in ask.rates]
    promised = {s.metric for n in names for s in ask.slos_of(n)}
    return bool(promised & FIRST) and ask.name not in question.keep and not replaying(ask, names)


def _free(question: Question, ask: Ask, kept: Sequence[str]) -> list[Candidate]:
    """Aggregated candidates without promises on the first token; what runs today and what is kept among them."""
    today = {*ask.today, *kept, *(b.key for b in question.baseline_pools if b.service == ask.name)}
    try:
        found = candidates(replace(without_first(ask), today=tuple(sorted(today))))
    except UserError:  # Nothing runs the model at all: the solver has said so.
        return []
    return [c for c in found if c.role == "aggregated" and not c.rejected_by]


def _worth(found: Sequence[Candidate], *, paid: bool) -> list[Candidate]:
    return sorted(found, key=lambda c: (-c.load.planned_rps / _cost(c, paid=paid), c.gpus, c.key))


def replicas_in_pool(ask: Ask, c: Candidate) -> int:
    """As many as the free nodes of its pool hold."""
    pool = ask.pool(c.fleet_pool)
    nodes = pool.nodes - pool.reserved_nodes
    return nodes // c.nodes if c.nodes else nodes * (c.deployment.hardware.gpus_per_node // c.gpus)


def closed_rps(ask: Ask, candidate: Candidate) -> float:
    """What the closed form plans a candidate for with every promise."""
    promises = {c.name: c.slos for c in classes_of(ask, candidate.class_names)}
    probe = Probe(Asked(load_model(ask, candidate)), Promises(promises, margins_of(ask, candidate.deployment)))
    cap = ask.service.load_cap
    load = carried(probe, load_cap=cap, degraded_cap=cap)
    return load.planned_rps if load is not None else 0.0


def _cost(candidate: Candidate, *, paid: bool) -> float:
    return candidate.dollars_per_hour if paid else float(candidate.gpus)


def _top(lift: Lift) -> float:
    """min(load cap x lambda_max, what the other promises allow)."""
    return lift.candidate.load.planned_rps


def _carried(question: Question, scale: float, finalists: list[Lift]) -> Iterator[Lift]:
    """Finalists at the highest rate that the simulation confirms; none where that is no better than what there is."""
    for x in finalists:
        ask = next(a for a in question.asks if a.name == x.service)
        total = ask.rate_of(x.candidate.class_names) * scale
        rate = highest(
            partial(carries, ask, x.candidate, total_rps=total),
            rates_between(x.rate_rps, _top(x), total_rps=total),
        )
        if rate is not None:
            yield replace(x, rate_rps=rate)


def rates_between(low: float, top: float, *, total_rps: float) -> tuple[float, ...]:
    """Rates above `low` up to `top` that are asked about: a total spread evenly over whole replicas, and a grid.

    >>> [round(r, 2) for r in rates_between(2.0, 2.8, total_rps=10.0)]
    [2.1, 2.2, 2.3, 2.4, 2.5, 2.6, 2.7, 2.8]
    """
    fewest, most = math.ceil(total_rps / top), math.floor(total_rps / low)
    shared = [each_rps(total_rps, n) for n in range(fewest, most + 1)] if most - fewest <= MOST_COUNTS else []
    grid = [low + (top - low) * k / STEPS for k in range(1, STEPS)]
    # To nine digits, so that a rate found both ways is asked about once.
    return tuple(sorted({float(f"{r:.9g}") for r in (*shared, *grid) if low * (1 + 1e-9) < r < top} | {top}))


def highest(holds: Callable[[float], bool], rates: Sequence[float]) -> float | None:
    """The highest of rising rates that holds, where less never hurts; None, after one question, where none does.

    >>> highest(lambda r: r <= 3.5, (1.0, 2.0, 3.0, 4.0)), highest(lambda r: False, (1.0, 2.0))
    (3.0, None)
    """
    if not holds(rates[0]):
        return None
    good, bad = 0, len(rates)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(rates[middle]) else (good, middle)
    return rates[good]


def carries(ask: Ask, candidate: Candidate, rate_rps: float, *, total_rps: float) -> bool:
    """Whether one replica of as many as the total takes keeps every promise in the simulation.

    The closed form's headroom for the step times' own error is kept for what is lifted (the rest keeps it already).
    """
    replicas = max(1, math.ceil(total_rps / rate_rps - 1e-9))
    pool = ChosenPool(candidate, replicas, rate_rps * replicas, ())
    spec = unit_spec(ask, (pool,))
    result, found = held(spec)
    margins = margins_of(ask, candidate.deployment)
    return not grows(result) and all(
        v.simulated_s * (1 + (margins[v.slo.metric] if v.slo.metric in FIRST else 0.0)) <= v.slo.limit_s for v in found
    )
