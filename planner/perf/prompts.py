"""What the prompts of a mix cost a replica: chunk by chunk, alone or in shared steps, beside a number of decodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.perf.bursts import Arrivals
from planner.perf.lengths import Floats
from planner.perf.nodes import strata_of
from planner.perf.pool import PoolSpec
from planner.perf.ranks import LEFT
from planner.perf.table_math import along, prompt_attention_s, prompt_extra_s, prompt_steps_s
from planner.perf.traffic import Requests

LEVELS = 110
"""Of the backlog chain: its cost grows with their square."""
_CROWD = 12.0
"""Prompts a step from which on their number hardly varies."""


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """Prompts cut into levels of tokens for the chains of `queue` and `ranks`, beside a number of decodes."""

    level_tokens: float
    chunk_levels: int
    count: int
    """Levels that the backlog may reach."""
    prompt_tokens: Floats
    """Weighted with their time: a long prompt's attention makes its tokens dearer than average."""
    added_s: Floats
    """What 0..chunk_levels levels add to a step."""
    full_s: float
    """Time of a prompt in full steps: mean."""
    full_s2: float
    """and mean square."""
    batch_mean: float
    """Mean size of the batches in which they come: 1 or more."""
    wait_ratio: float
    """How much shorter than under Poisson arrivals they wait where they come more evenly."""


class PromptWork:
    """Prompts of a grid of requests on one replica (rank)."""

    def __init__(self, pool: PoolSpec, grid: Requests) -> None:
        self.pool = pool
        self.grid = grid
        self._attention: dict[int, float] = {}
        self._positions: dict[int, tuple[Floats, Floats]] = {}

    def chunk(self, decodes: float) -> float:
        """Prompt tokens that fit into a step beside the decodes."""
        pool = self.pool
        if pool.role == "prefill" or pool.scheduler == "prefill-first":
            return float(pool.max_num_batched_tokens)
        return max(1.0, pool.max_num_batched_tokens - decodes * pool.tokens_per_sequence)

    def beside(self, decodes: float) -> float:
        """Decode tokens in the steps that prompts ride in."""
        if self.pool.scheduler == "prefill-first" or self.pool.role == "prefill":
            return 0.0
        return decodes * self.pool.tokens_per_sequence

    def seconds(self, decodes: float, step_tokens: float | None = None) -> Floats:
        """Seconds that each prompt adds to steps, in chunks of its own or in steps of at least `step_tokens`."""
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

    def matrices_s(self, decodes: float, together: float | Floats) -> Floats:
        """The same without attention, last chunks counted as the steps that they are, shared by `together` prompts."""
        return prompt_steps_s(
            self.pool.table,
            decode_tokens=self.beside(decodes),
            chunk_tokens=self.chunk(decodes),
            prefill_tokens=self.grid.prefill_tokens,
            together=together,
        )

    def attention_s(self, decodes: float) -> Floats:
        """Attention of each prompt, all its chunks."""
        return prompt_attention_s(
            self.pool.table,
            chunk_tokens=self.chunk(decodes),
            start_tokens=self.grid.cached_tokens,
            prefill_tokens=self.grid.prefill_tokens,
        )

    def token_attention_s(self, decodes: float) -> float:
        """Attention of a mean prompt token. It hardly depends on the decodes: between powers of two of them."""
        at = math.log2(max(decodes, 1.0))
        low = int(at)
        for power in (low, low + 1):
            if power not in self._attention:
                found = self.grid.mean(self.attention_s(2.0**power)) / self.grid.mean(self.grid.prefill_tokens)
                self._attention[power] = found
        return self._attention[low] + (at - low) * (self._attention[low + 1] - self._attention[low])

    def full_s(self, decodes: float) -> float:
        """What a full chunk adds to a step."""
        chunk, beside = self.chunk(decodes), self.beside(decodes)
        base = float(self.pool.table.linear_decode(beside)) if beside else 0.0
        return float(self.pool.table.linear_mixed(beside + chunk)) - base + self.token_attention_s(decodes) * chunk

    def shared_s(
        self, decodes: float, *, decode_s: float, alone_s: float, rate_per_s: float, arrivals: Arrivals
    ) -> float:
        """What a prompt adds on average at this rate: those that come during a step share the next one.

        That step is a decode step, or one that holds prompts itself. In bursts more of them come together.
        """
        busy = min(rate_per_s * alone_s, 0.95)
        prompts = []
        for before in (decode_s, alone_s + (decode_s if self.beside(decodes) else 0.0)):
            batch = max((1 + arrivals.variability(rate_per_s, 1 / before)) / 2, 1.0)
            prompts.append([batch * together(rate_per_s * before / batch)])
        free, mixed = self.matrices_s(decodes, np.array(prompts)) @ self.grid.weights
        return float((1 - busy) * free + busy * mixed)

    def crowded_s(self, decodes: float, ended: float) -> float:
        """What a prompt adds to steps in each of which a Poisson number of prompts begins, `ended` on average.

        Those that begin together share their steps; under decode-first, what overflows a step fills the next.
        """
        k, w = poisson(ended)
        w = w * k
        g, chunk = self.grid, self.chunk(decodes)
        each = [self.matrices_s(decodes, float(m)) for m in k]
        if self.pool.scheduler == "decode-first":
            full = self.matrices_s(decodes, chunk / g.prefill_tokens)
            each = [np.where(g.prefill_tokens * m > chunk, full, c) for m, c in zip(k, each, strict=True)]
        cost = np.array([g.mean(c) for c in each])
        return float(cost @ w / w.sum()) + g.mean(self.attention_s(decodes))

    def positions(self, decodes: float) -> tuple[Floats, Floats]:
        """How much dearer a token is at its chunk's place in the prompt than on average: s, ascending, and weights.

        Of the power of two of decodes that is nearest.
        """
        power = max(round(math.log2(max(decodes, 1.0))), 0)
        if power not in self._positions:
            self._positions[power] = self._placed(2.0**power)
        return self._positions[power]

    def _placed(self, decodes: float) -> tuple[Floats, Floats]:
        g, table = self.grid, self.pool.table
        chunk = self.chunk(decodes)
        at = np.arange(1, 16, 2) / 16
        tokens = g.prefill_tokens
        size = np.minimum(chunk, tokens)
        start = g.cached_tokens[:, None] + np.maximum(tokens - size, 0.0)[:, None] * at
        cost = along(table.prefill_attention, size[:, None] * start + (size * (size + 1) / 2)[:, None]) / size[:, None]
        w = (g.weights * tokens)[:, None] * np.full(len(at), 1 / len(at))
        if float(np.ptp(cost)) == 0.0:
            return np.zeros(1), np.ones(1)
        order = np.argsort(cost, axis=None, kind="stable")
        value, mass = strata_of(cost.ravel()[order], w.ravel()[order], 10)
        return value - float(value @ mass), mass

    def added_s(self, decodes: Floats, tokens: Floats) -> Floats:
        """[i, k]: what this many prompt tokens add to a step with this many decodes, as far as its budget goes."""
        table = self.pool.table
        beside = decodes[:, None] * self.pool.tokens_per_sequence
        taken = np.minimum(tokens, np.maximum(self.pool.max_num_batched_tokens - beside, 1.0))
        linear = along(table.linear_mixed, beside + taken) - along(table.linear_decode, beside)
        attention = self.token_attention_s(float(decodes.mean())) * taken
        return np.where(tokens > 0, np.maximum(linear, 0.0) + attention, 0.0)

    def levels(
        self,
        decodes: float,
        *,
        decode_s: float,
        rate_per_s: float,
        arrivals: Arrivals,
        ranks: int = 1,
    ) -> Levels:
        """Levels fine enough for a chunk's sizes and high enough for the backlog's tail.

        For ranks: a chunk has as many as leave room for what the longest prompts leave over, since the longest of many
        ranks' chunks must not all look full.
        """
        table, tokens, g = self.pool.table, self.grid.prefill_tokens, self.grid
        chunk, beside = self.chunk(decodes), self.beside(decodes)
        attention = self.attention_s(decodes)
        per_token = g.mean(attention) / g.mean(tokens)
        base = float(table.linear_decode(beside)) if beside else 0.0
        full = (decode_s + float(along(table.linear_mixed, beside + chunk)) - base) / chunk
        even = tokens * (full + attention / tokens) / (full + per_token)
        mean, second = g.mean(even), g.mean(even**2)
        token_s = full + per_token
        # Of ranks in lock-step, all together: a burst is spread over them.
        each = mean * token_s / ranks
        c = arrivals.queueing(rate_per_s * ranks, mean_s=each, square_s2=second * (token_s / ranks) ** 2)
        batch_mean = max((1 + c) / 2, 1.0)
        # Kingman: waits go with c + c_s, the services' own variability.
        spread = second / mean**2 - 1
        wait_ratio = min((c + spread) / (1 + spread), 1.0)
        load = min(rate_per_s * mean * token_s, 0.97)
        reach = second / (2 * mean * (1 - load)) * 7 * batch_mean + float(even.max()) + 2 * chunk
        fine = min(chunk / 4, max(mean / 3, chunk / 32))
        per_chunk = max(1, round(chunk / max(fine, reach / LEVELS)))
        if ranks > 1:
            order = np.argsort(even)
            chunks = float(np.interp(0.99, np.cumsum(g.weights[order]), even[order])) / chunk
            per_chunk = int(max(2, min(LEFT / (chunks + 1), max(chunk / fine, 8), 24)))
        level = chunk / per_chunk
        count = int(min(max(reach / level, 2 * per_chunk + 2), 4 * LEVELS)) + 1
        k = np.arange(per_chunk + 1)
        linear = np.maximum(along(table.linear_mixed, beside + k * level) - base, 0.0)
        added = np.where(k > 0, linear + per_token * k * level, 0.0)
        return Levels(level, per_chunk, count, even, added, mean * token_s, second * token_s**2, batch_mean, wait_ratio)


def dearest(weights: Floats, count: float) -> Floats:
    """Of `count` draws from ascending values with these weights, the weights of the largest."""
    found: Floats = np.diff(np.minimum(np.cumsum(weights), 1.0) ** max(count, 1.0), prepend=0.0)
    return found


def together(mean: float) -> float:
    """Prompts in a step that takes what came during the one before, given that any did: m / (1 - exp(-m))."""
    m = max(mean, 1e-9)
    return m / -math.expm1(-m)


def poisson(mean: float) -> tuple[Floats, Floats]:
    """Numbers from one on and their probabilities; the mean alone where it is large."""
    if mean >= _CROWD:
        return np.array([mean]), np.ones(1)
    k = np.arange(1.0, math.ceil(mean + 4 * math.sqrt(mean)) + 2)
    return k, np.exp([i * math.log(mean) - math.lgamma(i + 1) - mean for i in k])
