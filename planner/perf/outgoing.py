"""A prefill replica's cache: prompts that are read, and prompts that are done and on their way out.

The blocks of a prompt stay from its admission until the decode side has its cache. By Little's law the cache holds

    rate x E[blocks x (its steps + the wait for the links + the transfer)]

and where that does not fit, new prompts wait for room however idle the GPUs are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.perf.lengths import Floats, normal_cdf
from planner.perf.nodes import exponential_nodes, gamma_quantile, spread_nodes
from planner.perf.pool import PoolSpec
from planner.perf.spread import Spread, spread
from planner.perf.table_math import along
from planner.perf.traffic import Requests

FULL_SIGMAS = 1.5
"""Above the mean that must fit at `most_per_s`: what is also kept of decode caches."""
_NEARLY = 0.999
_CELLS = 512
"""Of the wait for the links."""


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """Of one replica; with ranks in lock-step each has its own cache, and all of them share the links."""

    room: float
    """Cache of one rank, in the pool's units."""
    ranks: int
    reading_per_s: float
    """Prompts that the replica can read: where its steps are all full."""
    blocks: Floats
    """Of each prompt of the grid, in the pool's units, and its seconds:"""
    alone_s: Floats
    """in steps of its own,"""
    crowded_s: Floats
    """in full steps that it shares,"""
    moving_s: Floats
    """on its way when the links are idle."""
    weights: Floats
    latency_s: float
    """Of which the links know nothing."""
    linked_s: float
    """Seconds that a mean prompt occupies the links, and their second moment."""
    linked_square: float

    def link_ratio(self, rate_per_s: float) -> float:
        """Share of the time that the links are busy."""
        return rate_per_s * self.linked_s

    def link_wait_s(self, rate_per_s: float) -> float:
        """Mean wait for the links: M/G/1, and those before it that came while the same step was under way.

        W = (lambda (1 + busy) E[h^2] / 2 + h lambda T / 2) / (1 - nic)

        h: seconds of bytes, T: the step that an arrival meets. Who comes while a prompt is read (busy) follows on its
        heels and meets the whole of its transfer, not half.
        """
        return self._others_s(rate_per_s) + self._mates_s(rate_per_s)

    def _others_s(self, rate_per_s: float) -> float:
        nic = min(self.link_ratio(rate_per_s), _NEARLY)
        busy = min(rate_per_s / self.reading_per_s, 1.0)
        return rate_per_s / 2 * (1 + busy) * self.linked_square / (1 - nic)

    def _mates_s(self, rate_per_s: float) -> float:
        nic = min(self.link_ratio(rate_per_s), _NEARLY)
        return rate_per_s / 2 * self.linked_s * self._step_s / (1 - nic)

    @property
    def _step_s(self) -> float:
        return float((self.weights @ self.alone_s**2) / (self.weights @ self.alone_s))

    def link_wait(self, rate_per_s: float) -> Spread:
        """The same with its tail, which long prompts make: of M/G/1, a geometric number of transfers' rests.

        W(z) = (1 - nic) / (1 - nic r(z)), r: what is left of a transfer that an arrival finds under way
        """
        nic = min(self.link_ratio(rate_per_s), _NEARLY)
        mean = self.link_wait_s(rate_per_s)
        if nic < 1e-6:
            return spread(np.zeros(2), np.ones(2), "wait for the links", mean=mean)
        held = np.maximum(self.moving_s - self.latency_s, 1e-12)
        others_s = self._others_s(rate_per_s)
        edges = np.linspace(0.0, float(held.max()) + 8 * others_s / nic, _CELLS + 1)
        left = np.minimum(held[:, None], edges[None, :]).T @ self.weights  # E[min(h, t)]
        rest = np.diff(left) / self.linked_s
        wait = np.fft.irfft((1 - nic) / (1 - nic * np.fft.rfft(rest, 2 * _CELLS)), 2 * _CELLS)[:_CELLS]
        at = np.concatenate([[0.0], edges[1:-1] + edges[1] / 2])
        others = spread(at, np.maximum(wait, 0.0), "")
        values, weights = spread_nodes(others.scaled(others_s / max(others.mean, 1e-12)), 40)
        some = min(rate_per_s * self._step_s / 2, 1.0)
        mates, mates_w = exponential_nodes(some, some / max(self._mates_s(rate_per_s), 1e-12))
        return spread(
            values[:, None] + mates[None, :], weights[:, None] * mates_w[None, :], "wait for the links", mean=mean
        )

    def held(self, rate_per_s: float) -> tuple[float, float]:
        """Mean and deviation of the units that one rank's prompts hold.

        Prompts come one by one, so their number varies like a Poisson one; what queues for the links varies more, by
        1 / (1 - link ratio).
        """
        busy = min(rate_per_s / self.reading_per_s, 1.0)
        reading = self.alone_s + busy * np.maximum(self.crowded_s - self.alone_s, 0.0)
        sending = self.moving_s + self.link_wait_s(rate_per_s)
        each = rate_per_s / self.ranks
        mean = each * float((self.weights * self.blocks) @ (reading + sending))
        square = self.weights * self.blocks**2
        queueing = 1 - min(self.link_ratio(rate_per_s), _NEARLY)
        return mean, math.sqrt(each * (float(square @ reading) + float(square @ sending) / queueing))

    def most_per_s(self, sigmas: float = FULL_SIGMAS) -> float:
        """Highest rate whose prompts still fit: mean + `sigmas` deviations, and the links keep up."""
        low, high = 0.0, min(self.reading_per_s, 1 / max(self.linked_s, 1e-12))
        if self._fits(high * _NEARLY, sigmas):
            return high
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self._fits(middle, sigmas) else (low, middle)
        return low

    def _fits(self, rate_per_s: float, sigmas: float) -> bool:
        mean, sd = self.held(rate_per_s)
        return mean + sigmas * sd <= self.room

    def quantile(self, rate_per_s: float, z: float) -> float:
        """Units held, as a gamma with these two moments."""
        return gamma_quantile(*self.held(rate_per_s), z)

    def short_ratio(self, rate_per_s: float) -> float:
        """Probability that a prompt of mean size finds no room."""
        mean, sd = self.held(rate_per_s)
        left = self.room - mean - float(self.weights @ self.blocks)
        return float(1 - normal_cdf(np.array(left / max(sd, 1e-12))))


def outgoing(
    pool: PoolSpec, grid: Requests, *, alone_s: Floats, full_step_s: float, reading_per_s: float
) -> Outgoing | None:
    """For a prefill replica that hands over; None for every other."""
    if pool.role != "prefill" or pool.handover is None:
        return None
    half = pool.block_tokens / 2
    tokens = grid.input_tokens + 1
    moving = np.array([pool.handover.seconds(float(t)) for t in grid.input_tokens])
    return Outgoing(
        room=pool.kv_capacity,
        ranks=pool.lockstep_ranks,
        reading_per_s=reading_per_s,
        blocks=along(pool.kv_cost, tokens + half) if pool.kv_cost is not None else tokens + half,
        alone_s=alone_s,
        crowded_s=(grid.prefill_tokens / pool.max_num_batched_tokens + 1) * full_step_s,
        moving_s=moving,
        weights=grid.weights,
        latency_s=pool.handover.latency_s,
        linked_s=grid.mean(moving) - pool.handover.latency_s,
        linked_square=grid.mean((moving - pool.handover.latency_s) ** 2),
    )
