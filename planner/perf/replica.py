"""One replica under a class mix: the running batch and the prompt backlog at a rate, before any promise.

How many sequences run is a birth-death chain whose service slows with the batch; how long prompts wait is the chain
of the prompt backlog from step to step (an M/G/1 queue that knows about chunks and shared steps).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from statistics import NormalDist
from typing import Self

import numpy as np

from planner.perf.batch import Batch
from planner.perf.bursts import Arrivals
from planner.perf.lengths import Floats
from planner.perf.pool import PoolSpec
from planner.perf.prefixes import Beside, Kept, PrefixModel
from planner.perf.prompts import PromptWork
from planner.perf.queue import Backlog, Running, backlog_chain
from planner.perf.sessions import History
from planner.perf.table_math import along, attention_s, decode_s
from planner.perf.traffic import ClassLoad, Requests

ELSEWHERE = 32
"""Sequences that a decode replica is assumed to run, where a prefill replica must know how long answers take."""
_SETTLING = 12
"""Tries to find what is kept beside what runs, which depends on what is kept."""
_TOLERANCE = 0.01
_MODELS = 4
"""Of one replica that are remembered, by what is kept: a search goes through thousands of replicas."""
_CONTEXT_Z = np.array([-1.25, -0.4, 0.4, 1.2, 2.2])
_CONTEXT_W = np.array([0.21, 0.29, 0.29, 0.18, 0.03])
"""Strata of a standard normal around these points."""
_NOTICED = 0.02
"""Spread of a step's length below which contexts count at their mean."""


class ReplicaModel:
    """A replica and a class mix, prepared once for many rates: how many run, how much prompt waits."""

    def __init__(self, pool: PoolSpec, classes: Sequence[ClassLoad], *, kept: Kept | None = None) -> None:
        """`kept`: of sessions' histories, by the cache; without it, what it keeps at `lambda_max`."""
        assert classes
        total = math.fsum(c.rate_per_s for c in classes)
        assert total > 0
        self.pool = pool
        self.ranks = pool.lockstep_ranks
        self.classes = tuple(classes)
        self.shares = tuple(c.rate_per_s / total for c in classes)
        self.prefixes: PrefixModel | None = None
        histories: Sequence[History | None] = (None,) * len(self.classes)
        most = None
        if pool.role != "decode" and any(c.has_sessions and c.hits.warm for c in classes):
            self.prefixes = PrefixModel(pool, classes, self.shares)
            self._by_kept: dict[Kept, Self] = {}
            self.settled = kept is not None
            """Whether it stands for what is kept at one rate, not for any."""
            if kept is None:
                most, kept = self._most()
            self.kept = kept
            histories = self.prefixes.histories(kept)
        self.grids = tuple(
            c.grid(replicas=pool.replicas, cache_tokens=pool.cache_tokens, history=h)
            for c, h in zip(self.classes, histories, strict=True)
        )
        self.prompt_grids = tuple(
            c.prompt_grid(g, replicas=pool.replicas, cache_tokens=pool.cache_tokens, history=h)
            for c, g, h in zip(classes, self.grids, histories, strict=True)
        )
        """The same, prompts alone."""
        self.grid = _mixed(self.grids, self.shares)
        self._prepare()
        if most is not None:
            self.lambda_max = most

    def at_rate(self, rate_per_s: float) -> Self:
        """The same replica with the histories that its cache keeps at this rate: itself where no class has sessions.

        More hits leave more room, which keeps more: of the consistent answers the one with most hits, where a replica
        goes that starts empty (bad days ask what it does with a cold cache).
        """
        if self.prefixes is None or self.settled:
            return self
        found = self._settle(rate_per_s, self._with(self.prefixes.always).beside_histories(rate_per_s / self.ranks))
        return self._with(self.prefixes.never) if found is None else found[0]

    def _settle(self, rate_per_s: float, start: Beside) -> tuple[Self, Beside] | None:
        """The replica, and at most what runs on it beside its histories; None where it cannot carry the rate.

        Looked for from above (`start`: no more than what runs), and taken once no more runs than assumed.
        """
        assert self.prefixes is not None
        assumed = self.prefixes.rounded(start, more=0)
        for tried in range(_SETTLING):
            model = self._with(self.prefixes.kept(rate_per_s / self.ranks, assumed))
            if rate_per_s >= model.lambda_max * 0.9999:
                break
            found = model.beside_histories(rate_per_s / self.ranks)
            if found.within(assumed):
                return model, assumed
            # After the first tries more than what was found: less then runs than assumed, which is safe.
            assumed = self.prefixes.rounded(found, more=tried)
        return None

    def history_hit_ratios(self, rate_per_s: float) -> dict[str, float]:
        """Of classes with sessions: what share of the tokens of earlier turns the cache still holds at this rate."""
        model = self.at_rate(rate_per_s)
        if model.prefixes is None:
            return {}
        found = model.prefixes.histories(model.kept)
        return {
            c.name: c.history_hit_ratio(h) if c.hits.warm else 0.0
            for c, h in zip(self.classes, found, strict=True)
            if h is not None
        }

    def beside_histories(self, rate_per_s: float) -> Beside:
        """What this replica (rank) runs at a rate, which idle histories must leave room for."""
        run = self.running(rate_per_s)
        mean_n, var_n = run.mean, run.variance
        if self.mean_steps == 0:
            mean_n = var_n = 0.0
        prompt_s = self.work(mean_n)[0]
        answer_s = mean_n / rate_per_s
        if self.pool.role == "prefill":
            # Given by a decode replica that nothing is known of here: as fast as by this one in a middling batch.
            batch = np.array([float(min(self.pool.max_num_seqs, ELSEWHERE))])
            answer_s = self.grid.mean(self.grid.output_tokens) * float(decode_s(self.pool, batch, self.context)[0])
        prompts = min(rate_per_s * prompt_s, 1.0) * self.grid.mean(self.grid.input_tokens) / max(self.context, 1.0)
        return Beside(
            (mean_n + prompts) * self.kv_mean,
            math.sqrt(mean_n * self.kv_var + var_n * self.kv_mean**2),
            answer_s + prompt_s,
        )

    def _with(self, kept: Kept) -> Self:
        known = self._by_kept
        if kept not in known:
            if len(known) >= _MODELS:
                # The first two, which keep all and nothing, are every search's ends.
                del known[next(islice(known, 2, None))]
            known[kept] = type(self)(self.pool, self.classes, kept=kept)
        return known[kept]

    def _most(self) -> tuple[float, Kept]:
        """lambda_max with the hits that are left at it, and what is kept there."""
        assert self.prefixes is not None
        low, high = self._with(self.prefixes.never).lambda_max, self._with(self.prefixes.always).lambda_max
        kept, runs = self.prefixes.never, Beside(0.0, 0.0, 0.0)
        while high - low > _TOLERANCE * high:
            middle = (low + high) / 2
            found = self._settle(middle, runs)
            if found is None:
                high = middle
            else:
                low, kept, runs = middle, found[0].kept, found[1]
        for k in list(self._by_kept)[2:]:
            del self._by_kept[k]
        return low, kept

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
        self.context_cv = math.sqrt(max(float(caught @ (at**2).mean(axis=1)) / self.context**2 - 1, 0.0))
        half = pool.block_tokens / 2
        cost = along(pool.kv_cost, at + half) if pool.kv_cost is not None else at + half
        # A prompt found in the cache is shared where it is a common prefix; counting it whole errs on the safe side.
        self.kv_mean = float(caught @ cost.mean(axis=1))
        self.kv_var = max(float(caught @ (cost**2).mean(axis=1)) - self.kv_mean**2, 0.0)
        longest = g.input_tokens + g.output_tokens
        self.longest_fits = bool(pool.cost(float(longest.max())) <= pool.kv_capacity)
        self.slots = self._slots()
        longest = np.zeros(1)
        if decoding:
            n = np.arange(1, self.slots + 1, dtype=np.float64)
            self.step = decode_s(pool, n, self.context)
            if self.ranks > 1:
                # The slowest rank has more context than the mean one (Blom's approximation of a largest normal).
                of = np.arange(1, self.ranks + 1)
                z = np.array([NormalDist().inv_cdf((k - 0.375) / (k + 0.25)) for k in of])
                spread = self._per_context_s(n) * self.context_cv / np.sqrt(n)
                self.step = self.step + z[-1] * spread
                longest = z * spread[0]
        else:
            self.step = np.zeros(1)
        order = np.argsort(self.gaps, kind="stable")
        o, w = self.gaps[order], g.weights[order]
        # E[min(o, o')] = sum over o of o x (chance that this one is the smaller)
        above = 1 - np.cumsum(w)
        self.overlap_ratio = float((o * w) @ (2 * above + w)) / g.mean(self.gaps) if decoding else 1.0
        alike = all(p is own for p, own in zip(self.prompt_grids, self.grids, strict=True))
        self.prompts = PromptWork(pool, g if alike else _mixed(self.prompt_grids, self.shares))
        self.arrivals = Arrivals(tuple(c.arrivals_cv for c in self.classes), self.shares)
        self.batch = Batch(
            pool,
            self.prompts,
            self.arrivals,
            slots=self.slots,
            step_s=self.step,
            mean_steps=self.mean_steps,
            overlap_ratio=self.overlap_ratio,
            longest_s=longest,
        )
        self.lambda_max = self._lambda_max()

    def _per_context_s(self, seqs: Floats) -> Floats:
        """Change of a decode step's length with the logarithm of the contexts: attention less its fixed part."""
        low, high = (attention_s(self.pool.table, seqs, self.context * f) for f in (0.7, 1.3))
        return (high - low) / 0.6

    def _slots(self) -> int:
        """Sequences in service at most: the cap, or as many as the cache holds at the mean plus 1.5 sigma."""
        cap, room = self.pool.max_num_seqs, self.pool.kv_capacity
        # n m + 1.5 sqrt(n v) = room, solved for sqrt(n)
        spare = 2.25 * self.kv_var
        root = (-math.sqrt(spare) + math.sqrt(spare + 4 * self.kv_mean * room)) / (2 * self.kv_mean)
        return max(1, min(cap, int(root * root)))

    def chunk(self, decodes: float) -> float:
        """As `PromptWork.chunk`."""
        return self.prompts.chunk(decodes)

    def prompts_s(self, decodes: float, step_tokens: float | None = None) -> Floats:
        """As `PromptWork.seconds`."""
        return self.prompts.seconds(decodes, step_tokens)

    def work(self, decodes: float) -> tuple[float, float]:
        """As `Batch.work`."""
        return self.batch.work(decodes)

    def step_at(self, decodes: float) -> float:
        """As `Batch.step_at`."""
        return self.batch.step_at(decodes)

    def _lambda_max(self) -> float:
        return self.batch.lambda_max()

    def running(self, rate_per_s: float) -> Running:
        """As `Batch.running`, below this replica's lambda_max."""
        return self.batch.running(rate_per_s, most_per_s=self.lambda_max / self.ranks)

    def batch_mean(
        self, rate_per_s: float, *, mean_s: float, square_s2: float, members: Sequence[int] | None = None
    ) -> float:
        """Mean size of the batches in which prompts of these service times seem to come (`perf.bursts`)."""
        c = self.arrivals.queueing(rate_per_s * self.ranks, mean_s=mean_s, square_s2=square_s2, members=members)
        return max((1 + c) / 2, 1.0)

    def backlog(self, rate_per_s: float, decodes: float, *, crowd: float = 0.0) -> Backlog:
        """The prompt backlog of one replica (rank) beside a steady number of decodes."""
        beside = self.prompts.beside(decodes) > 0
        chain = None
        if self.ranks > 1:
            chain, levels = self.batch.rank_steps(decodes, rate_per_s=rate_per_s, crowd=crowd)
            step = chain.steps @ chain.with_own(np.arange(levels.chunk_levels + 1.0))
            step[0] = step[0] if decodes > 0 else 0.0
        else:
            base = self.step_at(decodes) if beside else 0.0
            levels = self.prompts.levels(decodes, decode_s=base, rate_per_s=rate_per_s, arrivals=self.arrivals)
            step = base + levels.added_s
            if not beside and decodes > 0:
                # Between decode steps prompts run alone.
                step[0] = self.step_at(decodes)
        found = backlog_chain(
            rate_per_s=rate_per_s,
            prompt_tokens=levels.prompt_tokens,
            prompt_weights=self.prompts.grid.weights,
            level_tokens=levels.level_tokens,
            levels=levels.count,
            chunk_levels=levels.chunk_levels,
            step_s=step,
            idle=decodes == 0,
            batch_mean=levels.batch_mean,
        )
        return replace(found, ranks=chain, wait_ratio=levels.wait_ratio)

    def backlogs(self, rate_per_s: float, run: Running) -> tuple[Backlog, ...]:
        """The backlog at the mean batch; at 1.4 sigma to either side too, where steps differ by more than 6% there.

        The batch changes slowly beside the prompt queue, so its distribution mixes that of the waits.
        """
        middle = self.backlog(rate_per_s, run.mean, crowd=run.crowd)
        if self.mean_steps == 0 or not self.prompts.beside(1.0):
            return (middle,)
        sd = math.sqrt(run.variance)
        high = min(run.mean + 1.4 * sd, float(self.slots))
        per_token = [(self.step_at(k) + middle.step_s[-1] - middle.step_s[0]) / self.chunk(k) for k in (run.mean, high)]
        if per_token[1] < 1.06 * per_token[0]:
            return (middle,)
        low = max(run.mean - 1.4 * sd, 0.5)
        return self.backlog(rate_per_s, low, crowd=run.crowd), middle, self.backlog(rate_per_s, high, crowd=run.crowd)

    def running_nodes(self, run: Running) -> tuple[Floats, Floats]:
        """Numbers of decoding sequences as a gap sees them (n of them, shorter steps more often), a few nodes."""
        p = run.probabilities
        n = np.arange(len(p), dtype=np.float64)
        took = self.step if run.step_s is None else run.step_s
        w = p * n / np.concatenate([took[:1], took])
        cumulative = np.cumsum(w) / w.sum()
        edges = np.array([0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
        cell = np.searchsorted(edges, cumulative - w / w.sum() / 2)
        cw = np.bincount(cell, weights=w, minlength=7)
        cn = np.bincount(cell, weights=w * n, minlength=7)
        keep = cw > 0
        return cn[keep] / cw[keep], cw[keep] / cw.sum()

    def step_nodes(self, run: Running) -> tuple[Floats, Floats, Floats]:
        """Decode steps as gaps meet them: sequences, seconds, weights.

        By how many sequences run, and by how long their contexts happen to be.

        The sum of n contexts as a gamma with their mean and CV / sqrt(n). Of ranks in lock-step the longest counts
        already, but for the few that run alone.
        """
        nodes, weights = self.running_nodes(run)
        base = np.interp(nodes, np.arange(1, len(self.step) + 1), self.step)
        attention = self._per_context_s(nodes)
        spread = self.context_cv / np.sqrt(nodes)
        if self.ranks > 1:
            alone = nodes <= 1
            base = base - np.where(alone, run.short_s, 0.0)
            spread = np.where(alone, spread, 0.0)
        if float((attention * spread / base).max()) < _NOTICED:
            return nodes, base, weights
        k = 1 / np.maximum(spread, 1e-3) ** 2
        cube = np.maximum(1 - 1 / (9 * k)[:, None] + _CONTEXT_Z / (3 * np.sqrt(k))[:, None], 0.0) ** 3
        cube /= (cube @ _CONTEXT_W)[:, None]
        values = base[:, None] + attention[:, None] * (cube - 1)
        return np.repeat(nodes, len(_CONTEXT_Z)), values.ravel(), (weights[:, None] * _CONTEXT_W).ravel()


def _mixed(grids: Sequence[Requests], shares: Sequence[float]) -> Requests:
    """Classes' requests together, by their shares of the rate."""
    mixed = [
        np.concatenate([getattr(g, name) for g in grids])
        for name in ("input_tokens", "cached_tokens", "output_tokens", "thinking_tokens")
    ]
    weights = np.concatenate([g.weights * s for g, s in zip(grids, shares, strict=True)])
    return Requests(mixed[0], mixed[1], mixed[2], mixed[3], weights / weights.sum())
