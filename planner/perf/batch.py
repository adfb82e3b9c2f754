"""The running batch of a replica: how many sequences decode at a rate, and the rate at which all slots stay taken."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from planner.perf.bursts import Arrivals
from planner.perf.lengths import Floats
from planner.perf.pool import PoolSpec
from planner.perf.prompts import Levels, PromptWork, dearest, poisson, together
from planner.perf.queue import Running, arrivals_by_step, birth_death, evenly_by_step, levels_pmf
from planner.perf.ranks import LEFT, RankChain, rank_chain
from planner.perf.stalls import Stalls, stalls_of

_TRIES = 6
_FASTER = 1.1
_BEYOND = 1.7
_WIDE = 1.5
_NOTICED = 0.03
"""Of a step, below which a chunk's place in its prompt does not count."""
_TYPICAL = 8
"""Sequences beside which a prompt's share of the noise is taken."""


class Batch:
    """Slots, decode steps by the number of sequences, and what prompts do to them. Rates are one rank's."""

    def __init__(
        self,
        pool: PoolSpec,
        prompts: PromptWork,
        arrivals: Arrivals,
        *,
        slots: int,
        step_s: Floats,
        mean_steps: float,
        overlap_ratio: float,
        longest_s: Floats,
    ) -> None:
        self.pool = pool
        self.prompts = prompts
        self.arrivals = arrivals
        self.slots = slots
        self.step_s = step_s
        """Of 1..slots sequences; for ranks in lock-step the slowest one's."""
        self.mean_steps = mean_steps
        self.overlap_ratio = overlap_ratio
        """E[min(o, o')] / E[o] of answers: how much of what slows all at once passes into the batch's spread."""
        self.longest_s = longest_s
        """What the longest context of 1..ranks single sequences adds to a step over their mean one."""
        self.ranks = pool.lockstep_ranks
        self.prefills = pool.role != "decode"
        self.stands = pool.scheduler == "prefill-first" and pool.role == "aggregated"
        """Decodes stand still while prompts run."""
        self.n = np.arange(1, slots + 1, dtype=np.float64)
        self.knots = sorted({max(1, slots // part) for part in (slots, 32, 8, 3, 1)}) if mean_steps > 0 else [0]
        if self.prefills:
            works = [prompts.seconds(float(k)) for k in self.knots]
            self._work_means = [prompts.grid.mean(w) for w in works]
            self._work_seconds = [prompts.grid.mean(w**2) for w in works]
            self._attention_means = [prompts.grid.mean(prompts.attention_s(float(k))) for k in self.knots]

    def step_at(self, decodes: float) -> float:
        if decodes < 1:
            return float(self.step_s[0])
        return float(np.interp(decodes, np.arange(1, len(self.step_s) + 1), self.step_s))

    def work(self, decodes: float) -> tuple[float, float]:
        """Mean and second moment of the seconds that a prompt adds to steps, at this many decodes."""
        return float(np.interp(decodes, self.knots, self._work_means)), float(
            np.interp(decodes, self.knots, self._work_seconds)
        )

    # ------------------------------------------------------------ all slots taken

    def lambda_max(self) -> float:
        """Rate of the replica at which the queue starts to grow: all slots taken, or as many as the budget feeds.

        N sequences end N / steps answers a step, as many prompts begin, and a step lasts t(N) and what these add:
        lambda_max = N / (steps t(N) + N P(N))
        """
        if not self.prefills:
            return self.ranks * self.slots / (self.mean_steps * float(self.step_s[-1]))
        if self.mean_steps == 0:
            return self.ranks / self.prompts.grid.mean(self.prompts.seconds(0, self.prompts.chunk(0)))
        n = min(float(self.slots), self.fed())
        if self.ranks > 1:
            return self._ranks_max(n)
        added = self.prompts.crowded_s(n, n / self.mean_steps)
        return n / (self.mean_steps * self.step_at(n) + n * added)

    def fed(self) -> float:
        """Sequences that a full token budget keeps supplied with prompts.

        Every step full, as many prompts end in it as answers: (B - n s) / prompt = n / steps, so
        n = B / (s + prompt / steps). More cannot keep running however many slots there are: each of them takes
        budget from the prompts that would follow it. Only a decode-first scheduler splits one budget between both.
        """
        pool, g = self.pool, self.prompts.grid
        if pool.scheduler != "decode-first" or pool.role != "aggregated":
            return math.inf
        prompt = g.mean(g.prefill_tokens)
        return max(1.0, pool.max_num_batched_tokens / (pool.tokens_per_sequence + prompt / self.mean_steps))

    def _ranks_max(self, n: float) -> float:
        """Of ranks in lock-step: a prompts begin on each rank in a step that lasts as long as the longest chunk of all.

        Where a rank's own prompts stop its decodes, only the other steps end answers: a = n (1 - own) / steps.
        """
        g, full = self.prompts.grid, self.prompts.chunk(n) / self.prompts.grid.mean(self.prompts.grid.prefill_tokens)
        a = begun = n / self.mean_steps
        if self.stands:
            # A rank's own cycle: one decode step, and the steps of the prompts that begin after it.
            k, w = poisson(a)
            own = sum(
                x * g.mean(np.ceil(m * g.prefill_tokens / self.prompts.chunk(n))) for m, x in zip(k, w, strict=True)
            )
            a = begun = a / (1 + own)
            for _ in range(_TRIES):
                begun *= own / (1 + own) / self.rank_steps(n, begun=begun)[0].own
        elif a > 0.98 * full:
            return (
                self.ranks * full / float(self.rank_steps(n, begun=0.5 * full, crowd=float(self.ranks))[0].step_s[-1])
            )
        return self.ranks * a / self.rank_steps(n, begun=begun)[0].mean_s

    # ------------------------------------------------------------ at a rate

    def running(self, rate_per_s: float, *, most_per_s: float) -> Running:
        """Sequences that decode when one rank's requests come at this rate; `most_per_s`: when all slots are taken.

        mu(n) = n (1 - lambda P(n)) / (steps t(n)): the time that prompts leave, as an average.
        """
        if self.mean_steps == 0:
            return Running(np.array([1.0]), 0.0, 1e9)
        if self.ranks > 1 and self.prefills:
            return self._running_ranks(rate_per_s, most_per_s)
        total = rate_per_s * self.ranks
        cycle = self.step_s.copy()
        left = np.ones_like(self.n)
        if self.prefills:
            g = [
                attention
                + self.prompts.shared_s(
                    k,
                    decode_s=float(self.step_s[k - 1]),
                    alone_s=alone,
                    rate_per_s=rate_per_s,
                    arrivals=self.arrivals,
                )
                for k, alone, attention in zip(self.knots, self._work_means, self._attention_means, strict=True)
            ]
            left = np.maximum(1 - rate_per_s * np.interp(self.n, self.knots, g), 0.02)
        departures = self.n * left / (self.mean_steps * self.step_s)
        departures[-1] = most_per_s
        answer_s = self._found(rate_per_s, departures) / rate_per_s
        c = self.arrivals.variability(total, 1 / answer_s)
        noise = [1 + self.overlap_ratio * (v - 1) for v in (1.0, c)]
        stalled = 0.0
        if self.prefills:
            mean, second = self.work(min(self.slots, _TYPICAL))
            noise = [1 + self.overlap_ratio * (self._shared(rate_per_s, mean, second, v) - 1) for v in (1.0, c)]
            mean, second = self.work(answer_s * rate_per_s)
            # Evenly spaced prompts stall an answer less often than at any time, but not less than never.
            never = -min(rate_per_s * mean, 1.0) * answer_s
            behind = self._behind(rate_per_s, mean, second, c)
            if not self.stands and behind > 0:
                # No step holds more than a full chunk: what is behind it lengthens an answer's steps, not more of them.
                n = answer_s * rate_per_s
                most = self.mean_steps * self.prompts.full_s(n) - min(rate_per_s * mean, 1.0) * answer_s
                some = min(rate_per_s * mean, 1.0)
                behind = some * max(most, 1e-9) * -math.expm1(-behind / (some * max(most, 1e-9)))
            stalled = rate_per_s * max(behind, never)
        if self.ranks > 1:
            # Requests go to the emptiest of R ranks: each has an even share of one stream's noise.
            return self._spread_over_ranks(rate_per_s, departures, noise, cycle, stalled)
        tail = self._tail(total, free_per_s=most_per_s - rate_per_s, plain=noise[0])
        run = birth_death(
            rate_per_s=rate_per_s,
            departures_per_s=departures,
            dispersion=noise[1],
            tail=tail,
            bursty=self._bursty(noise, answer_s * rate_per_s),
            stalled=stalled,
            step_s=cycle,
        )
        return self._fed_only(replace(run, queue_ratio=run.queue_ratio * self._met(noise, most_per_s / rate_per_s)))

    @staticmethod
    def _met(noise: list[float], free: float) -> float:
        """How much more often than at any time an arrival finds all slots taken: bursts fill them themselves.

        As in the chain, where arrivals come at lambda / d + (1 - 1 / d) mu(n), for the part of d that is theirs.
        """
        plain, full = noise
        return 1 + max(full - plain, 0.0) / full * (free - 1)

    def _fed_only(self, run: Running) -> Running:
        """More than the token budget feeds do not run at once: they wait as prompts, which the backlog knows."""
        if not self.prefills or self.fed() >= self.slots:
            return run
        fed = math.ceil(self.fed())
        p = run.probabilities.copy()
        p[fed] = p[fed:].sum()
        p[fed + 1 :] = 0.0
        return replace(run, probabilities=p, queue_ratio=0.0)

    def _found(self, rate_per_s: float, departures: Floats) -> float:
        """Sequences at which as many leave as come."""
        return float(np.interp(rate_per_s, np.append(0.0, departures), np.append(0.0, self.n)))

    @staticmethod
    def _shared(rate_per_s: float, mean_s: float, square_s2: float, variability: float) -> float:
        """How much wider than Poisson n would spread if all answers were equal.

        Over an answer's time T, N arrivals bring work L = sum S. n = N + lambda L / (1 - rho), so
        Var n / (lambda T) = (c + lambda^2 Var S) / (1 - rho)^2 with Var N = c lambda T; what slows all at once passes
        answers of different lengths by E[min(o, o')] / E[o], noise of its own each sequence has.
        """
        rho = min(rate_per_s * mean_s, 0.9)
        return (variability + rate_per_s**2 * max(square_s2 - mean_s**2, 0.0)) / (1 - rho) ** 2

    def _behind(self, rate_per_s: float, mean_s: float, square_s2: float, variability: float) -> float:
        """Time that an answer stands still beyond the average: for the prompts behind its own when it begins.

        A prompt leaves behind as much work as it found (Kingman), and the rest of its burst comes later.
        """
        rho = min(rate_per_s * mean_s, 0.97)
        c = self.arrivals.queueing(rate_per_s, mean_s=mean_s, square_s2=square_s2)
        found = rate_per_s * (square_s2 + (c - 1) * mean_s**2) / (2 * (1 - rho))
        return (found + (variability - 1) / 2 * mean_s) / (1 - rho)

    def _tail(self, rate_per_s: float, *, free_per_s: float, plain: float) -> float:
        """What lengthens the queue behind the slots beyond M/M/N's.

        Bursts by (1 + c) / 2 (Kingman), the prompts' noise by its power of 0.35, which keeps simulated waits on the
        safe side (benchmarks/load.py).
        """
        noise = math.pow(plain, 0.35)
        tail = noise
        for _ in range(4):
            c = self.arrivals.variability(rate_per_s, max(free_per_s, 1e-9) / tail)
            tail = noise * (1 + c) / 2
        return tail

    @staticmethod
    def _bursty(noise: list[float], found: float) -> float:
        """Weight of the less skewed spread: gamma bursts are less skewed than batches, where n is not near nothing."""
        plain, full = noise
        if full < _WIDE:
            return 0.0
        return 0.5 * max(full - plain, 0.0) / (full - 1) * found / (found + full)

    # ------------------------------------------------------------ ranks in lock-step

    def rank_steps(
        self, decodes: float, *, rate_per_s: float = 0.0, begun: float = 0.0, crowd: float = 0.0
    ) -> tuple[RankChain, Levels]:
        """Steps of R ranks with this many decodes on each: requests at a rate, or `begun` prompts in each step.

        `crowd`: ranks with a prompt in a step that has any, where that is known about (it costs a chain to find out).

        Requests go to the rank with the fewest, that is mostly where answers have ended: not as unevenly as at random,
        and not in turns. In simulations steps last as long as half way between.
        """
        decode_s = self.step_at(decodes) if decodes > 0 else 0.0
        beside = self.prompts.beside(decodes) > 0
        typical = rate_per_s or begun / max(decode_s, 1e-9)
        levels = self.prompts.levels(
            decodes,
            decode_s=decode_s if beside else 0.0,
            rate_per_s=min(typical, 0.9 / max(self.work(decodes)[0], 1e-9)),
            arrivals=self.arrivals,
            ranks=self.ranks,
        )
        step = decode_s + levels.added_s if beside else np.maximum(levels.added_s, decode_s)
        # Longer prompts count as one that leaves over as much as is kept; twice as much room, for sums of several.
        top = levels.chunk_levels + LEFT
        pmf = np.zeros(2 * top)
        pmf[: top + 1] = levels_pmf(levels.prompt_tokens / levels.level_tokens, self.prompts.grid.weights, top + 1)
        idle = decode_s == 0.0
        first = None
        if idle:
            first = np.concatenate([pmf[: levels.chunk_levels], [pmf[levels.chunk_levels :].sum()]])

        def made(step: Floats) -> RankChain:
            mean = rate_per_s * step if begun == 0 else np.full_like(step, begun)
            batches = levels.batch_mean if begun == 0 else 1.0
            came = (arrivals_by_step(pmf, mean=mean, batch_mean=batches) + evenly_by_step(pmf, mean=mean)) / 2
            return rank_chain(
                arrivals=came,
                prompts=pmf,
                step_s=step,
                ranks=self.ranks,
                level_tokens=levels.level_tokens,
                first=first,
                idle_s=1 / (rate_per_s * self.ranks) if idle else 0.0,
            )

        where, where_w = self.prompts.positions(decodes)
        chunk_tokens = levels.level_tokens * levels.chunk_levels
        if float(where[-1]) * chunk_tokens < _NOTICED * float(step[-1]):
            return made(step), levels
        # The slowest of several chunks is one that stands far into its prompt.
        dearer = float(dearest(where_w, crowd or made(step).crowd) @ where)
        chain = replace(made(step + dearer * levels.level_tokens * np.arange(len(step))), dearer_s=dearer)
        return chain, levels

    def _running_ranks(self, rate_per_s: float, most_per_s: float) -> Running:
        chains: list[RankChain] = []
        for k in self.knots:
            crowd = chains[-1].crowd if chains else 0.0
            chains.append(self.rank_steps(float(k), rate_per_s=rate_per_s, crowd=crowd)[0])
            # Far above the load steps need not be known: those states are hardly ever met.
            if k / (self.mean_steps * chains[-1].mean_s) > _BEYOND * rate_per_s:
                break
        knots = self.knots[: len(chains)]
        more = [c.mean_s - float(self.step_s[k - 1]) for k, c in zip(knots, chains, strict=True)]
        own = [c.own if self.stands else 0.0 for c in chains]
        # From one step of the own decodes to the next.
        cycle = (self.step_s + np.interp(self.n, knots, more)) / np.maximum(1 - np.interp(self.n, knots, own), 0.02)
        departures = self.n / (self.mean_steps * cycle)
        departures[-1] = most_per_s
        here = self._found(rate_per_s, departures)
        answer_s = here / rate_per_s
        near = min(range(len(knots)), key=lambda i: abs(math.log(knots[i] / max(here, 1.0))))
        chain, k = chains[near], knots[near]
        faster, _ = self.rank_steps(float(k), rate_per_s=rate_per_s * _FASTER, crowd=chain.crowd)
        # n = N + lambda (time that N's prompts add) + lambda (what the steps' length varies else), as in `_shared`:
        # a tenth more requests lengthen steps by e tenths, which the chain's own variance holds as e^2.
        total = rate_per_s * self.ranks
        c = self.arrivals.variability(total, 1 / answer_s)
        varies = total * chain.variance_s2 / chain.mean_s
        longer = min(max(math.log(faster.mean_s / chain.mean_s) / math.log(_FASTER), 0.0), math.sqrt(varies))
        noise = [1 + self.overlap_ratio * (v * (1 + longer) ** 2 + varies - longer**2 - 1) for v in (1.0, c)]
        never = -answer_s * (1 - self.step_at(here) / max(chain.mean_s, self.step_at(here)))
        stalled = rate_per_s * max(chain.later_s, never)
        return replace(self._spread_over_ranks(rate_per_s, departures, noise, cycle, stalled), crowd=chain.crowd)

    def _spread_over_ranks(
        self, rate_per_s: float, departures: Floats, noise: list[float], cycle: Floats, stalled: float
    ) -> Running:
        """One chain of all ranks' sequences: requests go to the emptiest rank, so each has an even share of them."""
        count = self.ranks
        every = np.arange(1, count * self.slots + 1) / count
        took = np.interp(every, self.n, cycle)
        # Fewer sequences than ranks: the longest context of those, not of one on each.
        few = every < 1
        took[few] -= self.longest_s[-1] - self.longest_s[: int(few.sum())]
        total = every * count / (self.mean_steps * took)
        total[-1] = departures[-1] * count
        rate = rate_per_s * count
        tail = self._tail(rate, free_per_s=float(total[-1]) - rate, plain=noise[0])
        run = birth_death(rate_per_s=rate, departures_per_s=total, dispersion=noise[1], tail=tail)
        each = np.arange(count * self.slots + 1) / count
        low = np.minimum(each.astype(np.int64), self.slots - 1)
        up = each - low
        p = np.bincount(low, weights=run.probabilities * (1 - up), minlength=self.slots + 1).astype(np.float64)
        p += np.bincount(low + 1, weights=run.probabilities * up, minlength=self.slots + 1)
        # As gaps meet them: each step once for every sequence in it.
        met = run.probabilities[1 : count + 1] * np.arange(1, count + 1)
        short = float(met @ (self.longest_s[-1] - self.longest_s)) / max(float(met.sum()), 1e-300)
        return replace(
            run,
            short_s=short,
            probabilities=p,
            queue_rate_per_s=run.queue_rate_per_s / count,
            stalled=stalled,
            step_s=cycle,
        )

    # ------------------------------------------------------------ prefill-first

    def stalls(self, rate_per_s: float, decodes: float, *, batch_mean: float, chain: RankChain | None) -> Stalls:
        """How long decodes stand still under a prefill-first scheduler (`chain`: of ranks, for their own prompts)."""
        grid, prompts = self.prompts.grid, self.prompts
        if chain is not None:
            sizes = grid.prefill_tokens / chain.level_tokens
            most = len(chain.step_s) - 1
            full = np.ceil(sizes / most - 1e-9) - 1
            with_own = chain.steps @ chain.with_own(np.maximum(sizes - full * most, 1.0))
            alone = shared = full * float(chain.step_s[-1]) + with_own
            decode_s = float(chain.others_idle @ chain.step_s)
        else:
            attention = prompts.attention_s(0)
            alone = prompts.matrices_s(0, 1.0) + attention
            shared = prompts.matrices_s(0, together(rate_per_s * grid.mean(alone))) + attention
            decode_s = self.step_at(decodes)
        return stalls_of(
            alone_s=alone,
            prompt_weights=grid.weights,
            rate_per_s=rate_per_s,
            decode_s=decode_s,
            mean_s=grid.mean(shared),
            square_s2=grid.mean(shared**2),
            batch_mean=batch_mean,
        )
