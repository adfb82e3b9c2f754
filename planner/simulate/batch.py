"""What runs on a replica and the cache it takes: who comes in, who has to go when no block is left.

Cache use is base + slope x steps between recounts (an upper bound), plus what prompts hold: those in progress, and on
a prefill replica those whose cache has not left yet.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappush

from planner.perf.pool import PoolSpec
from planner.simulate.prefixes import Prefixes
from planner.simulate.requests import Ledger, Request
from planner.simulate.waiting import differ, waiting_queue

_STALE_STEPS = 8
"""How far the cache estimate may be behind before a blocked admission recounts it."""


class Batch:
    """Decoding sequences, the prompt in progress, the waiting queue, and the blocks of all of them."""

    def __init__(self, pool: PoolSpec, ledger: Ledger, priorities: Sequence[int]) -> None:
        self.pool = pool
        self.ledger = ledger
        self.per_step = pool.drafting.tokens_per_step if pool.drafting is not None else 1.0
        self.priorities = priorities
        """Of each class; empty where they do not matter."""
        self.ranked = differ(priorities)
        self.waiting = waiting_queue(priorities)
        self.partial: Request | None = None
        self.heap: list[tuple[int, int, Request]] = []
        self.n = 0
        self.context = 0.0
        self.steps = 0
        """Steps with decodes since the start: sequences finish at a count of it."""
        self.counts = [0] * ledger.classes
        self.fresh: list[Request] = []
        """Decode role: handed over, first step still to come."""
        self.sending: deque[tuple[float, Request]] = deque()
        """Prefill role: prompts whose blocks are still here, by when their caches will have arrived."""
        self.kv_base = 0.0
        self.kv_slope = 0.0
        self.kv_prompts = 0.0
        self.kv_counted = 0
        self.start_s = 0.0
        """When the current segment began."""
        self.prefixes: Prefixes | None = None
        """What is at rest in the cache, where sessions may come back for it."""

    def _context_of(self, r: Request) -> float:
        """Context of a decoding sequence at its next step."""
        return r.joined + self.steps * self.per_step

    def _decode(self, r: Request, context: int, tokens: int) -> None:
        """Into the running batch with `tokens` to go and `context` tokens at its next step."""
        steps = self.steps
        self.n += 1
        self.counts[r.cls] += 1
        r.joined = context - steps * self.per_step
        self.context += context
        self._account(r, context)
        heappush(self.heap, (steps + math.ceil(tokens / self.per_step - 1e-9), r.index, r))

    def _account(self, r: Request, context: float) -> None:
        """Cache of one sequence from here on: its whole blocks now, and its growth per step."""
        pool = self.pool
        cost = pool.cost(context)
        if pool.kv_cost is None:
            slope = self.per_step
        else:
            slope = (
                max((pool.cost(context + 64 * pool.block_tokens) - cost) / (64 * pool.block_tokens), 0.0)
                * self.per_step
            )
        r.slope = slope
        r.base = cost - slope * self.steps
        self.kv_base += r.base
        self.kv_slope += slope

    def _recount(self) -> None:
        """Exact cache use of every running sequence."""
        self.kv_base = self.kv_slope = 0.0
        for _, _, r in self.heap:
            self._account(r, self._context_of(r))
        self.kv_counted = self.steps

    def _free(self, now_s: float) -> None:
        """Blocks of the prompts whose caches have left by now."""
        sending = self.sending
        while sending and sending[0][0] <= now_s:
            r = sending.popleft()[1]
            self.kv_prompts -= self.pool.cost(r.todo + 1)
            if self.prefixes is not None:
                self.prefixes.put(r, self.kv_prompts)

    def _room_for(self, r: Request) -> bool:
        need = self.pool.cost(r.todo + 1)
        free = self.pool.kv_capacity - self.kv_prompts - need
        if self.ranked:
            # Decodes take their blocks first: nothing is admitted that would have one of them preempted at once.
            free -= self.kv_slope
        if self.kv_base + self.kv_slope * self.steps <= free:
            return True
        if self.steps - self.kv_counted >= _STALE_STEPS:
            self._recount()
            return self.kv_base + self.kv_slope * self.steps <= free
        return False

    def _grow(self, steps: int) -> int:
        """Steps (at least one) that the cache allows; preempts the youngest sequences where it allows none."""
        room = self.pool.kv_capacity - self.kv_prompts
        allowed = self._allowed(room, steps)
        if allowed >= 1:
            return allowed
        self._recount()
        allowed = self._allowed(room, steps)
        if allowed >= 1:
            return allowed
        while self.n > 1:
            if sum(self.pool.cost(self._context_of(r) + self.per_step) for _, _, r in self.heap) <= room:
                return 1
            self._preempt()
        return 1

    def _allowed(self, room: float, steps: int) -> int:
        if self.kv_slope <= 1e-12:
            return steps if self.kv_base <= room else 0
        return min(steps, math.floor((room - self.kv_base) / self.kv_slope - self.steps))

    def _make_room(self) -> None:
        """Ranked: preempt until the next step's blocks are there, the last in order of (priority, arrival) first."""
        if not self.n:
            return
        if self._allowed(self.pool.kv_capacity - self.kv_prompts, 1) >= 1:
            return
        self._recount()
        while self.n + (self.partial is not None) > 1:
            room = self.pool.kv_capacity - self.kv_prompts
            if self._allowed(room, 1) >= 1:
                return
            if sum(self.pool.cost(self._context_of(r) + self.per_step) for _, _, r in self.heap) <= room:
                return
            last = max((self._order(r) for _, _, r in self.heap), default=(-1, -1))
            if self.partial is not None and self._order(self.partial) > last:
                self._drop_partial()
            else:
                self._preempt()

    def _order(self, r: Request) -> tuple[int, int]:
        return (self.priorities[r.cls] if self.ranked else 0, r.index)

    def _drop_partial(self) -> None:
        r, self.partial = self.partial, None
        assert r is not None
        self.ledger.preemptions += 1
        self.kv_prompts -= self.pool.cost(r.todo + 1)
        r.prefilled = 0
        self.waiting.appendleft(r)

    def _preempt(self) -> None:
        if self.ranked:
            at = max(range(len(self.heap)), key=lambda i: self._order(self.heap[i][2]))
        else:
            at = max(range(len(self.heap)), key=lambda i: self.heap[i][1])
        finish, _, r = self.heap.pop(at)
        heapify(self.heap)
        self.ledger.preemptions += 1
        left = finish - self.steps
        done = r.output - max(1, math.ceil(left * self.per_step))
        self.n -= 1
        self.counts[r.cls] -= 1
        self.context -= self._context_of(r)
        self.kv_base -= r.base
        self.kv_slope -= r.slope
        r.tokens = max(done, r.tokens)
        r.todo = r.input + r.tokens
        r.prefilled = 0
        r.last_s = self.start_s
        if r in self.fresh:
            self.fresh.remove(r)
        self.waiting.appendleft(r)
