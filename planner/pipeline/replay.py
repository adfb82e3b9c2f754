"""Simulating a plan as it stands: every replica of every pool, from what the plan embeds alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.candidates import handover_of
from planner.candidates.ask import Ask
from planner.candidates.candidate import Candidate, Caps, Load
from planner.candidates.replica import memory_of, pool_spec
from planner.errors import UserError, did_you_mean
from planner.perf.traffic import ClassLoad
from planner.pipeline.question import Question, question_of
from planner.pipeline.traces import WHOLE, is_here, near, replaying, share_of, traces_of
from planner.plan.document import Plan, PoolDoc, ServiceDoc
from planner.report.build import pool_deployment
from planner.report.console import table
from planner.simulate.cluster import Failure
from planner.simulate.run import SimPool, SimResult, SimSpec, TraceReplay, Verdict, simulate, verdicts
from planner.units import TIME, QuantityError, show_rate, show_time

__all__ = ["Replayed", "candidate_of", "replay", "replay_text"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """One unit of pools (an aggregated pool, or prefill with decode) under its traffic."""

    service: str
    pools: tuple[str, ...]
    result: SimResult
    verdicts: tuple[Verdict, ...]
    missing: tuple[str, ...] = ()
    """Traces that its classes replay and that are not at hand: Poisson arrivals at the planned rate stand for them."""

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "service": self.service,
            "pools_simulated": list(self.pools),
            "traces_missing": list(self.missing),
            **self.result.as_data(),
            "slos": [
                {
                    "class": v.cls,
                    "slo": str(v.slo),
                    "simulated_s": v.simulated_s if math.isfinite(v.simulated_s) else None,
                    "holds": v.holds,
                }
                for v in self.verdicts
            ],
        }


def candidate_of(plan: Plan, service: ServiceDoc, pool: PoolDoc) -> Candidate:
    """The candidate that a pool of a plan is, rebuilt from what the plan embeds and the catalogue."""
    question = question_of(plan)
    ask = next(a for a in question.asks if a.name == service.name)
    d = pool_deployment(ask, service, pool)
    memory = memory_of(
        d,
        budget=pool.max_num_batched_tokens,
        seqs=pool.max_num_seqs,
        max_model_len=pool.max_model_len,
        utilization=pool.gpu_memory_utilization,
    )
    caps = Caps(pool.max_num_seqs, pool.max_num_batched_tokens, pool.max_model_len, pool.gpu_memory_utilization)
    each = pool.rate_max / pool.replicas
    return Candidate(
        service=service.name,
        class_names=tuple(c.name for c in pool.classes),
        role=pool.role,
        fleet_pool=pool.fleet_pool,
        deployment=d,
        caps=caps,
        memory=memory,
        load=Load(each, each, pool.rate / pool.replicas, each, "plan"),
        gpus=pool.gpus_per_replica,
        nodes=pool.nodes_per_replica if pool.nodes_per_replica > 1 else 0,
        dollars_per_hour=pool.cost / pool.replicas,
        accuracy_prior=service.model.accuracy_prior,
    )


def replay(
    plan: Plan,
    *,
    service: str | None = None,
    trace: Path | None = None,
    rate_scale: float = 1.0,
    failures: Sequence[str] = (),
    requests: int | None = None,
    seeds: tuple[int, ...] = (1, 2),
    folder: Path | None = None,
) -> tuple[Replayed, ...]:
    """Simulate the pools of a plan. With a trace, its arrivals and lengths replace its only class's; traces that the
    plan replays are looked for around `folder`, too."""
    names = [s.name for s in plan.services]
    if service is not None and service not in names:
        raise UserError(
            "unknown-service", f"no service {service!r} in this plan", None, (), did_you_mean(service, names)
        )
    pools = [p.name for s in plan.services for p in s.pools]
    failed = [_failure(text, pools) for text in failures]
    question = question_of(plan) if folder is None else near(question_of(plan), folder)
    found = []
    for s in plan.services:
        if service not in (None, s.name):
            continue
        ask = next(a for a in question.asks if a.name == s.name)
        for unit in _units(s):
            candidates = [candidate_of(plan, s, p) for p in unit]
            rates = {c.name: c.rate for p in unit if p.role != "prefill" for c in p.classes}
            classes = tuple(
                replace(c, rate_per_s=rates[c.name], slos=ask.slos_of(c.name)) for c in ask.classes if c.name in rates
            )
            if trace is not None and len(classes) > 1:
                raise UserError(
                    "simulate",
                    f"service {s.name!r} has several classes: a trace replays one",
                    None,
                    (),
                    ("simulate another service with --service",),
                )
            traces = _traces(question, ask, classes, trace, scale=plan.totals.scale or 1.0)
            spec = SimSpec(
                pools=tuple(
                    SimPool(
                        p.name,
                        # What the engine refuses is refused here: a trace may be longer than what was planned for.
                        replace(pool_spec(ask, c), replicas=p.replicas, longest_tokens=float(p.max_model_len)),
                        p.replicas,
                        "least-loaded" if p.replicas > 1 else "round-robin",
                    )
                    for p, c in zip(unit, candidates, strict=True)
                ),
                classes=classes,
                handover=handover_of(ask, *candidates) if len(unit) == 2 else None,
                requests=requests or (WHOLE if traces else max(10_000, 1_000 * sum(p.replicas for p in unit))),
                seeds=seeds if len(traces) < len(classes) else seeds[:1],
                rate_scale=rate_scale,
                traces=traces,
                warmup_ratio=0.0 if traces else 0.1,
                failures=tuple(
                    Failure(i, at, reload_s(plan, p))
                    for i, p in enumerate(unit)
                    for name, at in failed
                    if name == p.name
                ),
            )
            result = simulate(spec)
            found.append(
                Replayed(
                    s.name,
                    tuple(p.name for p in unit),
                    result,
                    verdicts(result, {c.name: c.slos for c in classes}),
                    tuple(str(c.trace) for c in replaying(ask, [c.name for c in classes]) if c.name not in traces),
                )
            )
    return tuple(found)


def _traces(
    question: Question, ask: Ask, classes: Sequence[ClassLoad], said: Path | None, *, scale: float
) -> dict[str, TraceReplay]:
    """The trace that was said, at its own pace; else those that classes replay, where they are at hand."""
    if said is not None:
        share = classes[0].rate_per_s / (scale * ask.rate_of((classes[0].name,)))
        return {classes[0].name: TraceReplay(said, share=min(share, 1.0))}
    here = [c.name for c in replaying(ask, [c.name for c in classes]) if is_here(question, ask.name, c)]
    found = traces_of(question, ask, {n: r * scale for n, r in ask.rates if n in here})
    return {c.name: share_of(ask, c, found[c.name]) for c in classes if c.name in found}


def reload_s(plan: Plan, pool: PoolDoc) -> float:
    """Time until a lost replica serves again: its weights from storage, and a minute for the engine to start."""
    storage = next(p.storage_bandwidth for p in plan.fleet.pools if p.name == pool.fleet_pool)
    return pool.memory.weights * pool.gpus_per_replica / pool.nodes_per_replica / storage + 60.0


def _units(service: ServiceDoc) -> list[tuple[PoolDoc, ...]]:
    apart = [(p,) for p in service.pools if p.role == "aggregated"]
    pairs = [p for p in service.pools if p.role != "aggregated"]
    return [*apart, *([tuple(sorted(pairs, key=lambda p: p.role, reverse=True))] if pairs else [])]


def _failure(text: str, pools: Sequence[str]) -> tuple[str, float]:
    name, at, time = text.partition("@")
    if not at or name not in pools:
        raise UserError(
            "bad-failure",
            f"{text!r} is not POOL@TIME of this plan",
            None,
            (),
            (f"pools: {', '.join(pools)}; write {pools[0]}@60s",),
        )
    try:
        return name, TIME.parse(time)
    except QuantityError as e:
        raise UserError("bad-failure", f"{text!r}: {e}", None, (), (e.advice,) if e.advice else ()) from e


def replay_text(found: Sequence[Replayed], *, width: int = 100) -> str:
    """For a terminal."""
    return "\n\n".join(_text(r, max(60, min(width, 140))) for r in found)


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' if n != 1 else ''}"


def _told(v: Verdict, *, lost: int) -> tuple[str, str]:
    """Simulated figure and verdict; a promise that nothing measured is neither held nor missed, and one that holds
    while requests were lost holds for the others."""
    if math.isnan(v.simulated_s):
        return "nothing to measure", "-"
    if math.isinf(v.simulated_s):
        return "never", "MISSES"
    width = f" +- {show_time(v.half_width_s)}" if math.isfinite(v.half_width_s) else ""
    kept = f"holds, but {_count(lost, 'request')} got no answer" if lost else "holds"
    return f"{show_time(v.simulated_s)}{width}", kept if v.holds else "MISSES"


def _text(r: Replayed, width: int) -> str:
    b = r.result.books
    head = (
        f"SIMULATED {' + '.join(r.pools)}: {show_rate(r.result.rate_per_s)}, {_count(b.arrived, 'request')} over "
        f"{_count(len(r.result.seeds), 'seed')}, {show_time(r.result.duration_s)} each"
    )
    head += "".join(f"\n{t} is not here: Poisson arrivals stand for it" for t in r.missing)
    books = (
        f"{b.finished:,} finished, {b.rejected:,} rejected, {b.unfinished:,} unfinished, "
        f"{b.preemptions:,} preemptions; "
        f"{r.result.throughput_tokens_per_s:,.0f} tokens/s out"
    )
    rows = []
    for c in r.result.classes:
        for metric in ("ttft", "itl", "tpot", "e2e"):
            values = [c.value(metric, s) for s in ("mean", "p50", "p95", "p99")]
            rows.append((c.name, metric.upper(), *(show_time(v) if math.isfinite(v) else "-" for v in values)))
        rows.append((c.name, "goodput", f"{c.goodput_ratio:.1%}", "", "", ""))
    figures = table(("class", "", "mean", "p50", "p95", "p99"), rows, width=width, right=(2, 3, 4, 5))
    lost = b.rejected + b.unfinished
    promised = [(v.cls, str(v.slo), *_told(v, lost=lost)) for v in r.verdicts]
    slos = table(("class", "SLO", "simulated", ""), promised, width=width) if promised else ""
    pools = [
        (
            p.name, str(p.replicas), f"{p.utilisation_ratio:.0%}", f"{p.running_mean:.0f} (p99 {p.running_p99:.0f})",
            f"{p.kv_mean_ratio:.0%} (p99 {p.kv_p99_ratio:.0%})", f"{p.waiting_mean:.1f}",
        )
        for p in r.result.pools
    ]  # fmt: skip
    state = table(("pool", "replicas", "busy", "running", "cache", "waiting"), pools, width=width, right=(1, 2, 5))
    return "\n\n".join(x for x in (f"{head}\n{books}", slos, figures, state) if x)
