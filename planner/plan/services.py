"""One service's answer -> its part of the plan document: model, cost, hand-over."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.candidates import handover_of
from planner.candidates.ask import Ask
from planner.perf.checkpoints import checkpoint_for
from planner.perf.quantities import params_active, params_total, weight_bytes
from planner.perf.traffic import ClassLoad
from planner.plan import document as doc
from planner.plan.pools import BuiltPool, plain_words
from planner.plan.solution import ChosenService
from planner.plan.text import sig
from planner.units import show_bytes


def service_document(ask: Ask, chosen: ChosenService, pools: Sequence[BuiltPool]) -> doc.ServiceDoc:
    """The model that is served, its pools, what they cost and why they won."""
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
        why=tuple(plain_words(ask, w) for w in chosen.why),
        runner_up=None if chosen.runner_up is None else plain_words(ask, chosen.runner_up),
        bound_by=tuple(plain_words(ask, b) for b in chosen.bound_by),
    )


def _transfer(ask: Ask, pair: Sequence[BuiltPool]) -> doc.TransferDoc | None:
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


def _cost(pools: Sequence[BuiltPool]) -> doc.CostDoc:
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
