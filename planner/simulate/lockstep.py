"""Attention-DP ranks of one replica: they share experts, so every step of theirs ends with the slowest rank.

Each rank has its own sequences, cache and budget; requests go to the rank with the fewest. A prompt on one rank
stalls the decodes of all: costing ranks as independent replicas would promise whole factors too much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.perf.pool import PoolSpec
from planner.simulate.engine import INF, Replica
from planner.simulate.link import Link
from planner.simulate.requests import Ledger, Request


class Lockstep:
    """A group of ranks with the interface of one `Replica`."""

    def __init__(
        self, pool: PoolSpec, ledger: Ledger, *, max_waiting: int | None = None, priorities: Sequence[int] = ()
    ) -> None:
        self.ranks = [
            Replica(pool, ledger, max_waiting=max_waiting, priorities=priorities) for _ in range(pool.lockstep_ranks)
        ]
        for rank in self.ranks:
            rank.held = True
        self.start_s = 0.0
        self.end_s = INF
        self.alive = True
        self._steps = 0
        self._first_s = 0.0
        self._growth_s = 0.0
        self._cuttable = False
        self._resting = False
        """No rank has a step under way; some wait for caches to leave."""

    @property
    def link(self) -> Link | None:
        return self.ranks[0].link

    @link.setter
    def link(self, value: Link | None) -> None:
        for rank in self.ranks:
            rank.link = value

    @property
    def out(self) -> list[tuple[float, Request]]:
        return [done for rank in self.ranks for done in rank.out]

    @out.setter
    def out(self, value: list[tuple[float, Request]]) -> None:
        assert not value
        for rank in self.ranks:
            rank.out = []

    @property
    def load(self) -> int:
        return sum(rank.load for rank in self.ranks)

    def parts(self) -> list[Replica]:
        return self.ranks

    def arrive(self, r: Request, now_s: float) -> None:
        if self._resting:
            self._commit(now_s)
            self.end_s = INF
        min(self.ranks, key=lambda rank: rank.load).arrive(r, now_s)
        if self.end_s == INF:
            self._plan(now_s)
        elif self._cuttable:
            self._cut(now_s)

    def advance(self, until_s: float) -> None:
        while self.end_s <= until_s:
            end = self.end_s
            self._commit(end)
            self._plan(end)

    def _commit(self, end_s: float) -> None:
        for rank in self.ranks:
            rank.start_s, rank.end_s = self.start_s, end_s
            rank.seg_steps, rank.seg_first_s, rank.seg_growth_s = self._steps, self._first_s, self._growth_s
            rank.resting = self._resting
            rank.commit()

    def evict_all(self, now_s: float) -> list[Request]:
        found = sorted((r for rank in self.ranks for r in rank.evict_all(now_s)), key=lambda r: r.index)
        self.end_s = INF
        self._resting = False
        self.alive = False
        return found

    def _plan(self, now_s: float) -> None:
        self.start_s = now_s
        for rank in self.ranks:
            rank.plan(now_s)
        busy = [rank for rank in self.ranks if rank.end_s < INF and not rank.resting]
        self._resting = False
        if not busy:
            # Idle, or all of them wait for a cache to leave.
            self.end_s = min(rank.end_s for rank in self.ranks)
            self._resting = self.end_s < INF
            self._cuttable = False
            return
        slowest = max(busy, key=lambda rank: rank.seg_first_s)
        steps = 1 if any(rank.seg_prompts for rank in busy) else min(rank.seg_steps for rank in busy)
        if steps > 1:
            # Up to where a rank whose context grows faster becomes the slowest.
            for rank in busy:
                faster = rank.seg_growth_s - slowest.seg_growth_s
                if faster > 0:
                    steps = min(steps, max(1, math.ceil((slowest.seg_first_s - rank.seg_first_s) / faster)))
        self._steps, self._first_s, self._growth_s = steps, slowest.seg_first_s, slowest.seg_growth_s
        self.end_s = now_s + steps * self._first_s + self._growth_s * steps * (steps - 1) / 2
        self._cuttable = steps > 1

    def _cut(self, now_s: float) -> None:
        """An arrival that may be admitted ends the run with the step under way."""
        first, growth = self._first_s, self._growth_s
        elapsed = now_s - self.start_s
        if growth <= 0:
            steps = math.ceil(elapsed / first - 1e-9)
        else:
            half = growth / 2
            b = first - half
            steps = math.ceil((math.sqrt(b * b + 4 * half * elapsed) - b) / (2 * half) - 1e-9)
        steps = max(steps, 1)
        if steps < self._steps:
            self._steps = steps
            self.end_s = self.start_s + steps * first + growth * steps * (steps - 1) / 2
        self._cuttable = False
