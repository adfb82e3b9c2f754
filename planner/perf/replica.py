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

from planner.perf.lengths import Floats
from planner.perf.pool import PoolSpec
from planner.perf.prefixes import Beside, Kept, PrefixModel
from planner.perf.queue import Backlog, Running, backlog_chain, birth_death
from planner.perf.ranks import Chunks, chunks_of, lockstep_step_s, longest_extra_s
from planner.perf.sessions import History
from planner.perf.table_math import along, attention_s, decode_s, prompt_attention_s, prompt_extra_s
from planner.perf.traffic import ClassLoad, Requests

ELSEWHERE = 32
"""Sequences that a decode replica is assumed to run, where a prefill replica must know how long answers take."""
_SETTLING = 12
"""Tries to find what is kept beside what runs, which depends on what is kept."""
_TOLERANCE = 0.01
_MODELS = 4
"""Of one replica that are remembered, by what is kept: a search goes through thousands of replicas."""
LEVELS = 110
"""Of the backlog chain: its cost grows with their square."""


class ReplicaModel:
    """A replica and a class mix, prepared once for many rates: how many run, how much prompt waits."""

    def __init__(self, pool: PoolSpec, classes: Sequence[ClassLoad], *, kept: Kept | None = None) -> None:
        """`kept`: of sessions' histories, by the cache; without it, what it keeps at `lambda_max`."""
        assert classes
        total = math.fsum(c.rate_per_s for c in classes)
        assert total > 0
        self.pool = pool
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
        if most is not None:
            self.lambda_max = most

    def at_rate(self, rate_per_s: float) -> Self:
        """The same replica with the histories that its cache keeps at this rate: itself where no class has sessions.

        More hits leave more room, which keeps more: of the consistent answers the one with most hits, where a replica
        goes that starts empty (bad days ask what it does with a cold cache). Looked for from above, and taken once
        no more runs beside the histories than assumed.
        """
        if self.prefixes is None or self.settled:
            return self
        rate = rate_per_s / self.pool.lockstep_ranks
        model = self._with(self.prefixes.always)
        assumed = Beside(0.0, 0.0, 0.0)
        for tried in range(_SETTLING):
            if rate_per_s >= model.lambda_max * 0.9999:
                break
            found = model.beside_histories(rate)
            if tried and found.within(assumed):
                return model
            # After the first tries more than what was found: less then runs than assumed, which is safe.
            assumed = self.prefixes.rounded(found, more=max(0, tried - 1))
            model = self._with(self.prefixes.kept(rate, assumed))
        return self._with(self.prefixes.never)

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
        p, mean_n = run.probabilities, run.mean
        n = np.arange(len(p), dtype=np.float64)
        var_n = float(p @ n**2) - mean_n**2
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
        while high - low > _TOLERANCE * high:
            middle = (low + high) / 2
            if middle < self.at_rate(middle).lambda_max * 0.9999:
                low = middle
            else:
                high = middle
        kept = self.at_rate(low).kept
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
        self.ranks = pool.lockstep_ranks
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
            if self.ranks > 1:
                # The slowest rank has more context than the mean one (Blom's approximation of a largest normal).
                spread = float(caught @ (at**2).mean(axis=1)) - self.context**2
                z = NormalDist().inv_cdf((self.ranks - 0.375) / (self.ranks + 0.25))
                more = 1 + z * math.sqrt(max(spread, 0.0)) / self.context / np.sqrt(n)
                self.step = self.step + attention_s(pool.table, n, self.context) * (more - 1)
        else:
            self.step = np.zeros(1)
        self.lambda_max = self._lambda_max()
        self._typical_n = min(self.slots, 8) if decoding else 0
        self._knots = sorted({1, max(1, self.slots // 4), max(1, self.slots // 2), self.slots}) if decoding else [0]
        if self.prefills:
            works = [self.prompts_s(float(k)) for k in self._knots]
            self._knot_chunks = [self._rank_chunks(float(k)) for k in self._knots] if self.ranks > 1 else []
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
        """Sequences in service at most: the cap, or as many as the cache holds at the mean plus 1.5 sigma."""
        cap, room = self.pool.max_num_seqs, self.pool.kv_capacity
        # n m + 1.5 sqrt(n v) = room, solved for sqrt(n)
        spare = 2.25 * self.kv_var
        root = (-math.sqrt(spare) + math.sqrt(spare + 4 * self.kv_mean * room)) / (2 * self.kv_mean)
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

        N is every slot, or fewer where the token budget feeds no more (`fed`).
        """
        if not self.prefills:
            return self.slots / (self.mean_steps * float(self.step[-1])) * self.pool.lockstep_ranks
        full = self.chunk(self.slots)
        if self.ranks > 1 and self.mean_steps > 0:
            return self._lockstep_max(full)
        if self.mean_steps == 0:
            return self.pool.lockstep_ranks / self.grid.mean(self.prompts_s(0, full))
        n = min(float(self.slots), self.fed())
        prompts = self.grid.mean(self.prompts_s(n, self.chunk(n)))
        step = float(np.interp(n, np.arange(1, self.slots + 1), self.step))
        return self.pool.lockstep_ranks * n / (self.mean_steps * step + n * prompts)

    def fed(self) -> float:
        """Sequences that a full token budget keeps supplied with prompts.

        Every step full, as many prompts end in it as answers: (B - n s) / prompt = n / steps, so
        n = B / (s + prompt / steps). More cannot keep running however many slots there are: each of them takes
        budget from the prompts that would follow it. Only a decode-first scheduler splits one budget between both.
        """
        pool = self.pool
        if pool.scheduler != "decode-first" or pool.role != "aggregated":
            return math.inf
        prompt = self.grid.mean(self.grid.prefill_tokens)
        return max(1.0, pool.max_num_batched_tokens / (pool.tokens_per_sequence + prompt / self.mean_steps))

    def _lockstep_max(self, chunk_tokens: float) -> float:
        """lambda_max of R ranks in lock-step.

        N sequences a rank bring a = N / steps prompts a step; each step lasts t(N) and the longest of R chunks.
        """
        g = self.grid
        a = min(self.slots / self.mean_steps, chunk_tokens / g.mean(g.prefill_tokens))
        more, _ = longest_extra_s(self._rank_chunks(self.slots), prompts_per_step=a, ranks=self.ranks)
        return self.ranks * a / (float(self.step[-1]) + more)

    def _rank_chunks(self, decodes: float) -> Chunks:
        return chunks_of(
            self.pool.table, self.grid, beside_tokens=self.beside(decodes), chunk_tokens=self.chunk(decodes)
        )

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
                    float((g.weights * g.prefill_tokens) @ (np.maximum(along(mixed, beside + sizes) - base, 0) / sizes))
                    + attention
                )
            per_prompt = np.interp(n, self._knots, p)
            unshared = np.maximum(1 - rate_per_s * per_prompt, 0.02)
            left = unshared if self.ranks == 1 else self._lockstep_left(rate_per_s)
        departures = n * left / (self.mean_steps * self.step)
        departures[-1] = self.lambda_max / self.pool.lockstep_ranks
        return birth_death(rate_per_s=rate_per_s, departures_per_s=departures, dispersion=self._dispersion(rate_per_s))

    def _lockstep_left(self, rate_per_s: float) -> Floats:
        """Decode step over its real length when any of R ranks' prompts lengthen the steps of all."""
        more = []
        for k, chunks in zip(self._knots, self._knot_chunks, strict=True):
            decode = float(self.step[k - 1])
            took = lockstep_step_s(chunks, decode_s=decode, rate_per_s=rate_per_s, ranks=self.ranks)
            more.append(took - decode)
        n = np.arange(1, self.slots + 1, dtype=np.float64)
        left: Floats = np.maximum(self.step / (self.step + np.interp(n, self._knots, more)), 0.02)
        return left

    def stall_ratio(self, own_share: float) -> float:
        """How much more often a step holds somebody's prompt than the own rank's: (1 - (1 - f)^R) / f."""
        f = min(max(own_share, 1e-9), 1.0)
        return (1 - (1 - f) ** self.ranks) / f

    def work(self, decodes: float) -> tuple[float, float]:
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
        alone = 1 / self.ranks  # requests go to the emptiest of R ranks: each has an even share of one stream's noise
        if not self.prefills:
            return self.burst_ratio * alone
        mean, second = self.work(self._typical_n)
        stall = 1.0
        if self.ranks > 1:
            chunks = self._knot_chunks[0]
            long = self.step_at(self._typical_n) + mean / chunks.per_prompt
            stall = self.stall_ratio(rate_per_s * chunks.per_prompt * long)
        rho = min(rate_per_s * mean * stall, 0.9)
        var = max(second - mean**2, 0.0)
        shared = (alone + self.ranks * rate_per_s**2 * var) / (1 - rho) ** 2
        return self.burst_ratio * (alone + self.overlap_ratio * max(shared - alone, 0.0))

    def backlog(self, rate_per_s: float, decodes: float) -> Backlog:
        """The prompt backlog beside a steady number of decodes."""
        g, pool = self.grid, self.pool
        tokens = g.prefill_tokens
        chunk = self.chunk(decodes)
        beside = self.beside(decodes)
        attention = prompt_attention_s(
            pool.table, chunk_tokens=chunk, start_tokens=g.cached_tokens, prefill_tokens=tokens
        )
        per_token = g.mean(attention) / g.mean(tokens)
        base = float(self.step_at(decodes)) if beside else 0.0
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
        level = max(fine, reach / LEVELS)
        per_chunk = max(1, round(chunk / level))
        level = chunk / per_chunk
        levels = int(min(max(reach / level, 2 * per_chunk + 2), 2 * LEVELS)) + 1
        k = np.arange(per_chunk + 1)
        linear = along(pool.table.linear_mixed, beside + k * level) - (
            float(pool.table.linear_decode(beside)) if beside else 0.0
        )
        step = base + np.where(k > 0, np.maximum(linear, 0.0) + per_token * k * level, 0.0)
        idle = base == 0.0
        if idle:
            step[0] = 0.0

        def chain(steps: Floats) -> Backlog:
            return backlog_chain(
                rate_per_s=rate_per_s,
                prompt_tokens=even,
                prompt_weights=g.weights,
                level_tokens=level,
                levels=levels,
                chunk_levels=per_chunk,
                step_s=steps,
                idle=idle,
                batch_mean=self.batch_mean,
            )

        found = chain(step)
        if self.ranks == 1:
            return found
        # Each step lasts as long as the largest chunk of any rank; the others' chunks are like this one's.
        for _ in range(3):
            others = np.diff(np.cumsum(found.chunks) ** (self.ranks - 1), prepend=0.0)
            found = chain(np.array([float(others @ step[np.maximum(k, i)]) for i in range(per_chunk + 1)]))
        stall = self.stall_ratio(1 - float(found.chunks[0]))
        return replace(
            found, alone_s=step, chunks=np.diff(np.cumsum(found.chunks) ** self.ranks, prepend=0.0), stall_ratio=stall
        )

    def backlogs(self, rate_per_s: float, run: Running) -> tuple[Backlog, ...]:
        """The backlog at the mean batch; at 1.4 sigma to either side too, where steps differ by more than 6% there.

        The batch changes slowly beside the prompt queue, so its distribution mixes that of the waits.
        """
        middle = self.backlog(rate_per_s, run.mean)
        if self.mean_steps == 0 or not self.beside(1.0):
            return (middle,)
        n = np.arange(len(run.probabilities), dtype=np.float64)
        sd = math.sqrt(max(float(run.probabilities @ n**2) - run.mean**2, 0.0))
        high = min(run.mean + 1.4 * sd, float(self.slots))
        per_token = [(self.step_at(k) + middle.step_s[-1] - middle.step_s[0]) / self.chunk(k) for k in (run.mean, high)]
        if per_token[1] < 1.06 * per_token[0]:
            return (middle,)
        return self.backlog(rate_per_s, max(run.mean - 1.4 * sd, 0.5)), middle, self.backlog(rate_per_s, high)

    def step_at(self, decodes: float) -> float:
        if decodes < 1:
            return float(self.step[0])
        return float(np.interp(decodes, np.arange(1, len(self.step) + 1), self.step))

    def running_nodes(self, run: Running) -> tuple[Floats, Floats]:
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
