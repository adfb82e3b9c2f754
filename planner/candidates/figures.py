"""What a chosen replica shows at its planned rate: every metric at mean and percentiles, with its band and method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from planner.candidates.ask import Ask
from planner.candidates.candidate import Candidate, Prediction
from planner.candidates.handover import handover_between
from planner.candidates.margins import band_of
from planner.candidates.replica import calibration_of, classes_of, load_model, pool_spec, replicas_counted_on
from planner.perf.pair import PairModel
from planner.perf.pool import Handover
from planner.perf.spread import ClassFigures, Spread

STATS = ("mean", "p50", "p95", "p99")


def handover_of(ask: Ask, prefill: Candidate, decode: Candidate) -> Handover:
    """How the cache moves between two chosen replicas."""
    return handover_between(prefill.deployment, decode.deployment)


def predict(
    ask: Ask, candidate: Candidate, rate_rps: float, partner: tuple[Candidate, float] | None = None
) -> tuple[Prediction, ...]:
    """Figures of one replica at its rate. With a partner (prefill's decode replica, or the reverse) and its rate: of
    requests that pass through both, told once, by the decode side, with TTFT's own part told by the prefill side."""
    if partner is None:
        figures = load_model(ask, candidate).evaluate(rate_rps).classes
        return _told(ask, candidate, figures, _metrics(candidate.role))
    other, other_rate = partner
    if candidate.role == "prefill":
        pair = _pair(ask, candidate, other).evaluate(rate_rps, other_rate)
        return _told(ask, candidate, pair.classes, ("ttft",))
    pair = _pair(ask, other, candidate).evaluate(other_rate, rate_rps)
    return _told(ask, candidate, pair.classes, ("itl", "tpot", "e2e", "ttfa"))


def _pair(ask: Ask, prefill: Candidate, decode: Candidate) -> PairModel:
    return PairModel(
        replace(pool_spec(ask, prefill), replicas=replicas_counted_on(ask, prefill)),
        pool_spec(ask, decode),
        handover_of(ask, prefill, decode),
        classes_of(ask, prefill.class_names),
    )


def _metrics(role: str) -> tuple[str, ...]:
    return ("ttft",) if role == "prefill" else ("itl", "tpot", "e2e", "ttfa") if role == "decode" else _ALL


_ALL = ("ttft", "itl", "tpot", "e2e", "ttfa")


def _told(
    ask: Ask, candidate: Candidate, figures: Sequence[ClassFigures], metrics: Sequence[str]
) -> tuple[Prediction, ...]:
    calibration = calibration_of(candidate.deployment)
    found = []
    for c in figures:
        asked = {s.key for s in ask.slos_of(c.name)}
        for metric in metrics:
            spread: Spread | None = getattr(c, metric)
            if spread is None:
                continue
            low, high = band_of(ask, calibration, metric)
            stats = dict.fromkeys((*STATS, *sorted(k.split(".", 1)[1] for k in asked if k.startswith(f"{metric}."))))
            for stat in stats:
                value = spread.stat(stat)
                if math.isfinite(value):
                    found.append(
                        Prediction(c.name, f"{metric}.{stat}", value, value * low, value * high, spread.method)
                    )
    return tuple(found)
