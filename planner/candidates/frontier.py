"""The frontier: what a model's users can have on a fleet, whatever is promised.

Throughput per GPU against tokens/s per user, and cost per million output tokens against p99 TTFT. Every layout that
runs is asked about, with a small and a large token budget, at rates from nearly idle to the load cap; what another
point beats in both figures is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.candidates.ask import Ask
from planner.candidates.enumerate import Layout, layouts, longest_request, places
from planner.candidates.replica import classes_of, deployment_of, memory_of, spec_of
from planner.candidates.sizing import largest_graph, mix_of, seqs_cap
from planner.perf.load import LoadModel

BUDGETS = (1024, 8192)
SHARES = (0.02, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8)
"""Of lambda_max."""
_METRICS = frozenset({"ttft", "itl"})


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One replica at one rate."""

    fleet_pool: str
    gpu: str
    shape: str
    precision: str
    max_num_batched_tokens: int
    max_num_seqs: int
    gpus: int
    rate_rps: float
    """Of the replica."""
    user_tokens_per_s: float
    """1 / mean ITL: how fast one user's answer comes."""
    gpu_tokens_per_s: float
    """Output tokens per second and GPU."""
    ttft_p99_s: float
    dollars_per_million_tokens: float
    """Output tokens, at this rate; 0 where the pool has no price or is committed."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """Both fronts, each sorted by its first figure."""

    speed: tuple[FrontierPoint, ...]
    """Throughput per GPU against tokens/s per user."""
    cost: tuple[FrontierPoint, ...]
    """Cost per million output tokens against p99 TTFT."""


def frontier(ask: Ask) -> Frontier:
    """Points that no other beats, of all classes of the service together."""
    points: list[FrontierPoint] = []
    longest = longest_request(ask)
    for place in places(ask):
        for layout in layouts(ask, place, longest, []):
            for budget in BUDGETS:
                points += _points(ask, place.pool.name, place.dollars_per_gpu_hour, layout, budget, longest)
    return Frontier(
        speed=_front(points, lambda p: (-p.user_tokens_per_s, -p.gpu_tokens_per_s)),
        cost=_front(points, lambda p: (p.ttft_p99_s, p.dollars_per_million_tokens)),
    )


def _points(  # noqa: PLR0917 - one caller
    ask: Ask, pool: str, price: float, layout: Layout, budget: int, longest: int
) -> list[FrontierPoint]:
    d = deployment_of(
        ask,
        layout.hardware,
        checkpoint=layout.checkpoint,
        kv_dtype=layout.kv_dtype,
        shape=layout.shape,
        role="aggregated",
    )
    utilization = ask.service.gpu_memory_utilization
    classes = classes_of(ask, tuple(n for n, _ in ask.rates))
    m = memory_of(d, budget=budget, seqs=8, max_model_len=longest, utilization=utilization)
    if not m.fits:
        return []
    mix = mix_of(list(classes), {})
    largest = min(largest_graph(d.hardware), budget // 2)
    spec = spec_of(ask, d, m, budget=budget, seqs=8)
    seqs = seqs_cap(spec.table, mix, kv_sequences=m.max_sequences(mix.mean_context_tokens), largest=largest)
    m = memory_of(d, budget=budget, seqs=seqs, max_model_len=longest, utilization=utilization)
    if not m.fits:
        return []
    model = LoadModel(spec_of(ask, d, m, budget=budget, seqs=seqs), classes)
    output = sum(c.rate_per_s * c.grid().mean(c.grid().output_tokens) for c in classes) / sum(
        c.rate_per_s for c in classes
    )
    found = []
    for share in SHARES:
        rate = share * model.lambda_max
        figures = model.evaluate(rate, metrics=_METRICS).classes
        tokens_per_s = rate * output
        found.append(
            FrontierPoint(
                fleet_pool=pool,
                gpu=d.hardware.gpu_id,
                shape=d.shape.label,
                precision=d.precision,
                max_num_batched_tokens=budget,
                max_num_seqs=seqs,
                gpus=d.shape.gpus,
                rate_rps=rate,
                user_tokens_per_s=1 / max(c.itl.mean for c in figures),
                gpu_tokens_per_s=tokens_per_s / d.shape.gpus,
                ttft_p99_s=max(c.ttft.stat("p99") for c in figures),
                dollars_per_million_tokens=price * d.shape.gpus / 3600 / tokens_per_s * 1e6,
            )
        )
    return found


def _front(
    points: Sequence[FrontierPoint], figures: Callable[[FrontierPoint], tuple[float, float]]
) -> tuple[FrontierPoint, ...]:
    """Points of which no other is at least as small in both figures (ties: the first by name)."""
    best: list[FrontierPoint] = []
    least = float("inf")
    for p in sorted(points, key=lambda p: (*figures(p), p.fleet_pool, p.shape, p.precision, p.max_num_batched_tokens)):
        if figures(p)[1] < least:
            best.append(p)
            least = figures(p)[1]
    return tuple(best)
