"""A solution and its check -> the plan document. Values only: nothing is decided here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version as package_version
from typing import Protocol

from planner.candidates.ask import Ask
from planner.candidates.margins import measured_as, model_seen
from planner.catalog.engines import find_engine
from planner.catalog.gpus import find_gpu
from planner.documents import digest
from planner.intent.document import Intent, TrafficClass
from planner.intent.fleet import Fleet
from planner.intent.platform import Platform
from planner.perf.bands import Promise, band_entry, odds
from planner.perf.calibration import calibration_for
from planner.plan import document as doc
from planner.plan.baddays import bad_days, running_pools
from planner.plan.models import embedded
from planner.plan.pairdays import pair_days, running_pairs
from planner.plan.pools import BuiltPool, Checked, build_pool, graph_sizes_max, per_node
from planner.plan.services import service_document
from planner.plan.solution import Solution
from planner.plan.text import sig
from planner.plan.today import Today, keys_of
from planner.units import show_money, show_rate, show_time


class Asked(Protocol):
    """The question, as far as a plan repeats it."""

    @property
    def intent(self) -> Intent: ...
    @property
    def fleet(self) -> Fleet: ...
    @property
    def platform(self) -> Platform: ...
    @property
    def asks(self) -> tuple[Ask, ...]: ...
    @property
    def assumed(self) -> tuple[str, ...]: ...
    @property
    def today(self) -> Today | None: ...


def assemble(asked: Asked, solution: Solution, checked: Checked) -> doc.Plan:
    """Everything a reviewer reads, in file order."""
    by_name = {a.name: a for a in asked.asks}
    pools: list[BuiltPool] = []
    services: list[doc.ServiceDoc] = []
    for chosen in sorted(solution.services, key=lambda s: s.name):
        ask = by_name[chosen.name]
        mine = [build_pool(ask, chosen, p, checked, i) for i, p in enumerate(chosen.pools)]
        pools += mine
        services.append(service_document(ask, chosen, mine))
    every = [p.document for p in pools]
    odds_value, odds_note = _odds(pools)
    tdp = [p.power for p in every]
    totals = doc.Totals(
        gpus=sum(p.gpus for p in every),
        fleet_gpus=sum((p.nodes - p.reserved_nodes) * per_node(p) for p in asked.fleet.pools),
        cost=sig(math.fsum(p.cost for p in every), 6),
        committed=sig(math.fsum(p.cost for p in every if _committed(asked.fleet, p)), 6),
        power=sig(math.fsum(w for w in tdp if w is not None)) if all(w is not None for w in tdp) else None,
        odds=odds_value,
        odds_note=odds_note,
        scale=None if solution.scale is None else sig(solution.scale, 6),
    )
    used = {p.fleet_pool for p in every}
    return doc.Plan(
        planner_version=package_version("llm-deployment-planner"),
        status=solution.status,
        verification=_verification(checked, len(services)),
        totals=totals,
        change=_change(asked.today, services, totals),
        services=tuple(services),
        bad_days=(
            *bad_days(
                [r for c, r in running_pools(by_name, solution) if c.candidate.role == "aggregated"], checked.days
            ),
            *pair_days(list(running_pairs(by_name, solution))),
        ),
        decide=_decide(asked, services),
        defaults=asked.assumed,
        assumed=_assumed(by_name, services),
        warnings=(
            *solution.notes,
            *(f"not confirmed: {f}" for f in checked.failed),
            *(f"past its limit within the simulation's noise: {d}" for d in checked.doubts),
            *_not_replayed(asked, checked),
            *_warnings(pools),
        ),
        measure_first=_measure_first(services),
        solver=doc.Solver(
            name="cp-sat",
            version=solution.solver_version,
            objective=solution.objective,
            value=sig(solution.value, 6),
            bound=sig(solution.bound, 6),
            gap=sig(solution.gap),
            tie_breaks=solution.tie_breaks,
        ),
        digests=_digests(asked, pools),
        intent=asked.intent,
        fleet=asked.fleet.model_copy(update={"pools": tuple(p for p in asked.fleet.pools if p.name in used)}),
        platform=asked.platform,
        own_models=embedded(a.model for a in asked.asks if a.model is not None),
    )


# ---------------------------------------------------------------- the rest


def _verification(checked: Checked, services: int) -> doc.Verification:
    if not checked.rounds:
        return doc.Verification(by="none", note="the event simulation was skipped (--no-verify)")
    rounds = "1 round" if checked.rounds == 1 else f"{checked.rounds} rounds"
    note = f"one replica of each pool under thinned arrivals, {rounds}"
    if checked.replayed:
        what = "the busiest stretch of the trace" if checked.short else "the whole trace"
        whole = f"{what} of {', '.join(checked.replayed)} over all its replicas"
        note = f"{whole}, {rounds}" if len(checked.replayed) == services else f"{whole}; the rest: {note}"
    for x in checked.lifts:
        if x.service in checked.replayed:
            note += f"; {x.service} takes as few replicas as keep every promise through its trace's bursts"
        else:
            note += (
                f"; {x.service} is planned for the {show_rate(x.rate_rps)} a replica that the simulation finds within "
                f"every promise ({show_rate(x.closed_rps)} in closed form)"
            )
    return doc.Verification(by="simulation", rounds=checked.rounds, note=note, failed=checked.failed)


def _odds(pools: Sequence[BuiltPool]) -> tuple[float | None, str]:
    """Chance that every promise holds at peak: the model's error, shared by what one pool promises, and its noise."""
    promises: list[Promise] = []
    for p in pools:
        d = p.chosen.candidate.deployment
        calibration = calibration_for(d.engine, d.engine_version, d.hardware)
        seen = model_seen(p.ask, calibration)
        for c in p.document.classes:
            for f in c.figures:
                if f.limit is not None:
                    band = band_entry(
                        calibration,
                        measured_as(f.metric.partition(".")[0]),
                        model_seen=seen,
                        gpu_seen=calibration.gpu_measured,
                    )
                    value = f.value if f.simulated is None else max(f.value, f.simulated)
                    promises.append(Promise(value, f.limit, band, p.document.name))
    if not promises:
        return None, "no SLO was given"
    return sig(odds(promises), 2), "from the error bands of the step times; one measured anchor per pool narrows them"


def _change(today: Today | None, services: Sequence[doc.ServiceDoc], totals: doc.Totals) -> doc.Change | None:
    if today is None:
        return None
    before, after = today.keys(), keys_of(services)
    return doc.Change(
        baseline=f"{today.gpus} GPUs, {show_money(today.dollars_per_hour)}/h ({today.name})",
        gpus=totals.gpus - today.gpus,
        cost_per_hour=round(totals.cost - today.dollars_per_hour, 2) + 0.0,
        restarts=tuple(sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))),
    )


def _decide(asked: Asked, services: Sequence[doc.ServiceDoc]) -> tuple[str, ...]:
    found = []
    for s in services:
        m = s.model
        if m.accuracy_prior is not None and m.accuracy_low is not None and m.accuracy_prior < 1:
            found.append(
                f"{s.name}: accept {m.precision} "
                f"(accuracy kept {m.accuracy_prior:.1%}, prior down to {m.accuracy_low:.1%})"
            )
        if all(p.replicas == 1 for p in s.pools if p.role == "aggregated") and any(
            p.role == "aggregated" for p in s.pools
        ):
            found.append(f"{s.name}: one replica only: a rollout or a crash interrupts service")
    return tuple(found)


def _assumed(asks: Mapping[str, Ask], services: Sequence[doc.ServiceDoc]) -> tuple[str, ...]:
    found = []
    for s in services:
        for c in asks[s.name].service.traffic:
            docs = [d for p in s.pools if p.role != "prefill" for d in p.classes if d.name == c.name]
            if docs:
                name = f"{s.name} {c.name}" if c.name != "default" else s.name
                rate = math.fsum(d.rate for d in docs)
                source = f" ({c.rate_source})" if c.rate_source else (" busiest minute" if c.rate else " carried")
                arrivals = {"poisson": "Poisson arrivals", "replay": f"arrivals as in {c.trace}"}.get(
                    c.arrivals.process, f"gaps of CV {c.arrivals.cv:g} arrivals"
                )
                found.append(
                    f"{name} {show_rate(rate)}{source}, "
                    f"{docs[0].input_mean_tokens:,.0f}/{docs[0].output_mean_tokens:,.0f} tokens, "
                    f"{arrivals}{_sessions(s, c)}"
                )
        places = sorted({(d.priority, d.name) for p in s.pools for d in p.classes if d.priority is not None})
        if places:
            order = ", ".join(f"{name} {place}" for place, name in places)
            found.append(
                f"{s.name} clients send `priority` with every request ({order}): lower is served first, "
                "one without it counts as 0"
            )
    return tuple(found)


def _sessions(service: doc.ServiceDoc, c: TrafficClass) -> str:
    """Turns, and the least of their history that any pool counts on in its cache."""
    hits = [
        d.history_hit_ratio
        for p in service.pools
        for d in p.classes
        if d.name == c.name and d.history_hit_ratio is not None
    ]
    if c.sessions is None or not hits:
        return ""
    return (
        f", sessions of {c.sessions.turns:g} turns {show_time(c.sessions.think_time)} apart, "
        f"{min(hits):.0%} of earlier turns found in the cache"
    )


def _not_replayed(asked: Asked, checked: Checked) -> Iterator[str]:
    for service in asked.intent.services:
        for c in service.traffic:
            if c.arrivals.process == "replay" and service.name not in checked.replayed:
                instead = "its busiest minute as Poisson arrivals stands for it"
                yield f"{service.name}: {c.trace} was not replayed; {instead}"


def _warnings(pools: Sequence[BuiltPool]) -> tuple[str, ...]:
    found: list[str] = []
    for p in pools:
        d = p.chosen.candidate.deployment
        warning = calibration_for(d.engine, d.engine_version, d.hardware).warning
        if warning:
            found.append(warning)
        found += [
            f"{d.arch.name}: {why}" for why in (*d.arch.approximate, *(f"left out: {x}" for x in d.arch.left_out))
        ]
        if p.document.gpu_memory_utilization > 0.95:
            found.append(f"{p.document.name}: utilisation above 0.95 has run out of memory in graph capture")
        if any(f.metric.startswith("itl.p") and f.limit is not None for c in p.document.classes for f in c.figures):
            found.append("ITL percentiles are modelled and checked by simulation; no public measurement of them exists")
    return tuple(dict.fromkeys(found))


def _measure_first(services: Sequence[doc.ServiceDoc]) -> tuple[str, ...]:
    """The figure nearest to its limit, at the batch it depends on."""
    found = []
    for s in services:
        tight = [
            (f.value / f.limit, p, c, f) for p in s.pools for c in p.classes for f in c.figures if f.limit is not None
        ]
        if tight:
            _, p, _, f = max(tight, key=lambda t: t[0])
            name, _, stat = f.metric.partition(".")
            found.append(
                f"{s.name} {name.upper()} {stat} at {p.running_mean:.0f} running ({show_time(f.value)} planned)"
            )
    return tuple(found)


def _committed(fleet: Fleet, pool: doc.PoolDoc) -> bool:
    return any(p.name == pool.fleet_pool and p.price is not None and p.price.committed for p in fleet.pools)


def _digests(asked: Asked, pools: Sequence[BuiltPool]) -> doc.Digests:
    """Over canonical forms of what the answer rests on, and of nothing else."""
    gpus = {p.gpu: find_gpu(p.gpu).model_dump(mode="json") for p in asked.fleet.pools}
    models = {a.model.id: a.model.config for a in asked.asks if a.model is not None}
    engines = {
        f"{a.service.engine} {a.engine_version}": find_engine(a.service.engine, a.engine_version).model_dump(
            mode="json"
        )
        for a in asked.asks
    }
    calibrations = {}
    for p in pools:
        d = p.chosen.candidate.deployment
        c = calibration_for(d.engine, d.engine_version, d.hardware)
        calibrations[c.name] = [c.fit_date, c.rows, repr(c.constants)]
    return doc.Digests(
        intent=digest(asked.intent.model_dump(mode="json")),
        fleet=digest(asked.fleet.model_dump(mode="json")),
        catalog=digest({"gpus": gpus, "models": models, "engines": engines}),
        calibration=digest(calibrations),
    )


__all__ = ["assemble", "graph_sizes_max"]
