"""Bad days in the simulation, for pools whose promises the closed form does not vouch for: lifted ones, and replays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.candidates.ask import Ask
from planner.pipeline.question import Question
from planner.pipeline.traces import WHOLE, replaying, share_of, traces_of
from planner.pipeline.verify import REQUESTS, SEEDS, Settled, grows
from planner.plan.baddays import Day, Running, Seen, Situation, missed, running_pools, situations
from planner.simulate.run import SimPool, SimSpec, TraceReplay, one_replica, simulate, verdicts


def simulated_days(question: Question, settled: Settled) -> dict[Day, Seen]:
    """What the simulation says of the days of those pools."""
    asks = {a.name: a for a in question.asks}
    found: dict[Day, Seen] = {}
    for chosen, pool in running_pools(asks, settled.solution):
        ask = asks[pool.service]
        scale = settled.solution.scale or 1.0
        traces = traces_of(question, ask, {n: r * scale for n, r in ask.rates})
        lifted = any(x.raises(chosen.candidate) for x in settled.checked.lifts)
        aggregated = chosen.candidate.role == "aggregated"
        if aggregated and (lifted or replaying(ask, chosen.candidate.class_names)):
            for name, there in situations(pool):
                found[pool.service, pool.pool, name] = _seen(ask, pool, there, traces)
    return found


def _seen(ask: Ask, pool: Running, there: Situation, traces: Mapping[str, TraceReplay]) -> Seen:
    mine = {c.name: traces[c.name] for c in pool.classes if c.name in traces}
    spec = replace(there.spec, replicas=there.replicas)
    if mine:
        today = {c.name: c.rate_per_s for c in pool.classes}
        played = SimSpec(
            (SimPool("aggregated", spec, there.replicas, "least-loaded"),),
            there.classes,
            requests=WHOLE,
            traces={
                # More traffic is a faster clock, less of it leaves rows out.
                c.name: share_of(ask, c, _faster(mine[c.name], max(1.0, c.rate_per_s / today[c.name])))
                for c in there.classes
                if c.name in mine
            },
            warmup_ratio=0.0,
        )
        result = simulate(played)
    else:
        result = simulate(
            SimSpec(
                (SimPool("aggregated", spec),),
                one_replica(there.classes, replicas=there.replicas),
                requests=REQUESTS,
                seeds=SEEDS,
            )
        )
        if grows(result):
            return Seen(("every SLO: the queue grows",), "simulation")
    limits = {c.name: c.slos for c in there.classes}
    misses = [missed(v.cls, v.slo, v.simulated_s) for v in verdicts(result, limits) if not v.holds]
    return Seen(tuple(misses), "replay of the trace" if mine else "simulation")


def _faster(trace: TraceReplay, factor: float) -> TraceReplay:
    return replace(trace, pace=trace.pace * factor)
