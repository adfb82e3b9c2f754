"""From step times to promises, in closed form: one replica under Poisson traffic.

How many sequences run is a birth-death chain whose service slows with the batch; how long prompts wait is the chain
of the prompt backlog from step to step (an M/G/1 queue that knows about chunks and shared steps). Inter-token gaps
are the steps that decoding sequences sit through. `planner.simulate` checks all of it (benchmarks/load.py has the
errors); only the search relies on it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.intent.slo import Slo
from planner.perf.lengths import Floats, normal_cdf
from planner.perf.pool import PoolSpec
from planner.perf.queue import Backlog, Running, backlog_chain, birth_death
from planner.perf.spread import ClassFigures, Spread, spread
from planner.perf.table_math import along, decode_s, prompt_attention_s, prompt_extra_s
from planner.perf.traffic import ClassLoad, Requests

LOAD_CAP = 0.8
TTFT_SAFETY = 1.0
_Z = np.array([-2.33, -1.28, -0.67, 0.0, 0.67, 1.28, 2.33])
_Z_WEIGHTS = np.array([0.04, 0.16, 0.2, 0.2, 0.2, 0.16, 0.04])
_LEVELS = 110
"""Of the backlog chain: its cost grows with the cube, and beyond a few hundred LAPACK starts threads."""


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


class LoadModel:
    """A replica and a class mix, prepared once for many rates."""

    def __init__(self, pool: PoolSpec, classes: Sequence[ClassLoad]) -> None:
        assert classes
        total = math.fsum(c.rate_per_s for c in classes)
        assert total > 0
        self.pool = pool
        self.classes = tuple(classes)
        self.shares = tuple(c.rate_per_s / total for c in classes)
        self.grids = tuple(c.grid(replicas=pool.replicas) for c in classes)
        mixed = [
            np.concatenate([getattr(g, name) for g in self.grids])
            for name in ("input_tokens", "cached_tokens", "output_tokens", "thinking_tokens")
        ]
        weights = np.concatenate([g.weights * s for g, s in zip(self.grids, self.shares, strict=True)])
        self.grid = Requests(mixed[0], mixed[1], mixed[2], mixed[3], weights / weights.sum())
        self.batch_mean = (
            1 + max(1.0, math.fsum(s * c.arrivals_cv**2 for s, c in zip(self.shares, self.classes, strict=True)))
        ) / 2
        self._prepare()

    def _prepare(self) -> None:
        pool, g = self.pool, self.grid
        per_step = pool.drafting.tokens_per_step if pool.drafting is not None else 1.0
        self.gaps = np.maximum(g.output_tokens - 1, 0.0) if pool.role == "aggregated" else g.output_tokens
        self.decode_steps = self.gaps / per_step if pool.role != "prefill" else np.zeros_like(self.gaps)
        self.mean_steps = g.mean(self.decode_steps)
        self.per_step = per_step
        self.prefills = pool.role != "decode"
        decoding = self.mean_steps > 0
        # Context and cache of a sequence caught while running: long answers are caught more often (o-weighted), at
        # a uniform point of their answer (three nodes).
        outputs = self.gaps if decoding else np.ones_like(self.gaps)
        caught = g.weights * outputs / g.mean(outputs)
        at = g.input_tokens[:, None] + outputs[:, None] * np.array([1, 3, 5]) / 6
        self.context = float(caught @ at.mean(axis=1))
        half = pool.block_tokens / 2
        cost = along(pool.kv_cost, at + half) if pool.kv_cost is not None else at + half
        # A prompt found in the cache is shared where it is a common prefix; counting it whole errs on the safe side.
        self.kv_mean = float(caught @ cost.mean(axis=1))
        self.kv_var = max(float(caught @ (cost**2).mean(axis=1)) - self.kv_mean**2, 0.0)
        longest = g.input_tokens + g.output_tokens
        self.longest_fits = bool(pool.cost(float(longest.max())) <= pool.kv_capacity)
        self.slots = self._slots()
        if decoding:
            n = np.arange(1, self.slots + 1, dtype=np.float64)
            self.step = decode_s(pool, n, self.context)
        else:
            self.step = np.zeros(1)
        self.lambda_max = self._lambda_max()
        self._typical_n = min(self.slots, 8) if decoding else 0
        self._knots = sorted({1, max(1, self.slots // 4), max(1, self.slots // 2), self.slots}) if decoding else [0]
        if self.prefills:
            works = [self.prompts_s(float(k)) for k in self._knots]
            self._work_means = [g.mean(w) for w in works]
            self._work_seconds = [g.mean(w**2) for w in works]
            self._attention_means = [
                g.mean(
                    prompt_attention_s(
                        pool.table,
                        chunk_tokens=self.chunk(float(k)),
                        start_tokens=g.cached_tokens,
                        prefill_tokens=g.prefill_tokens,
                    )
                )
                for k in self._knots
            ]
        order = np.argsort(self.gaps, kind="stable")
        o, w = self.gaps[order], g.weights[order]
        # E[min(o, o')] = sum over o of o x (chance that this one is the smaller)
        above = 1 - np.cumsum(w)
        self.overlap_ratio = float((o * w) @ (2 * above + w)) / g.mean(self.gaps) if decoding else 1.0
        # Variance of arrivals over long stretches, halfway to the plain Poisson one for spread-out answers.
        self.burst_ratio = 1 + (2 * self.batch_mean - 2) * self.overlap_ratio

    def _slots(self) -> int:
        """Sequences in service at most: the cap, or as many as the cache holds at the mean plus one sigma."""
        cap, room = self.pool.max_num_seqs, self.pool.kv_capacity
        # n m + sqrt(n v) = room, solved for sqrt(n)
        root = (-math.sqrt(self.kv_var) + math.sqrt(self.kv_var + 4 * self.kv_mean * room)) / (2 * self.kv_mean)
        return max(1, min(cap, int(root * root)))

    def chunk(self, decodes: float) -> float:
        """Prompt tokens that fit into a step beside the decodes."""
        pool = self.pool
        if pool.role == "prefill" or pool.scheduler == "prefill-first":
            return float(pool.max_num_batched_tokens)
        return max(1.0, pool.max_num_batched_tokens - decodes * pool.tokens_per_sequence)

    def beside(self, decodes: float) -> float:
        """Decode tokens in the steps that prompts ride in."""
        return (
            0.0
            if self.pool.scheduler == "prefill-first" or self.pool.role == "prefill"
            else decodes * self.pool.tokens_per_sequence
        )

    def prompts_s(self, decodes: float, step_tokens: float | None = None) -> Floats:
        """Seconds that each prompt of the grid adds to steps with this many decodes beside it."""
        g = self.grid
        size = None if step_tokens is None else np.maximum(g.prefill_tokens, step_tokens)
        return prompt_extra_s(
            self.pool.table,
            decode_tokens=self.beside(decodes),
            chunk_tokens=self.chunk(decodes),
            start_tokens=g.cached_tokens,
            prefill_tokens=g.prefill_tokens,
            step_tokens=size,
        )

    def _lambda_max(self) -> float:
        """Rate at which the queue starts to grow: N requests each N x (their decode steps) + their prompts.

        lambda_max = N / (steps t(N) + N P(N)), prompts in full chunks
        """
        if not self.prefills:
            return self.slots / (self.mean_steps * float(self.step[-1])) * self.pool.lockstep_ranks
        full = self.chunk(self.slots)
        prompts = self.grid.mean(self.prompts_s(self.slots if self.mean_steps else 0, full))
        if self.mean_steps == 0:
            return self.pool.lockstep_ranks / prompts
        return self.pool.lockstep_ranks * self.slots / (self.mean_steps * float(self.step[-1]) + self.slots * prompts)

    def running(self, rate_per_s: float) -> Running:
        """Sequences that decode. Prompts are short beside answers, so their share of the time is an average:

        mu(n) = n (1 - lambda P(n)) / (steps t(n));  with all slots taken prompts come as slots free up.
        """
        if self.mean_steps == 0:
            return Running(np.array([1.0]), 0.0, 1e9)
        n = np.arange(1, self.slots + 1, dtype=np.float64)
        left = np.ones_like(n)
        if self.prefills:
            g, mixed = self.grid, self.pool.table.linear_mixed
            typical = g.mean(g.prefill_tokens)
            p = []
            for k, alone, attention in zip(self._knots, self._work_means, self._attention_means, strict=True):
                # Prompts that arrive during a prompt's step share the next one.
                beside, step = self.beside(k), float(self.step[k - 1])
                merged = min(typical * (1 + rate_per_s * (step + alone)), self.chunk(k))
                sizes = np.minimum(np.maximum(g.prefill_tokens, merged), self.chunk(k))
                base = float(self.pool.table.linear_decode(beside)) if beside else 0.0
                p.append(
                    float((g.weights * g.prefill_tokens) @ ((along(mixed, beside + sizes) - base) / sizes)) + attention
                )
            left = np.maximum(1 - rate_per_s * np.interp(n, self._knots, p), 0.02)
        departures = n * left / (self.mean_steps * self.step)
        departures[-1] = self.lambda_max / self.pool.lockstep_ranks
        return birth_death(rate_per_s=rate_per_s, departures_per_s=departures, dispersion=self._dispersion(rate_per_s))

    def _work(self, decodes: float) -> tuple[float, float]:
        """Mean and second moment of the seconds that a prompt adds to steps, at this many decodes."""
        return float(np.interp(decodes, self._knots, self._work_means)), float(
            np.interp(decodes, self._knots, self._work_seconds)
        )

    def _dispersion(self, rate_per_s: float) -> float:
        """How much wider than the chain's the running batch spreads, because a busy prompt queue slows all at once.

        Over an answer's time T, N arrivals bring work L = sum S. n = N + lambda L / (1 - rho), so
        Var n / (lambda T) = (1 + lambda^2 Var S) / (1 - rho)^2; shared noise passes answers of different lengths by
        E[min(o, o')] / E[o] (1 for equal ones), the chain's own noise is there already.
        """
        if not self.prefills:
            return self.burst_ratio
        mean, second = self._work(self._typical_n)
        var = max(second - mean**2, 0.0)
        rho = min(rate_per_s * mean, 0.9)
        shared = (1 + rate_per_s**2 * var) / (1 - rho) ** 2
        return self.burst_ratio * (1 + self.overlap_ratio * (shared - 1))

    def backlog(self, rate_per_s: float, decodes: float) -> tuple[Backlog, float]:
        """The prompt backlog beside a steady number of decodes, and seconds of prefill attention per token."""
        g, pool = self.grid, self.pool
        tokens = g.prefill_tokens
        chunk = self.chunk(decodes)
        beside = self.beside(decodes)
        attention = prompt_attention_s(
            pool.table, chunk_tokens=chunk, start_tokens=g.cached_tokens, prefill_tokens=tokens
        )
        per_token = g.mean(attention) / g.mean(tokens)
        base = float(self._step_at(decodes)) if beside else 0.0
        # Tokens weighted with their time: a long prompt's attention makes its tokens dearer than average.
        full = (
            base
            + (
                float(along(pool.table.linear_mixed, beside + chunk))
                - (float(pool.table.linear_decode(beside)) if beside else 0.0)
            )
        ) / chunk
        even = tokens * (full + attention / tokens) / (full + per_token)
        mean = g.mean(even)
        load = min(rate_per_s * mean * (full + per_token), 0.97)
        second = g.mean(even**2)
        tail = second / (2 * mean * (1 - load)) * 7 * (self.batch_mean if self.batch_mean > 1 else 1.0)
        reach = tail + float(even.max()) + 2 * chunk
        fine = min(chunk / 4, max(mean / 3, chunk / 32))
        level = max(fine, reach / _LEVELS)
        per_chunk = max(1, round(chunk / level))
        level = chunk / per_chunk
        levels = int(min(max(reach / level, 2 * per_chunk + 2), 2 * _LEVELS)) + 1
        k = np.arange(per_chunk + 1)
        linear = along(pool.table.linear_mixed, beside + k * level) - (
            float(pool.table.linear_decode(beside)) if beside else 0.0
        )
        step = base + np.where(k > 0, linear + per_token * k * level, 0.0)
        idle = base == 0.0
        if idle:
            step[0] = 0.0
        return (
            backlog_chain(
                rate_per_s=rate_per_s,
                prompt_tokens=even,
                prompt_weights=g.weights,
                level_tokens=level,
                levels=levels,
                chunk_levels=per_chunk,
                step_s=step,
                idle=idle,
                batch_mean=self.batch_mean,
            ),
            per_token,
        )

    def _step_at(self, decodes: float) -> float:
        if decodes < 1:
            return float(self.step[0])
        return float(np.interp(decodes, np.arange(1, len(self.step) + 1), self.step))

    # ------------------------------------------------------------ figures

    def evaluate(self, rate_per_s: float, *, e2e: bool = True) -> LoadResult:
        """Every figure at one rate of the replica."""
        rate = rate_per_s / self.pool.lockstep_ranks
        if rate_per_s >= self.lambda_max * 0.9999:
            return self._unstable(rate_per_s)
        run = self.running(rate)
        p = run.probabilities
        n = np.arange(len(p), dtype=np.float64)
        mean_n = run.mean
        backlog, _ = self.backlog(rate, mean_n) if self.prefills else (None, 0.0)
        itl_pool = self._gaps(run, backlog, rate)
        figures = []
        for cls, grid in zip(self.classes, self.grids, strict=True):
            ttft = self._ttft(grid, run, backlog)
            figures.append(
                self._class(cls.name, grid, run=run, backlog=backlog, rate=rate, ttft=ttft, itl=itl_pool, e2e=e2e)
            )
        var_n = float(p @ n**2) - mean_n**2
        kv_mean, kv_sd = mean_n * self.kv_mean, math.sqrt(mean_n * self.kv_var + var_n * self.kv_mean**2)
        room = self.pool.kv_capacity
        # A gamma with these two moments (Wilson-Hilferty), because a sum of few long contexts is skewed.
        kv_p99 = _gamma_quantile(kv_mean, kv_sd, 2.326)
        over = (
            float(p @ (1 - normal_cdf((room - n * self.kv_mean) / np.sqrt(np.maximum(n * self.kv_var, 1e-9)))))
            if self.mean_steps
            else 0.0
        )
        busy = rate * self._work(mean_n)[0] if self.prefills else 0.0
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
        return (
            ("running", "birth-death chain"),
            ("itl", "mixed-step mixture" if self.prefills else "step at the running batch"),
            ("ttft", ttft if self.prefills else "admission to the next step"),
            ("kv", "sum over running sequences"),
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

    def _nodes(self, run: Running) -> tuple[Floats, Floats]:
        """Numbers of decoding sequences as a gap sees them (weighted with themselves), a few nodes."""
        p = run.probabilities
        n = np.arange(len(p), dtype=np.float64)
        w = p * n
        cumulative = np.cumsum(w) / w.sum()
        edges = np.array([0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
        cell = np.searchsorted(edges, cumulative - w / w.sum() / 2)
        cw = np.bincount(cell, weights=w, minlength=7)
        cn = np.bincount(cell, weights=w * n, minlength=7)
        keep = cw > 0
        return cn[keep] / cw[keep], cw[keep] / cw.sum()

    def _gaps(self, run: Running, backlog: Backlog | None, rate: float) -> Spread:
        """All gaps pooled: decode steps at the running batch, with and without prompt chunks in them."""
        if self.mean_steps == 0:
            return spread([0.0, 0.0], [1.0, 1.0], "no gaps", mean=0.0)
        nodes, weights = self._nodes(run)
        base = np.interp(nodes, np.arange(1, len(self.step) + 1), self.step)
        per_step, token_s = self.per_step, self.pool.table.token_s
        little = run.mean / (rate * self.mean_steps)
        if backlog is None:
            values, w = base, weights
        elif self.pool.scheduler == "prefill-first":
            values, w = self._stalls(base, weights, rate)
        else:
            added = backlog.step_s - backlog.step_s[0]
            where, where_w = self._positions(run.mean)
            full = np.outer(np.arange(backlog.chunk_levels + 1) * backlog.level_tokens, where)
            extra = added[:, None] + full
            values = base[:, None, None] + extra[None]
            w = weights[:, None, None] * backlog.chunks[None, :, None] * where_w[None, None, :]
        # The chain's mean (Little's law) is the better one: keep it, and let the percentiles be the mixture's.
        if per_step > 1:
            # A verified step yields several tokens at once: one gap of a step, the others of nothing.
            values, w = (
                np.concatenate([np.ravel(values), [0.0]]),
                np.concatenate([np.ravel(w) / np.sum(w) / per_step, [1 - 1 / per_step]]),
            )
        return spread(values, w, "mixed-step mixture", mean=little / per_step).shifted(token_s)

    def _positions(self, decodes: float) -> tuple[Floats, Floats]:
        """How much dearer a prompt token is at its chunk's place in the prompt than on average (s per token)."""
        g, table = self.grid, self.pool.table
        chunk = self.chunk(decodes)
        at = np.array([1, 3, 5, 7]) / 8
        tokens = g.prefill_tokens
        size = np.minimum(chunk, tokens)
        start = g.cached_tokens[:, None] + np.maximum(tokens - size, 0.0)[:, None] * at
        cost = along(table.prefill_attention, size[:, None] * start + (size * (size + 1) / 2)[:, None]) / size[:, None]
        w = (g.weights * tokens)[:, None] * np.full(4, 0.25)
        order = np.argsort(cost, axis=None, kind="stable")
        c, wt = cost.ravel()[order], w.ravel()[order]
        cell = np.minimum((np.cumsum(wt) - wt / 2) / wt.sum() * 8, 7).astype(int)
        mass = np.bincount(cell, weights=wt, minlength=8)
        value = np.bincount(cell, weights=wt * c, minlength=8)
        keep = mass > 0
        mean = float(value.sum() / mass.sum())
        return value[keep] / mass[keep] - mean, mass[keep] / mass.sum()

    def _stalls(self, base: Floats, weights: Floats, rate: float) -> tuple[Floats, Floats]:
        """Gaps under a prefill-first scheduler: a decode step, and the busy period of the prompts that came meanwhile.

        Busy period of M/G/1 with work S: E = E[S] / (1 - rho), E2 = E[S^2] / (1 - rho)^3, as a gamma.
        """
        work = self.prompts_s(0.0, None)
        mean, second = self.grid.mean(work), self.grid.mean(work**2)
        rho = min(rate * mean, 0.98)
        # Stalls cluster a little (a stalled batch grows): 8% more gaps meet one than independent arrivals say.
        some = np.minimum(1.08 * (1 - np.exp(-rate * base)), 1.0)
        busy, busy2 = mean / (1 - rho), second / (1 - rho) ** 3
        z = np.linspace(-2.4, 2.9, 24)
        density = np.diff(normal_cdf(np.concatenate([[-9], (z[1:] + z[:-1]) / 2, [9]])))
        long = np.array([_gamma_quantile(busy, math.sqrt(max(busy2 - busy**2, 1e-18)), float(x)) for x in z])
        values = np.concatenate([base, (base[:, None] + long[None]).ravel()])
        return values, np.concatenate([weights * (1 - some), ((weights * some)[:, None] * density[None]).ravel()])

    def _class(
        self,
        name: str,
        grid: Requests,
        *,
        run: Running,
        backlog: Backlog | None,
        rate: float,
        ttft: Spread,
        itl: Spread,
        e2e: bool,
    ) -> ClassFigures:
        tpot = self._tpot(grid, run, backlog, itl, rate)
        gaps = np.maximum(grid.output_tokens - 1, 0.0)
        whole = None
        if e2e:
            # Answers by prompt as the grid joins them; waits and speeds as independent nodes.
            t_nodes, t_w = _strata_of(tpot.values, np.diff(np.concatenate([[0.0], tpot.cumulative])), 7)
            first, first_w = _strata_of(ttft.values, np.diff(np.concatenate([[0.0], ttft.cumulative])), 9)
            values = first[None, :, None] + gaps[:, None, None] * t_nodes[None, None, :]
            whole = spread(
                values,
                grid.weights[:, None, None] * first_w[None, :, None] * t_w[None, None, :],
                "TTFT and gaps joined",
                mean=ttft.mean + grid.mean(gaps) * itl.mean,
            )
        ttfa = None
        thinking = grid.mean(grid.thinking_tokens)
        if thinking > 0:
            nodes, w = _strata_of(ttft.values, np.diff(np.concatenate([[0.0], ttft.cumulative])), 9)
            ttfa = spread(
                nodes[None, :] + grid.thinking_tokens[:, None] * itl.mean,
                grid.weights[:, None] * w[None, :],
                "TTFT and thinking gaps joined",
            )
        return ClassFigures(name, ttft, itl, tpot, whole, ttfa)

    def _ttft(self, grid: Requests, run: Running, backlog: Backlog | None) -> Spread:
        """Wait for a slot, for the step under way, for the prompts ahead, and the own prompt's steps."""
        host = self.pool.table.request_s + self.pool.table.token_s
        slot, slot_w = _exponential_nodes(run.queue_ratio, run.queue_rate_per_s)
        if backlog is None:
            # A decode pool: admission at the next step boundary, then one step.
            nodes, w = self._nodes(run)
            step = np.interp(nodes, np.arange(1, len(self.step) + 1), self.step)
            values = step[:, None, None] * (1 + np.array([1, 3, 5]) / 6)[None, :, None] + slot[None, None, :] + host
            return spread(
                values,
                w[:, None, None] * np.full(3, 1 / 3)[None, :, None] * slot_w[None, None, :],
                "next step, slot wait",
            )
        prompts, prompt_w = _strata_of(*_sorted(grid.prefill_tokens, grid.weights), 13)
        K, level, step_s = backlog.chunk_levels, backlog.level_tokens, backlog.step_s
        ahead, ahead_w = _levels(backlog.at_arrivals, 16)
        taken = np.minimum(ahead, K)
        now = np.interp(taken, np.arange(K + 1), step_s)
        if step_s[0] == 0.0:  # an idle replica starts at once
            now = np.where(ahead < 0.5, 0.0, now)
        left = np.array([1, 3]) / 4
        # Prompts that came before this one during the step under way: none, one of some size, or several of the mean.
        sizes, sizes_w = _sizes(self.grid.prefill_tokens / level, self.grid.weights)
        mean_prompt = float(sizes @ sizes_w)
        prompts_per_s = backlog.mean_arrivals / mean_prompt
        none, one, more, several = _poisson3(prompts_per_s * now[:, None] * (1 - left)[None, :])
        before_w = np.concatenate([none[..., None], one[..., None] * sizes_w, more[..., None]], axis=-1)
        before = np.concatenate(
            [
                np.zeros_like(none)[..., None],
                np.broadcast_to(sizes, (*none.shape, 3)),
                several[..., None] * mean_prompt,
            ],
            axis=-1,
        )
        behind = (ahead - taken)[:, None, None] + before
        total = behind[:, :, :, None] + np.maximum(prompts / level, 1e-3)[None, None, None, :]
        steps = np.ceil(total / K - 1e-9)
        wait = now[:, None, None, None] * left[None, :, None, None] + (steps - 1) * step_s[K]
        rest = total - (steps - 1) * K
        # Prompts that arrive until its last step starts fill that step up: none, or about one of some size.
        alone_w = np.exp(-prompts_per_s * wait)
        knots = np.concatenate([[0.0, 1e-3], np.arange(1, K + 1)])
        curve = np.concatenate([[step_s[0], 2 * step_s[1] - step_s[2] if K > 1 else step_s[1]], step_s[1:]])
        # About m = lambda x wait of them, at least one: m / (1 - exp(-m)) given that there is any.
        count = np.where(alone_w < 0.999, prompts_per_s * wait / np.maximum(1 - alone_w, 1e-9), 1.0)
        filled = np.minimum(rest[..., None] + count[..., None] * np.concatenate([[0.0], sizes]), K)
        time = wait[..., None] + np.interp(filled, knots, curve)
        w = (ahead_w[:, None, None] * (before_w / len(left)))[..., None] * prompt_w
        later_w = np.concatenate([alone_w[..., None], (1 - alone_w)[..., None] * sizes_w], axis=-1)
        first = spread(time, w[..., None] * later_w, "prompt backlog chain")
        if len(slot) > 1:
            nodes, nodes_w = _nodes(first, 40)
            first = spread(
                nodes[:, None] + slot[None, :], nodes_w[:, None] * slot_w[None, :], "prompt backlog chain, slot wait"
            )
        return first.shifted(host + self.pool.table.stream_s * (run.mean + 1))

    def _tpot(self, grid: Requests, run: Running, backlog: Backlog | None, itl: Spread, rate: float) -> Spread:
        """A request's mean gap: the mean at its batch, and the luck of how many prompts it met."""
        if self.mean_steps == 0:
            return spread([0.0, 0.0], [1.0, 1.0], "no gaps", mean=0.0)
        nodes, weights = self._nodes(run)
        base = np.interp(nodes, np.arange(1, len(self.step) + 1), self.step)
        gaps = np.maximum(grid.output_tokens - 1, 0.0)
        keep = gaps >= 1
        if not keep.any():
            return spread([0.0, 0.0], [1.0, 1.0], "no gaps", mean=0.0)
        o, o_w = _strata_of(*_sorted(gaps[keep], grid.weights[keep]), 9)
        # o steps of work x = o t / E take a busy period of the prompts that come meanwhile, after those there already:
        # mean (x + W) / (1 - rho), variance (x + W) lambda E[S^2] / (1 - rho)^3, as a gamma.
        x = o[None, :] * base[:, None] / self.per_step
        if backlog is None:
            mean, sd = x[:, :, None], np.zeros_like(x)[:, :, None]
            wait_w = np.ones(1)
        else:
            # W is what a prompt leaves behind, in time added to steps: as much as it found (nodes of the backlog).
            levels, wait_w = _levels(backlog.at_arrivals, 7)
            wait = levels * (backlog.step_s[-1] - backlog.step_s[0]) / backlog.chunk_levels
            work, work2 = self._work(run.mean)
            rho = min(rate * work, 0.95)
            start = x[:, :, None] + wait[None, None, :]
            mean = start / (1 - rho)
            sd = np.sqrt(start * rate * work2 / (1 - rho) ** 3)
        k = np.maximum((mean / np.maximum(sd, 1e-12)) ** 2, 1e-3)[..., None]
        cube = np.maximum(1 - 1 / (9 * k) + _Z / (3 * np.sqrt(k)), 0.0) ** 3
        values = np.maximum(mean[..., None] * cube, x[:, :, None, None]) / o[None, :, None, None]
        w = weights[:, None, None, None] * o_w[None, :, None, None] * wait_w[None, None, :, None] * _Z_WEIGHTS
        return spread(values, w, "delay busy period", mean=itl.mean).shifted(self.pool.table.token_s)

    # ------------------------------------------------------------ capacity

    def capacity(
        self,
        *,
        load_cap: float = LOAD_CAP,
        margins: Mapping[str, float] | None = None,
        slos: Mapping[str, Sequence[Slo]] | None = None,
        tolerance: float = 0.005,
    ) -> Capacity:
        """Highest planned rate of one replica: bisection on the worst promise, which worsens with the rate."""
        promised = slos if slos is not None else {c.name: c.slos for c in self.classes}
        joint = any(s.metric == "e2e" for group in promised.values() for s in group)
        top = self.lambda_max
        if not self.longest_fits:
            return Capacity(top, 0.0, 0.0, "longest request does not fit the cache", None)

        def miss(rate: float) -> tuple[float, LoadResult]:
            r = self.evaluate(rate, e2e=joint)
            return r.misses(promised, margins), r

        cap = load_cap * top
        worst, result = miss(cap)
        if worst <= 0:
            # lambda_slo lies above the cap: found as well, but coarsely, since nothing is planned there.
            slo_rate = (
                self._search(miss, (cap, worst, result), (top * 0.9999, math.inf), 0.02)[0]
                if any(promised.values())
                else top
            )
            return Capacity(top, slo_rate, cap, "load-cap", result)
        floor = top * 1e-3
        low_miss, low_result = miss(floor)
        if low_miss > 0:
            return Capacity(top, 0.0, 0.0, _binding(low_result, promised, margins), None)
        rate, result = self._search(miss, (floor, low_miss, low_result), (cap, worst), tolerance)
        return Capacity(top, rate, rate, _binding(result, promised, margins), result)

    @staticmethod
    def _search(
        miss: Callable[[float], tuple[float, LoadResult]],
        low: tuple[float, float, LoadResult],
        high: tuple[float, float],
        tolerance: float,
    ) -> tuple[float, LoadResult]:
        """Largest rate found that keeps every promise: regula falsi (Illinois) on log(figure / limit), kept bracketed."""
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


def _binding(result: LoadResult, slos: Mapping[str, Sequence[Slo]], margins: Mapping[str, float] | None) -> str:
    worst = [
        (c.value(s) * (1 + (margins or {}).get(s.metric, 0.0)) / s.limit_s, f"{c.name} {s.key}")
        for c in result.classes
        for s in slos.get(c.name, ())
    ]
    return max(worst)[1] if worst else "load-cap"


def _sorted(by: Floats, carried: Floats) -> tuple[Floats, Floats]:
    order = np.argsort(by, kind="stable")
    return by[order], carried[order]


def _strata_of(values: Floats, weights: Floats, count: int) -> tuple[Floats, Floats]:
    """Ascending weighted values -> at most `count` means, with finer strata towards the top."""
    total = weights.sum()
    middle = (np.cumsum(weights) - weights / 2) / total
    edges = np.concatenate([np.linspace(0, 0.9, max(count - 5, 2))[1:], [0.95, 0.98, 0.99, 0.996, 0.999]])
    cell = np.searchsorted(edges, middle)
    w = np.bincount(cell, weights=weights)
    v = np.bincount(cell, weights=weights * values)
    keep = w > 0
    return v[keep] / w[keep], w[keep] / total


def _levels(p: Floats, count: int) -> tuple[Floats, Floats]:
    return _strata_of(np.arange(len(p), dtype=np.float64), p, count)


def _poisson3(mean: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Probabilities of none, one, and more, and the mean of these."""
    none = np.exp(-mean)
    one = mean * none
    more = np.maximum(1 - none - one, 1e-12)
    return none, one, more, np.maximum((mean - one) / more, 2.0)


def _sizes(values: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Three nodes of a distribution: the means of its lower 70%, the next 25% and the top."""
    v, w = _sorted(values, weights)
    cell = np.searchsorted(np.array([0.7, 0.95]), np.cumsum(w) - w / 2)
    mass = np.bincount(cell, weights=w, minlength=3)
    mean = np.bincount(cell, weights=w * v, minlength=3) / np.maximum(mass, 1e-12)
    return np.where(mass > 0, mean, float(w @ v)), mass


def _nodes(s: Spread, count: int) -> tuple[Floats, Floats]:
    """A spread on a few nodes, finer towards the top."""
    edges = np.concatenate([np.linspace(0, 0.9, count - 5), [0.95, 0.98, 0.99, 0.996, 0.999, 1.0]])
    return np.interp((edges[1:] + edges[:-1]) / 2, s.cumulative, s.values), np.diff(edges)


def _exponential_nodes(probability: float, rate_per_s: float) -> tuple[Floats, Floats]:
    """0 with 1 - probability, else an exponential, as strata means."""
    if probability < 1e-6:
        return np.zeros(1), np.ones(1)
    edges = np.array([0, 0.3, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99, 0.997, 1.0])
    tail = 1 - edges
    # E[X; X between quantiles] of Exp(1): (1 - q)(1 - ln(1 - q)) differences.
    part = np.where(tail > 0, tail * (1 - np.log(np.maximum(tail, 1e-300))), 0.0)
    w = np.diff(edges)
    return np.concatenate([[0.0], -np.diff(part) / w / rate_per_s]), np.concatenate(
        [[1 - probability], probability * w]
    )


def _gamma_quantile(mean: float, sd: float, z: float) -> float:
    """Quantile of a gamma by Wilson and Hilferty: k theta (1 - 1/(9k) + z / (3 sqrt k))^3."""
    if mean <= 0 or sd <= 0:
        return max(mean, 0.0)
    k = (mean / sd) ** 2
    return mean * max(1 - 1 / (9 * k) + z / (3 * math.sqrt(k)), 0.0) ** 3


@lru_cache(maxsize=4096)
def _model(pool: PoolSpec, classes: tuple[ClassLoad, ...]) -> LoadModel:
    return LoadModel(pool, classes)


def evaluate(pool: PoolSpec, classes: Sequence[ClassLoad], rate_per_s: float, *, e2e: bool = True) -> LoadResult:
    """Figures of one replica at `rate_per_s`; the classes' rates give the mix alone."""
    return LoadModel(pool, classes).evaluate(rate_per_s, e2e=e2e)


def capacity(
    pool: PoolSpec,
    classes: Sequence[ClassLoad],
    *,
    load_cap: float = LOAD_CAP,
    margins: Mapping[str, float] | None = None,
) -> Capacity:
    """lambda_max, lambda_slo and the planned rate of one replica under its classes' own promises."""
    return LoadModel(pool, classes).capacity(load_cap=load_cap, margins=margins)
