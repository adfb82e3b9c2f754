"""The bad days of prefill and decode apart, in closed form: what takes replicas away strikes one pool at a time, the
worse of both counts; everything else strikes both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planner.candidates import handover_of
from planner.candidates.ask import Ask
from planner.errors import UserError
from planner.perf.pair import PairModel
from planner.perf.pool import Handover
from planner.plan.baddays import DAYS, Running, Situation, closed_day, missed, running_pools
from planner.plan.document import BadDay
from planner.plan.solution import Solution
from planner.plan.text import sig


@dataclass(frozen=True, slots=True)
class RunningPair:
    """A prefill pool and the decode pool that its prompts go to."""

    prefill: Running
    decode: Running
    handover: Handover


def running_pairs(asks: Mapping[str, Ask], solution: Solution) -> Iterator[RunningPair]:
    """Every pair of pools of a solution."""
    pools = list(running_pools(asks, solution))
    for chosen, prefill in pools:
        if chosen.candidate.role != "prefill":
            continue
        for other, decode in pools:
            both = (prefill.service, chosen.candidate.class_names)
            if other.candidate.role == "decode" and (decode.service, other.candidate.class_names) == both:
                ask = asks[prefill.service]
                yield RunningPair(prefill, decode, handover_of(ask, chosen.candidate, other.candidate))


def pair_days(pairs: list[RunningPair]) -> tuple[BadDay, ...]:
    """Every day of every pair."""
    found = []
    for name, ask in DAYS:
        for pair in pairs:
            p, d = ask(pair.prefill), ask(pair.decode)
            if p is None or d is None:
                continue
            together = [(p, d)]
            if p.replicas < pair.prefill.replicas or d.replicas < pair.decode.replicas:
                together = [(p, _whole(pair.decode)), (_whole(pair.prefill), d)]
            days = [_day(name, pair, a, b) for a, b in together]
            found.append(max(days, key=lambda x: (len(x.misses), x.load)))
    return tuple(found)


def _whole(pool: Running) -> Situation:
    return Situation(pool.spec, pool.classes, pool.replicas)


def _day(name: str, pair: RunningPair, p: Situation, d: Situation) -> BadDay:
    for pool, there in ((pair.prefill, p), (pair.decode, d)):
        if there.replicas < 1:
            return closed_day(name, pool, there)
    rate = math.fsum(c.rate_per_s for c in p.classes)
    try:
        model = PairModel(p.spec, d.spec, pair.handover, p.classes)
    except UserError as e:
        return BadDay(name=name, service=pair.prefill.service, load=0.0, misses=(e.message,), method="closed form")
    result = model.evaluate(rate / p.replicas, rate / d.replicas)
    load = max(rate / p.replicas / model.prefill_max_per_s, rate / d.replicas / model.decode.lambda_max)
    stable = result.prefill.stable and result.decode.stable
    if stable and load < 1:
        misses = tuple(
            missed(c.name, s, f.value(s))
            for c, f in zip(p.classes, result.classes, strict=True)
            for s in c.slos
            if f.value(s) > s.limit_s
        )
    else:
        which = "prefill" if rate / p.replicas / model.prefill_max_per_s >= load * (1 - 1e-9) else "decode"
        misses = (f"every SLO: overload, {load:.0%} of what the {which} pool can do, the queue grows",)
    return BadDay(
        name=name, service=pair.prefill.service, load=sig(min(load, 99.0)), misses=misses, method="closed form"
    )
