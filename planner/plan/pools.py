"""One chosen pool -> its part of the plan document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from planner.candidates import pool_spec
from planner.candidates.ask import Ask
from planner.candidates.candidate import Prediction
from planner.candidates.replica import calibration_of
from planner.catalog.gpus import find_gpu
from planner.intent.fleet import Pool
from planner.perf.breakdown import utilisation
from planner.perf.load import LoadModel, LoadResult
from planner.perf.traffic import ClassLoad
from planner.plan import document as doc
from planner.plan.reasons import pool_reasons
from planner.plan.solution import ChosenPool, ChosenService
from planner.plan.text import sig
from planner.units import show_time

if TYPE_CHECKING:
    from planner.plan.baddays import Day, Seen


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
    @property
    def replayed(self) -> Sequence[str]: ...
    @property
    def short(self) -> Sequence[str]: ...
    @property
    def running(self) -> Mapping[tuple[str, str], Occupancy]: ...
    @property
    def days(self) -> Mapping[Day, Seen]: ...


class Lifted(Protocol):
    """A candidate that the simulation found to carry more than the closed form says."""

    @property
    def service(self) -> str: ...
    @property
    def rate_rps(self) -> float: ...
    @property
    def closed_rps(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Of one replica while a whole trace was replayed."""

    running_mean: float
    running_p99: float
    kv_p99_ratio: float


@dataclass(frozen=True, slots=True)
class BuiltPool:
    """One chosen pool with what is computed of it once."""

    ask: Ask
    chosen: ChosenPool
    classes: tuple[ClassLoad, ...]
    result: LoadResult
    document: doc.PoolDoc


def build_pool(ask: Ask, service: ChosenService, chosen: ChosenPool, checked: Checked, index: int) -> BuiltPool:
    """Figures, memory, caps and reasons of one pool at its planned rate."""
    c = chosen.candidate
    d, m = c.deployment, c.memory
    classes = pool_classes(ask, chosen)
    spec = replace(pool_spec(ask, c), replicas=chosen.replicas)
    model = LoadModel(spec, tuple(x.at(x.rate_per_s / chosen.replicas) for x in classes))
    result = model.evaluate(chosen.rate_rps / chosen.replicas)
    histories = model.history_hit_ratios(chosen.rate_rps / chosen.replicas)
    shown = chosen
    seen = checked.running.get((ask.name, c.key))
    if seen is not None:
        # The closed form's busiest minute knows nothing of the bursts inside it.
        result = replace(
            result, running_mean=seen.running_mean, running_p99=seen.running_p99, kv_p99_ratio=seen.kv_p99_ratio
        )
        figures = {(p.class_name, p.metric): (ask.name, c.key, p.class_name, p.metric) for p in chosen.predictions}
        shown = replace(
            chosen,
            predictions=tuple(
                replace(p, value_s=checked.figures.get(figures[p.class_name, p.metric], p.value_s))
                for p in chosen.predictions
            ),
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
        name=pool_name(service, chosen, index),
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
        scheduling="priority" if by_priority(classes) else None,
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
        classes=tuple(class_document(ask, chosen, x, checked, histories.get(x.name)) for x in classes),
        cost=sig((price.per_gpu_hour if price else 0.0) * c.gpus * chosen.replicas, 6),
        power=None if gpu.tdp is None else sig(gpu.tdp * c.gpus * chosen.replicas),
        reasons={
            k: plain_words(ask, v)
            for k, v in pool_reasons(ask, shown, result, context_tokens=context, histories=histories).items()
        },
    )
    return BuiltPool(ask, chosen, classes, result, document)


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


def pool_name(service: ChosenService, chosen: ChosenPool, index: int) -> str:
    """The service's own name where it has one pool, else with the role or a letter."""
    if len(service.pools) == 1:
        return service.name
    if chosen.candidate.role != "aggregated":
        same = [p for p in service.pools if p.candidate.role == chosen.candidate.role]
        place = same.index(chosen)
        return f"{service.name}-{chosen.candidate.role}" + (f"-{place + 1}" if len(same) > 1 else "")
    return f"{service.name}-{chr(ord('a') + index)}"


def pool_classes(ask: Ask, chosen: ChosenPool, *, rate_ratio: float = 1.0) -> tuple[ClassLoad, ...]:
    """The classes that a pool serves, at its whole rate (or a share of it), with their promises."""
    rates = dict(ask.rates)
    names = chosen.candidate.class_names
    total = math.fsum(rates[n] for n in names)
    return tuple(
        replace(c, rate_per_s=chosen.rate_rps * rate_ratio * rates[c.name] / total, slos=ask.slos_of(c.name))
        for c in ask.classes
        if c.name in names
    )


def by_priority(classes: Sequence[ClassLoad]) -> bool:
    """Whether the engine must be told to serve some of the classes before others."""
    return len({c.priority for c in classes}) > 1


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


def class_document(
    ask: Ask, chosen: ChosenPool, c: ClassLoad, checked: Checked, history_hit_ratio: float | None
) -> doc.ClassDoc:
    """One class's figures, each beside its limit and the simulation's."""
    limits = {s.key: s.limit_s for s in ask.slos_of(c.name)}
    grid = c.grid()
    told = [p for p in chosen.predictions if p.class_name == c.name and math.isfinite(p.value_s) and p.value_s > 0]
    simulated = {p.metric: checked.figures.get((ask.name, chosen.candidate.key, c.name, p.metric)) for p in told}
    # A closed form that says a kept promise is broken is known to be too high: the simulation's figures stand for it.
    # So they do where a trace was replayed: no closed form knows its bursts.
    played = ask.name in checked.replayed and any(
        x.name == c.name and x.arrivals.process == "replay" for x in ask.service.traffic
    )
    over = {
        p.metric.partition(".")[0] for p in told if played or _too_high(p, limits.get(p.metric), simulated[p.metric])
    }
    figures = [
        _figure(
            p,
            limits.get(p.metric),
            simulated[p.metric],
            instead=("replay of the trace" if played else "simulation") if p.metric.partition(".")[0] in over else None,
        )
        for p in told
    ]
    return doc.ClassDoc(
        name=c.name,
        rate=sig(c.rate_per_s, 6),
        priority=c.priority if by_priority(pool_classes(ask, chosen)) else None,
        input_mean_tokens=sig(grid.mean(grid.input_tokens), 4),
        output_mean_tokens=sig(grid.mean(grid.output_tokens), 4),
        history_hit_ratio=None if history_hit_ratio is None else sig(history_hit_ratio),
        figures=tuple(figures),
    )


def _too_high(p: Prediction, limit: float | None, simulated: float | None) -> bool:
    return limit is not None and simulated is not None and p.value_s > limit >= simulated


def _figure(p: Prediction, limit: float | None, simulated: float | None, *, instead: str | None) -> doc.Figure:
    seen = None if simulated is None or not math.isfinite(simulated) or simulated <= 0 else simulated
    closed, value, method = p.value_s, p.value_s, p.method
    if instead is not None and seen is not None:
        value, method = seen, f"{instead}; closed form {show_time(sig(closed))}"
    return doc.Figure(
        metric=p.metric,
        value=sig(value),
        low=sig(value * p.low_s / closed),
        high=sig(value * p.high_s / closed),
        limit=limit,
        method=method,
        simulated=None if seen is None else sig(seen),
    )


def per_node(pool: Pool) -> int:
    """GPUs of one of the pool's nodes."""
    return pool.gpus_per_node or find_gpu(pool.gpu).node.gpus


def plain_words(ask: Ask, text: str) -> str:
    """Words about a service whose only class nobody named: without the name it was given."""
    return text.replace("default ", "") if [c.name for c in ask.service.traffic] == ["default"] else text
