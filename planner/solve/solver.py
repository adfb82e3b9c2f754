"""`solve`: services and a fleet in, the proven choice out; or an error that says what clashes and the ways out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Literal

from planner.candidates.ask import Ask
from planner.candidates.candidate import Candidate, Prediction
from planner.errors import UserError
from planner.intent.fleet import Fleet
from planner.plan.solution import ChosenPool, ChosenService, Solution
from planner.solve.choices import Choices
from planner.solve.explain import MOST_EXPLAINED, explain_service
from planner.solve.held import broken
from planner.solve.infeasible import infeasible, time_limit
from planner.solve.model import Limits, Outcome, select
from planner.solve.objective import goals, most_traffic
from planner.solve.patterns import Pattern
from planner.solve.prepare import Evaluate, Evaluator, Prepared, choices, prepare
from planner.solve.question import BaselinePool, Cut, Lift, Objective, Question
from planner.solve.scale import PER_DOLLAR, PER_RPS
from planner.units import show_rate

DEFAULT_LIMITS = Limits()
Predict = Callable[[Ask, Candidate, float, tuple[Candidate, float] | None], tuple[Prediction, ...]]
"""Figures of one replica at its rate; for prefill and decode apart, with the other side's replica and rate."""


def solve(
    asks: Sequence[Ask],
    fleet: Fleet,
    *,
    evaluate: Evaluate,
    predict: Predict,
    objective: Objective = "cost",
    cuts: Sequence[Cut] = (),
    lifts: Sequence[Lift] = (),
    baseline: Sequence[BaselinePool] = (),
    change_cost: float = 0.0,
    keep: Sequence[str] = (),
    limits: Limits = DEFAULT_LIMITS,
    explain: bool = True,
    workers: int = 1,
    progress: Callable[[str], None] = lambda _: None,
) -> Solution:
    """The best plan, proven where the limit allows.

    With rates: the user's objective, then the cost of change, then fewer GPUs, fewer shapes, smaller TP, more
    headroom, name.
    Without rates, or with the throughput objective: first the most traffic, one factor on all classes of all
    services, then the same. Raises UserError: `Exit.NO_PLAN` with the clash where there is none, `Exit.TIME_LIMIT`
    where the limit came before any plan. `workers`: processes that evaluate services side by side.
    """
    question = Question(
        asks=tuple(
            sorted(
                (_with_today(a.with_fleet(fleet), baseline, count=len(asks)) for a in asks),
                key=lambda a: a.name,
            )
        ),
        fleet=fleet,
        objective=objective,
        cuts=tuple(sorted(cuts, key=lambda c: (c.service, c.key, c.class_names, c.most_rps))),
        lifts=tuple(sorted(lifts, key=lambda x: (x.service, x.key, x.candidate.class_names))),
        baseline=tuple(sorted(baseline, key=lambda b: (b.service, b.key))),
        change_cost=change_cost,
        keep=frozenset(keep),
    )
    notes: list[str] = []
    question = _priced(question, notes)
    evaluator = Evaluator(evaluate)
    if len(question.asks) > 1:
        evaluator.warm(question.asks, workers=workers, progress=progress)
    return _answer(question, evaluator, predict=predict, limits=limits, notes=notes, explain=explain)


def _answer(
    question: Question,
    evaluator: Evaluator,
    *,
    predict: Predict,
    limits: Limits,
    notes: list[str],
    explain: bool,
) -> Solution:
    """The best plan whose every figure keeps its promise: what breaks one is cut, and the rest solved again."""
    prepared = prepare(question, evaluator)
    maximise = question.objective == "throughput" or not question.has_rate
    scale, scale_bound = PER_RPS, PER_RPS
    if maximise:
        least = PER_RPS if question.has_rate else 1
        scale, scale_bound = most_traffic(prepared, limits, least=least)
        if scale == 0:
            raise infeasible(question, evaluator, unknown=scale_bound > 0)
    found = choices(prepared, scale_urps=scale if maximise else None)
    first, then = goals(question)
    outcome = select(
        found, prepared.spaces, prepared.by_total, first=first, then=then, pack=prepared.pack, limits=limits
    )
    if outcome.status == "unknown":
        raise time_limit(question)
    if outcome.status == "infeasible":
        raise infeasible(question, evaluator)
    factor = scale if maximise else None
    pools = {
        a.name: chosen_pools(a, [p for p in outcome.chosen if p.service == a.name], factor, predict)
        for a in question.asks
    }
    more = broken(question, pools)
    if more:
        less = replace(question, cuts=(*question.cuts, *more))
        return _answer(less, evaluator, predict=predict, limits=limits, notes=notes, explain=explain)
    return _solution(
        question,
        evaluator=evaluator,
        prepared=prepared,
        found=found,
        outcome=outcome,
        pools=pools,
        scale=factor,
        scale_bound=scale_bound,
        notes=notes,
        explain=explain,
    )


MOST_FINE = 40
"""Services up to which every cap of the series is asked about; beyond, every fourth (about 1% dearer in a trial)."""


def _with_today(ask: Ask, baseline: Sequence[BaselinePool], *, count: int) -> Ask:
    keys = tuple(sorted({*ask.today, *(b.key for b in baseline if b.service == ask.name)}))
    return replace(ask, today=keys, lean=ask.lean or count > MOST_EXPLAINED, coarse=ask.coarse or count > MOST_FINE)


def _priced(question: Question, notes: list[str]) -> Question:
    """Cost needs prices: all pools have one, or none has and GPUs are counted instead."""
    if question.objective != "cost":
        return question
    without = sorted(p.name for p in question.fleet.pools if p.price is None)
    if not without:
        return question
    if len(without) == len(question.fleet.pools):
        notes.append(f"fleet {question.fleet.name} has no prices: GPUs are minimised instead of cost")
        return replace(question, objective="gpus")
    raise UserError(
        "no-price",
        f"pool {without[0]} of fleet {question.fleet.name} has no price, and cost is the objective",
        None,
        ("a pool without a price would look free beside the others",),
        ("add price: {per_gpu_hour: ...} to it, or choose --objective gpus",),
    )


def _solution(
    question: Question,
    *,
    evaluator: Evaluator,
    prepared: Prepared,
    found: Sequence[Choices],
    outcome: Outcome,
    pools: Mapping[str, tuple[ChosenPool, ...]],
    scale: int | None,
    scale_bound: int,
    notes: list[str],
    explain: bool,
) -> Solution:
    services = []
    for ask in question.asks:
        told = (
            explain_service(
                ask.name, question, evaluator, prepared=prepared, found=found, chosen=outcome.chosen, scale=scale
            )
            if explain
            else None
        )
        services.append(
            ChosenService(
                name=ask.name,
                pools=pools[ask.name],
                bound_by=told.bound_by if told else (),
                runner_up=told.runner_up if told else None,
                why=told.why if told else (),
            )
        )
    if explain and len(question.asks) > MOST_EXPLAINED:
        notes.append(
            f"more than {MOST_EXPLAINED} services: what binds each of them is left out; plan one alone to see it"
        )
    if len(question.asks) > MOST_FINE:
        notes.append(f"more than {MOST_FINE} services: caps come from a coarser series; plan one alone to refine them")
    status: Literal["optimal", "feasible"] = "optimal" if outcome.status == "optimal" else "feasible"
    if scale is None:
        unit = 1 if question.objective == "gpus" else PER_DOLLAR
        value, bound = outcome.value / unit, outcome.bound / unit
        objective: Objective = question.objective
    else:
        total = sum(rate for a in question.asks for _, rate in a.rates)
        value, bound = total * scale / PER_RPS, total * scale_bound / PER_RPS
        objective = "throughput"
        if scale_bound > scale:
            status = "feasible"
            notes.append(f"up to {show_rate(bound)} is not ruled out: the limit came before the proof")
    gap = abs(value - bound) / value if value else 0.0
    if status == "optimal" and not outcome.tie_breaks:
        notes.append("tie-breaks were not applied: the limit came before their proof")
    return Solution(
        status=status,
        services=tuple(services),
        objective=objective,
        value=value,
        bound=bound,
        gap=gap,
        tie_breaks=outcome.tie_breaks,
        scale=None if scale is None else scale / PER_RPS,
        solver_version=version("ortools"),
        notes=tuple(notes),
    )


def chosen_pools(ask: Ask, mine: Sequence[Pattern], scale: int | None, predict: Predict) -> tuple[ChosenPool, ...]:
    """Patterns as pools: replicas of two shapes share the rate by what they are planned to carry."""
    pools = []
    for pattern in sorted(mine, key=lambda p: p.class_names):
        rate = ask.rate_of(pattern.class_names) * (1.0 if scale is None else scale / PER_RPS)
        total = sum(p.replicas * p.candidate.load.planned_rps for p in pattern.parts)
        for part in pattern.parts:
            share = 1.0 if pattern.disaggregated else part.replicas * part.candidate.load.planned_rps / total
            other = next((p for p in pattern.parts if pattern.disaggregated and p is not part), None)
            pools.append(
                ChosenPool(
                    candidate=part.candidate,
                    replicas=part.replicas,
                    rate_rps=rate * share,
                    predictions=predict(
                        ask,
                        part.candidate,
                        rate * share / part.replicas,
                        None if other is None else (other.candidate, rate / other.replicas),
                    ),
                )
            )
    return tuple(pools)
