"""From step times to promises, in closed form: one replica under Poisson traffic.

`replica` says how many sequences run and how much prompt waits, `figures` what clients see of it; here both become
the figures of every class, and the rate that a replica can be planned at. `planner.simulate` checks all of it
(benchmarks/load.py has the errors); only the search relies on it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.intent.slo import Slo
from planner.perf.figures import gap_spread, speed_nodes, tpot_spread, ttft_spread
from planner.perf.lengths import Floats, normal_cdf
from planner.perf.nodes import gamma_quantile, strata_of
from planner.perf.outgoing import Outgoing, outgoing
from planner.perf.pool import PoolSpec
from planner.perf.prefixes import Beside
from planner.perf.priority import ranked
from planner.perf.queue import Running
from planner.perf.replica import ReplicaModel
from planner.perf.spread import ClassFigures, Spread, spread
from planner.perf.traffic import ClassLoad, Requests

LOAD_CAP = 0.8
METRICS = frozenset({"ttft", "itl", "tpot", "e2e", "ttfa"})
_FIRST = frozenset({"ttft", "e2e", "ttfa"})
_SPEED = frozenset({"tpot"})
UNASKED = spread([math.nan, math.nan], [1.0, 1.0], "not asked", mean=math.nan)


@dataclass(frozen=True, slots=True, eq=False)
class LoadResult:
    """One replica at one rate."""

    rate_per_s: float
    lambda_max_per_s: float
    stable: bool
    classes: tuple[ClassFigures, ...]
    running_mean: float
    running_p99: float
    kv_mean_ratio: float
    kv_p99_ratio: float
    """p99 of the cache in use over its capacity: of the sum over running sequences, not a sum of p99s."""
    queue_ratio: float
    """Probability that an arrival finds every slot taken (by the cap, or by what the cache holds)."""
    preemption_ratio: float
    """Probability that the running sequences want more cache than there is."""
    prefill_ratio: float
    """Share of the replica's time that prompts take."""
    slots: int
    """min(max_num_seqs, sequences that the cache holds)."""
    methods: tuple[tuple[str, str], ...]

    @property
    def load(self) -> float:
        """rate / lambda_max"""
        return self.rate_per_s / self.lambda_max_per_s

    def misses(self, slos: Mapping[str, Sequence[Slo]], margins: Mapping[str, float] | None = None) -> float:
        """Largest figure x (1 + margin) over limit, minus 1: not above 0 where every promise holds."""
        worst = -1.0
        for c in self.classes:
            for slo in slos.get(c.name, ()):
                worst = max(worst, c.value(slo) * (1 + (margins or {}).get(slo.metric, 0.0)) / slo.limit_s - 1)
        return worst


@dataclass(frozen=True, slots=True, eq=False)
class Capacity:
    """How much one replica carries."""

    lambda_max_per_s: float
    lambda_slo_per_s: float
    """0 where some promise fails even at an idle replica."""
    planned_per_s: float
    """min(load cap x lambda_max, lambda_slo)."""
    bound_by: str
    """`load-cap`, or the promise that binds: `chat ttft.p99`."""
    at_planned: LoadResult | None


class LoadModel(ReplicaModel):
    """A replica and a class mix: figures at a rate, and the rate that the promises allow."""

    outgoing: Outgoing | None = None
    """Prefill: the prompts that its cache holds until they are handed over."""

    def _lambda_max(self) -> float:
        most = super()._lambda_max()
        if self.prefills and self.mean_steps == 0:
            full, grid = self.prompts_s(0.0, self.chunk(0.0)), self.prompts.grid
            self.outgoing = outgoing(
                self.pool,
                grid,
                alone_s=self.prompts_s(0.0),
                full_step_s=self.chunk(0.0) * grid.mean(full) / grid.mean(grid.prefill_tokens),
                reading_per_s=most,
            )
        return most if self.outgoing is None else min(most, self.outgoing.most_per_s())

    def running(self, rate_per_s: float) -> Running:
        """Of a prefill replica: nothing decodes, but an arrival may find the cache full of prompts on their way."""
        out, rate = self.outgoing, rate_per_s * self.ranks
        short = 0.0 if out is None else out.short_ratio(rate)
        if out is None or short < 1e-6:
            return super().running(rate_per_s)
        # Room comes back as fast as prompts leave when the cache is full on average.
        return Running(np.array([1.0]), short, max(out.most_per_s(0.0) - rate, 1e-9) / self.ranks)

    def beside_histories(self, rate_per_s: float) -> Beside:
        """Of a prefill replica: the prompts that it reads and those on their way out."""
        found = super().beside_histories(rate_per_s)
        if self.outgoing is None:
            return found
        mean, sd = self.outgoing.held(rate_per_s * self.ranks)
        return replace(found, mean=mean, sd=sd)

    def evaluate(self, rate_per_s: float, *, metrics: frozenset[str] = METRICS) -> LoadResult:
        """Figures at one rate of the replica: all, or those the metrics need (the search is faster for it)."""
        rate = rate_per_s / self.pool.lockstep_ranks
        if rate_per_s >= self.lambda_max * 0.9999:
            return self._unstable(rate_per_s)
        kept = self.at_rate(rate_per_s)
        if kept is not self:
            return replace(kept.evaluate(rate_per_s, metrics=metrics), lambda_max_per_s=self.lambda_max)
        run = self.running(rate)
        p = run.probabilities
        n = np.arange(len(p), dtype=np.float64)
        mean_n = run.mean
        backlogs = self.backlogs(rate, run) if self.prefills and metrics else ()
        backlog = backlogs[len(backlogs) // 2] if backlogs else None
        itl = gap_spread(self, run, backlog, rate)
        figures = []
        differ = ranked(self)
        for cls, grid, prompts in zip(self.classes, self.grids, self.prompt_grids, strict=True):
            level = (cls.priority, rate) if differ else None
            ttft = ttft_spread(self, prompts, run, backlogs, level=level) if metrics & _FIRST else UNASKED
            tpot = tpot_spread(self, grid, run, backlog, itl=itl, rate=rate) if metrics & _SPEED else UNASKED
            figures.append(
                _class_figures(cls.name, grid, ttft, itl, tpot, speeds=speed_nodes(self, run, itl), metrics=metrics)
            )
        var_n = run.variance
        kv_mean, kv_sd = mean_n * self.kv_mean, math.sqrt(mean_n * self.kv_var + var_n * self.kv_mean**2)
        room = self.pool.kv_capacity
        # A gamma with these two moments (Wilson-Hilferty), because a sum of few long contexts is skewed.
        kv_p99 = gamma_quantile(kv_mean, kv_sd, 2.326)
        over = (
            float(p @ (1 - normal_cdf((room - n * self.kv_mean) / np.sqrt(np.maximum(n * self.kv_var, 1e-9)))))
            if self.mean_steps
            else 0.0
        )
        if self.outgoing is not None:
            kv_mean, kv_p99 = self.outgoing.held(rate_per_s)[0], self.outgoing.quantile(rate_per_s, 2.326)
        busy = rate * self.work(mean_n)[0] if self.prefills else 0.0
        return LoadResult(
            rate_per_s,
            self.lambda_max,
            True,
            tuple(figures),
            mean_n,
            float(run.quantile(0.99)),
            kv_mean / room,
            kv_p99 / room,
            run.queue_ratio,
            over,
            busy,
            self.slots,
            self._methods(),
        )

    def _methods(self) -> tuple[tuple[str, str], ...]:
        ttft = (
            "prompt backlog chain"
            if self.pool.role == "aggregated"
            else "prompt backlog chain (M/G/1 with shared steps)"
        )
        if ranked(self):
            ttft += ", head-of-line priority"
        return (
            ("running", "birth-death chain"),
            ("itl", "mixed-step mixture" if self.prefills else "step at the running batch"),
            ("ttft", ttft if self.prefills else "admission to the next step"),
            ("kv", "sum over running sequences" if self.outgoing is None else "prompts read and on their way"),
        )

    def _unstable(self, rate_per_s: float) -> LoadResult:
        never = spread([math.inf, math.inf], [1.0, 1.0], "unstable", mean=math.inf)
        classes = tuple(ClassFigures(c.name, never, never, never, never, never) for c in self.classes)
        return LoadResult(
            rate_per_s,
            self.lambda_max,
            False,
            classes,
            float(self.slots),
            float(self.slots),
            1.0,
            1.0,
            1.0,
            1.0,
            1.0,
            self.slots,
            (("all", "above lambda_max"),),
        )

    def capacity(
        self,
        *,
        load_cap: float = LOAD_CAP,
        margins: Mapping[str, float] | None = None,
        slos: Mapping[str, Sequence[Slo]] | None = None,
        tolerance: float = 0.005,
        beyond_cap: bool = True,
    ) -> Capacity:
        """Highest planned rate of one replica, by the worst promise, which worsens with the rate.

        `beyond_cap` False: where every promise holds at the load cap, lambda_slo is not looked for above it (the
        search for candidates has no use for it) and the cap stands in its place.
        """
        promised = slos if slos is not None else {c.name: c.slos for c in self.classes}
        asked = frozenset(s.metric for group in promised.values() for s in group)
        top = self.lambda_max
        if not self.longest_fits:
            return Capacity(top, 0.0, 0.0, "longest request does not fit the cache", None)

        def miss(rate: float) -> tuple[float, LoadResult]:
            r = self.evaluate(rate, metrics=asked)
            return r.misses(promised, margins), r

        cap = load_cap * top
        worst, result = miss(cap)
        if worst <= 0:
            # lambda_slo lies above the cap: found as well, but coarsely, since nothing is planned there.
            slo_rate = top if not asked else cap
            if asked and beyond_cap:
                slo_rate = self._search(miss, (cap, worst, result), (top * 0.9999, math.inf), 0.02)[0]
            return Capacity(top, slo_rate, cap, "load-cap", self.evaluate(cap))
        floor = top * 1e-3
        low_miss, low_result = miss(floor)
        if low_miss > 0:
            return Capacity(top, 0.0, 0.0, _binding(low_result, promised, margins), None)
        rate, result = self._search(miss, (floor, low_miss, low_result), (cap, worst), tolerance)
        return Capacity(top, rate, rate, _binding(result, promised, margins), self.evaluate(rate))

    @staticmethod
    def _search(
        miss: Callable[[float], tuple[float, LoadResult]],
        low: tuple[float, float, LoadResult],
        high: tuple[float, float],
        tolerance: float,
    ) -> tuple[float, LoadResult]:
        """Largest rate that keeps every promise: regula falsi on log(figure / limit)."""
        (x0, m0, result), (x1, m1) = low, high
        f0, f1 = math.log(max(1 + m0, 1e-9)), math.log(1 + m1)
        side = 0
        while x1 - x0 > tolerance * x1:
            cut = x0 + (x1 - x0) * f0 / (f0 - f1) if math.isfinite(f1) and f1 > f0 else (x0 + x1) / 2
            # Never closer to an end than half the tolerance: the step must tell something.
            x = min(max(cut, x0 + tolerance * x1 / 2), x1 - tolerance * x1 / 2)
            found, at = miss(x)
            if found <= 0:
                x0, f0, result = x, math.log(max(1 + found, 1e-9)), at
                f1, side = (f1 / 2 if side == 1 else f1), 1
            else:
                x1, f1 = x, math.log(1 + found)
                f0, side = (f0 / 2 if side == -1 else f0), -1
        return x0, result


def _class_figures(
    name: str,
    grid: Requests,
    ttft: Spread,
    itl: Spread,
    tpot: Spread,
    *,
    speeds: tuple[Floats, Floats],
    metrics: frozenset[str],
) -> ClassFigures:
    gaps = np.maximum(grid.output_tokens - 1, 0.0)
    whole = None
    if "e2e" in metrics:
        # Answers by prompt as the grid joins them; waits and speeds as independent nodes.
        t_nodes, t_w = speeds
        first, first_w = strata_of(ttft.values, np.diff(np.concatenate([[0.0], ttft.cumulative])), 9)
        values = first[None, :, None] + gaps[:, None, None] * t_nodes[None, None, :]
        whole = spread(
            values,
            grid.weights[:, None, None] * first_w[None, :, None] * t_w[None, None, :],
            "TTFT and gaps joined",
            mean=ttft.mean + grid.mean(gaps) * itl.mean,
        )
    ttfa = None
    thinking = grid.mean(grid.thinking_tokens)
    if thinking > 0 and "ttfa" in metrics:
        nodes, w = strata_of(ttft.values, np.diff(np.concatenate([[0.0], ttft.cumulative])), 9)
        ttfa = spread(
            nodes[None, :] + grid.thinking_tokens[:, None] * itl.mean,
            grid.weights[:, None] * w[None, :],
            "TTFT and thinking gaps joined",
        )
    return ClassFigures(name, ttft, itl, tpot, whole, ttfa)


def _binding(result: LoadResult, slos: Mapping[str, Sequence[Slo]], margins: Mapping[str, float] | None) -> str:
    worst = [
        (c.value(s) * (1 + (margins or {}).get(s.metric, 0.0)) / s.limit_s, f"{c.name} {s.key}")
        for c in result.classes
        for s in slos.get(c.name, ())
    ]
    return max(worst)[1] if worst else "load-cap"


def evaluate(pool: PoolSpec, classes: Sequence[ClassLoad], rate_per_s: float) -> LoadResult:
    """Figures of one replica at `rate_per_s`; the classes' rates give the mix alone."""
    return LoadModel(pool, classes).evaluate(rate_per_s)


def capacity(
    pool: PoolSpec,
    classes: Sequence[ClassLoad],
    *,
    load_cap: float = LOAD_CAP,
    margins: Mapping[str, float] | None = None,
) -> Capacity:
    """lambda_max, lambda_slo and the planned rate of one replica under its classes' own promises."""
    return LoadModel(pool, classes).capacity(load_cap=load_cap, margins=margins)
