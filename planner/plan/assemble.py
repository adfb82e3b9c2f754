"""A solution and its check -> the plan document. Values only: nothing is decided here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version as package_version
from typing import Protocol

from planner.candidates import handover_of, pool_spec
from planner.candidates.ask import Ask
from planner.candidates.candidate import Prediction
from planner.candidates.margins import measured_as, model_seen
from planner.candidates.replica import calibration_of
from planner.catalog.engines import find_engine
from planner.catalog.gpus import find_gpu
from planner.documents import digest
from planner.intent.document import Intent
from planner.intent.fleet import Fleet
from planner.intent.platform import Platform
from planner.perf.bands import Promise, band_entry, odds
from planner.perf.breakdown import utilisation
from planner.perf.calibration import calibration_for
from planner.perf.checkpoints import checkpoint_for
from planner.perf.load import LoadModel, LoadResult
from planner.perf.quantities import params_active, params_total, weight_bytes
from planner.perf.traffic import ClassLoad
from planner.plan import document as doc
from planner.plan.baddays import Running, bad_days
from planner.plan.models import embedded
from planner.plan.reasons import pool_reasons
from planner.plan.solution import ChosenPool, ChosenService, Solution
from planner.plan.text import sig
from planner.plan.today import Today, keys_of
from planner.units import show_bytes, show_money, show_rate, show_time


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


class Checked(Protocol):
    """What the simulation said."""

    @property
    def rounds(self) -> int: ...
    @property
    def figures(self) -> Mapping[tuple[str, str, str, str], float]: ...
    @property
    def failed(self) -> tuple[str, ...]: ...
    @property
    def doubts(self) -> tuple[str, ...]: ...
    @property
    def lifts(self) -> Sequence[Lifted]: ...


class Lifted(Protocol):
    """A candidate that the simulation found to carry more than the closed form says."""

    @property
    def service(self) -> str: ...
    @property
    def rate_rps(self) -> float: ...
    @property
    def closed_rps(self) -> float: ...


@dataclass(frozen=True, slots=True)
class _Pool:
    """One chosen pool with what is computed of it once."""

    ask: Ask
    chosen: ChosenPool
    classes: tuple[ClassLoad, ...]
    result: LoadResult
    document: doc.PoolDoc


def assemble(asked: Asked, solution: Solution, checked: Checked) -> doc.Plan:
    """Everything a reviewer reads, in file order."""
    by_name = {a.name: a for a in asked.asks}
    pools: list[_Pool] = []
    services: list[doc.ServiceDoc] = []
    for chosen in sorted(solution.services, key=lambda s: s.name):
        ask = by_name[chosen.name]
        mine = [_pool(ask, chosen, p, checked, i) for i, p in enumerate(chosen.pools)]
        pools += mine
        services.append(_service(ask, chosen, mine))
    every = [p.document for p in pools]
    odds_value, odds_note = _odds(pools)
    tdp = [p.power for p in every]
    totals = doc.Totals(
        gpus=sum(p.gpus for p in every),
        fleet_gpus=sum((p.nodes - p.reserved_nodes) * _per_node(p) for p in asked.fleet.pools),
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
        verification=_verification(checked),
        totals=totals,
        change=_change(asked.today, services, totals),
        services=tuple(services),
        bad_days=bad_days([_running(p, pools) for p in pools if p.chosen.candidate.role == "aggregated"]),
        decide=_decide(asked, services),
        defaults=asked.assumed,
        assumed=_assumed(by_name, services),
        warnings=(
            *solution.notes,
            *(f"not confirmed: {f}" for f in checked.failed),
            *(f"past its limit within the simulation's noise: {d}" for d in checked.doubts),
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


# ---------------------------------------------------------------- one pool


def _pool(ask: Ask, service: ChosenService, chosen: ChosenPool, checked: Checked, index: int) -> _Pool:
    c = chosen.candidate
    d, m = c.deployment, c.memory
    classes = _pool_classes(ask, chosen)
    spec = pool_spec(ask, c)
    result = LoadModel(spec, tuple(x.at(x.rate_per_s / chosen.replicas) for x in classes)).evaluate(
        chosen.rate_rps / chosen.replicas
    )
    gpu = find_gpu(ask.pool(c.fleet_pool).gpu)
    price = ask.pool(c.fleet_pool).price
    context = _mean_context(classes)
    mbu, mfu = utilisation(
        d,
        calibration_of(d),
        decode_seqs=max(1, round(result.running_mean)),
        context_tokens=context,
        chunk_tokens=c.caps.max_num_batched_tokens,
    )
    document = doc.PoolDoc(
        name=_pool_name(service, chosen, index),
        role=c.role,
        fleet_pool=c.fleet_pool,
        gpu=d.hardware.gpu_id,
        shape=doc.ShapeDoc(tp=d.shape.tp, pp=d.shape.pp, dp=d.shape.dp, ep=d.shape.ep),
        gpus_per_replica=c.gpus,
        nodes_per_replica=max(1, c.nodes),
        replicas=chosen.replicas,
        gpus=c.gpus * chosen.replicas,
        kv_dtype=d.kv_dtype,
        max_num_seqs=c.caps.max_num_seqs,
        max_num_batched_tokens=c.caps.max_num_batched_tokens,
        max_model_len=c.caps.max_model_len,
        gpu_memory_utilization=sig(c.caps.gpu_memory_utilization),
        graph_sizes_max=graph_sizes_max(c.caps.max_num_seqs, spec.tokens_per_sequence),
        rate=sig(chosen.rate_rps, 6),
        rate_max=sig(c.load.lambda_max_rps * chosen.replicas, 6),
        load=sig(chosen.rate_rps / (c.load.lambda_max_rps * chosen.replicas)),
        running_mean=sig(result.running_mean),
        running_p99=sig(result.running_p99),
        kv_sequences=sig(m.max_sequences(context)),
        kv_tokens=m.kv_tokens,
        kv_use_p99=sig(min(result.kv_p99_ratio, 1.0)),
        mbu=sig(mbu),
        mfu=sig(mfu),
        memory=doc.MemoryDoc(
            total=sig(m.total_bytes),
            usable=sig(m.usable_bytes),
            weights=sig(m.weights_bytes),
            activations=sig(m.activation_bytes),
            cuda_graphs=sig(m.cudagraph_bytes),
            overhead=sig(m.overhead_bytes),
            kv_cache=sig(max(m.kv_bytes, 0.0)),
            method=m.method,
        ),
        classes=tuple(_class(ask, chosen, x, checked) for x in classes),
        cost=sig((price.per_gpu_hour if price else 0.0) * c.gpus * chosen.replicas, 6),
        power=None if gpu.tdp is None else sig(gpu.tdp * c.gpus * chosen.replicas),
        reasons={k: _plain(ask, v) for k, v in pool_reasons(ask, chosen, result, context_tokens=context).items()},
    )
    return _Pool(ask, chosen, classes, result, document)


def graph_sizes_max(max_num_seqs: int, tokens_per_sequence: int = 1) -> int:
    """Largest batch that is captured as a CUDA graph: the first captured size that holds the whole cap.

    Engines capture 1, 2, 4, every 8 up to 256 and every 16 beyond; above the largest a step runs without graphs.

    >>> [graph_sizes_max(n) for n in (1, 3, 96, 257)]
    [1, 4, 96, 272]
    """
    tokens = max_num_seqs * tokens_per_sequence
    if tokens <= 4:
        return next(n for n in (1, 2, 4) if n >= tokens)
    step = 8 if tokens <= 256 else 16
    return -(-tokens // step) * step


def _pool_name(service: ChosenService, chosen: ChosenPool, index: int) -> str:
    if len(service.pools) == 1:
        return service.name
    if chosen.candidate.role != "aggregated":
        same = [p for p in service.pools if p.candidate.role == chosen.candidate.role]
        place = same.index(chosen)
        return f"{service.name}-{chosen.candidate.role}" + (f"-{place + 1}" if len(same) > 1 else "")
    return f"{service.name}-{chr(ord('a') + index)}"


def _pool_classes(ask: Ask, chosen: ChosenPool) -> tuple[ClassLoad, ...]:
    rates = dict(ask.rates)
    names = chosen.candidate.class_names
    total = math.fsum(rates[n] for n in names)
    return tuple(
        replace(c, rate_per_s=chosen.rate_rps * rates[c.name] / total, slos=ask.slos_of(c.name))
        for c in ask.classes
        if c.name in names
    )


def _mean_context(classes: Sequence[ClassLoad]) -> float:
    """Mean context of a running sequence: its prompt and half of its answer, long answers counted longer."""
    weight = total = 0.0
    for c in classes:
        g = c.grid()
        for i, o, w in zip(g.input_tokens, g.output_tokens, g.weights, strict=True):
            share = c.rate_per_s * float(w) * float(o)
            weight += share
            total += share * (float(i) + float(o) / 2)
    return total / weight if weight else 1.0


def _class(ask: Ask, chosen: ChosenPool, c: ClassLoad, checked: Checked) -> doc.ClassDoc:
    limits = {s.key: s.limit_s for s in ask.slos_of(c.name)}
    grid = c.grid()
    told = [p for p in chosen.predictions if p.class_name == c.name and math.isfinite(p.value_s) and p.value_s > 0]
    simulated = {p.metric: checked.figures.get((ask.name, chosen.candidate.key, c.name, p.metric)) for p in told}
    # A closed form that says a kept promise is broken is known to be too high: the simulation's figures stand for it.
    over = {p.metric.partition(".")[0] for p in told if _too_high(p, limits.get(p.metric), simulated[p.metric])}
    figures = [
        _figure(p, limits.get(p.metric), simulated[p.metric], from_simulation=p.metric.partition(".")[0] in over)
        for p in told
    ]
    return doc.ClassDoc(
        name=c.name,
        rate=sig(c.rate_per_s, 6),
        input_mean_tokens=sig(grid.mean(grid.input_tokens), 4),
        output_mean_tokens=sig(grid.mean(grid.output_tokens), 4),
        figures=tuple(figures),
    )


def _too_high(p: Prediction, limit: float | None, simulated: float | None) -> bool:
    return limit is not None and simulated is not None and p.value_s > limit >= simulated


def _figure(p: Prediction, limit: float | None, simulated: float | None, *, from_simulation: bool) -> doc.Figure:
    seen = None if simulated is None or not math.isfinite(simulated) or simulated <= 0 else simulated
    closed, value, method = p.value_s, p.value_s, p.method
    if from_simulation and seen is not None:
        value, method = seen, f"simulation; closed form {show_time(sig(closed))}"
    return doc.Figure(
        metric=p.metric,
        value=sig(value),
        low=sig(value * p.low_s / closed),
        high=sig(value * p.high_s / closed),
        limit=limit,
        method=method,
        simulated=None if seen is None else sig(seen),
    )


# ---------------------------------------------------------------- one service


def _service(ask: Ask, chosen: ChosenService, pools: Sequence[_Pool]) -> doc.ServiceDoc:
    c = pools[0].chosen.candidate
    d = c.deployment
    assert ask.model is not None
    checkpoint = checkpoint_for(ask.model, d.precision)
    prior = checkpoint.accuracy
    speculation = ask.service.speculation
    pair = [p for p in pools if p.chosen.candidate.role != "aggregated"]
    return doc.ServiceDoc(
        name=chosen.name,
        model=doc.ModelDoc(
            id=ask.model.id,
            repo=checkpoint.repo,
            precision=d.precision,
            online_quantization=checkpoint.precision if checkpoint.online else None,
            params_total=params_total(d.arch),
            params_active=params_active(d.arch),
            weights=sig(d.weights_bytes_measured or weight_bytes(d.arch, d.weights)),
            family=d.arch.family,
            is_moe=d.arch.moe,
            own=ask.model.kind == "own",
            accuracy_prior=None if prior is None else prior.value,
            accuracy_low=None if prior is None else prior.low,
            accuracy_high=None if prior is None else prior.high,
            accuracy_source=None if prior is None else prior.source,
        ),
        engine=d.engine,
        engine_version=d.engine_version,
        target=ask.service.target,
        pools=tuple(p.document for p in pools),
        speculation=None
        if speculation is None
        else doc.SpeculationDoc(
            method=speculation.method,
            tokens=speculation.tokens,
            acceptance=speculation.acceptance,
            draft_model=speculation.draft_model,
        ),
        transfer=_transfer(ask, pair),
        cost=_cost(pools),
        why=tuple(_plain(ask, w) for w in chosen.why),
        runner_up=None if chosen.runner_up is None else _plain(ask, chosen.runner_up),
        bound_by=tuple(_plain(ask, b) for b in chosen.bound_by),
    )


def _plain(ask: Ask, text: str) -> str:
    """Words about a service whose only class nobody named: without the name it was given."""
    return text.replace("default ", "") if [c.name for c in ask.service.traffic] == ["default"] else text


def _transfer(ask: Ask, pair: Sequence[_Pool]) -> doc.TransferDoc | None:
    prefill = next((p for p in pair if p.chosen.candidate.role == "prefill"), None)
    decode = next((p for p in pair if p.chosen.candidate.role == "decode"), None)
    if prefill is None or decode is None:
        return None
    over = handover_of(ask, prefill.chosen.candidate, decode.chosen.candidate)
    tokens = prefill.document.classes[0].input_mean_tokens
    return doc.TransferDoc(
        prompt_kv=sig(over.bytes_per_sequence + over.bytes_per_token * tokens),
        time=sig(over.seconds(tokens)),
        over=f"NIC, {show_bytes(over.bytes_per_s)}/s, RDMA",
    )


def _cost(pools: Sequence[_Pool]) -> doc.CostDoc:
    per_hour = math.fsum(p.document.cost for p in pools)
    counted = [p for p in pools if p.chosen.candidate.role != "prefill"]
    outputs = math.fsum(c.rate_per_s * _mean(c, "output_tokens") for p in counted for c in p.classes) * 3600
    inputs = math.fsum(c.rate_per_s * _mean(c, "input_tokens") for p in counted for c in p.classes) * 3600
    troughs = [c.trough_ratio for p in counted for c in p.classes]
    # A day that swings evenly between trough and peak carries their mean.
    daily = None
    if troughs and all(t is not None for t in troughs):
        carried = math.fsum(
            c.rate_per_s * _mean(c, "output_tokens") * (1 + (c.trough_ratio or 0.0)) / 2
            for p in counted
            for c in p.classes
        )
        daily = sig(per_hour / (carried * 3600) * 1e6)
    return doc.CostDoc(
        per_hour=sig(per_hour, 6),
        per_million_output_tokens=sig(per_hour / outputs * 1e6),
        per_million_input_tokens=sig(per_hour / inputs * 1e6),
        per_million_output_tokens_daily_mean=daily,
    )


def _mean(c: ClassLoad, name: str) -> float:
    grid = c.grid()
    return grid.mean(getattr(grid, name))


# ---------------------------------------------------------------- the rest


def _verification(checked: Checked) -> doc.Verification:
    if not checked.rounds:
        return doc.Verification(by="none", note="the event simulation was skipped (--no-verify)")
    rounds = "1 round" if checked.rounds == 1 else f"{checked.rounds} rounds"
    note = f"one replica of each pool under thinned arrivals, {rounds}"
    for x in checked.lifts:
        note += (
            f"; {x.service} is planned for the {show_rate(x.rate_rps)} a replica that the simulation finds within "
            f"every promise ({show_rate(x.closed_rps)} in closed form)"
        )
    return doc.Verification(by="simulation", rounds=checked.rounds, note=note, failed=checked.failed)


def _odds(pools: Sequence[_Pool]) -> tuple[float | None, str]:
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
                found.append(
                    f"{name} {show_rate(rate)}{source}, "
                    f"{docs[0].input_mean_tokens:,.0f}/{docs[0].output_mean_tokens:,.0f} tokens, "
                    f"{'Poisson' if c.arrivals.process == 'poisson' else f'gaps of CV {c.arrivals.cv:g}'} arrivals"
                )
    return tuple(found)


def _warnings(pools: Sequence[_Pool]) -> tuple[str, ...]:
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


def _running(p: _Pool, every: Sequence[_Pool]) -> Running:
    c = p.chosen.candidate
    pool = p.ask.pool(c.fleet_pool)
    per_node = _per_node(pool)
    used = sum(o.document.gpus for o in every if o.document.fleet_pool == c.fleet_pool)
    spare = (pool.nodes - pool.reserved_nodes) * per_node - used
    return Running(
        service=p.ask.name,
        pool=p.document.name,
        spec=pool_spec(p.ask, c),
        classes=p.classes,
        replicas=p.chosen.replicas,
        lost_with_node=max(1, min(p.chosen.replicas, per_node // c.gpus)),
        reload_s=c.memory.weights_bytes * min(c.gpus, per_node) / pool.storage_bandwidth + 60.0,
        max_model_len=c.caps.max_model_len,
        surge=spare >= c.gpus,
    )


def _per_node(pool: object) -> int:
    from planner.intent.fleet import Pool

    assert isinstance(pool, Pool)
    return pool.gpus_per_node or find_gpu(pool.gpu).node.gpus


def _committed(fleet: Fleet, pool: doc.PoolDoc) -> bool:
    return any(p.name == pool.fleet_pool and p.price is not None and p.price.committed for p in fleet.pools)


def _digests(asked: Asked, pools: Sequence[_Pool]) -> doc.Digests:
    """Over canonical forms of what the answer rests on, and of nothing else."""
    gpus = {p.gpu: find_gpu(p.gpu).model_dump(mode="json") for p in asked.fleet.pools}
    models = {a.name: a.model.config for a in asked.asks if a.model is not None}
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
