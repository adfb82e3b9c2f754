"""What is measured of one replica: gaps as histograms by batch and class, occupancy as shares of time, windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.simulate.requests import BINS_PER_E, Ledger

WINDOWS = 64
KV_BINS = 400
NOTHING = -(10**6)
"""Bin of gaps of no length: the other tokens of a verified step."""


class Gauge:
    """Counts between the warm-up and the last arrival; batches are equal stretches of that time."""

    def __init__(self, ledger: Ledger, *, capacity: float, token_s: float) -> None:
        self.ledger = ledger
        self.capacity = capacity
        self.token_s = token_s
        self.busy_s = 0.0
        self.rest_s = 0.0
        """Without a step, but with a cache that is not empty: caches on their way out."""
        self.running_s: dict[int, float] = {}
        self.kv_s = [0.0] * (KV_BINS + 1)
        self.wait_integral_s = 0.0
        self.window_s = max(ledger.end_s, 1e-9) / WINDOWS
        self.series_wait = [0.0] * (WINDOWS + 1)
        self.series_run = [0.0] * (WINDOWS + 1)
        self.counting = False
        self._batch_end = ledger.warm_s
        self._gaps = ledger.gaps[0]
        self._sums = ledger.gap_sums[0]
        self._next_batch(0.0)

    def segment(self, start_s: float, end_s: float, *, decoding: int, prompts: int, waiting: int, used: float) -> None:
        """One segment's time: what ran, what waited, how full the cache was."""
        took = end_s - start_s
        if end_s > self._batch_end:
            self._next_batch(end_s)
        if self.counting:
            # A segment that straddles the edge of the measured time counts whole; segments are short.
            self.busy_s += took
            running = decoding + prompts
            self.running_s[running] = self.running_s.get(running, 0.0) + took
            self.kv_s[min(int(used / self.capacity * KV_BINS), KV_BINS)] += took
            self.wait_integral_s += took * waiting
        w = min(int(start_s / self.window_s), WINDOWS)
        self.series_wait[w] += took * waiting
        self.series_run[w] += took * decoding

    def rest(self, start_s: float, end_s: float, *, waiting: int, used: float) -> None:
        """Time without a step in which caches leave: nothing runs, prompts may wait for room."""
        took = end_s - start_s
        if end_s > self._batch_end:
            self._next_batch(end_s)
        if self.counting:
            self.rest_s += took
            self.kv_s[min(int(used / self.capacity * KV_BINS), KV_BINS)] += took
            self.wait_integral_s += took * waiting
        self.series_wait[min(int(start_s / self.window_s), WINDOWS)] += took * waiting

    def gap(self, cls: int, gap_s: float, count: float) -> None:
        """Single gaps of one length."""
        gap_s += self.token_s
        at = int(math.log(gap_s) * BINS_PER_E) if gap_s > 1e-9 else NOTHING
        h = self._gaps[cls]
        h[at] = h.get(at, 0.0) + count
        s = self._sums[cls]
        s[0] += count
        s[1] += count * gap_s

    def run(self, counts: Sequence[int], steps: int, first_s: float, growth_s: float, per_step: float) -> None:
        """A run of steps that grow linearly; every class's sequences sit through all of them."""
        rise = growth_s * (steps - 1)
        parts = 1 if rise < 0.005 * first_s else min(int(rise / (0.005 * first_s)) + 1, 12, steps)
        for c, m in enumerate(counts):
            if m == 0:
                continue
            s = self._sums[c]
            s[0] += m * steps * per_step
            s[1] += m * (steps * first_s + growth_s * steps * (steps - 1) / 2 + steps * per_step * self.token_s)
            h = self._gaps[c]
            done = 0
            for p in range(parts):
                upto = steps * (p + 1) // parts
                here = upto - done
                at = int(math.log(first_s + growth_s * (done + (here - 1) / 2) + self.token_s) * BINS_PER_E)
                h[at] = h.get(at, 0.0) + m * here
                done = upto
            if per_step > 1:
                h[NOTHING] = h.get(NOTHING, 0.0) + m * steps * (per_step - 1)

    def _next_batch(self, now_s: float) -> None:
        ledger = self.ledger
        self.counting = ledger.warm_s <= now_s and (ledger.drains or now_s <= ledger.end_s)
        if now_s < ledger.warm_s:
            self._batch_end = ledger.warm_s
            return
        b = ledger.batch_of(now_s)
        self._gaps, self._sums = ledger.gaps[b], ledger.gap_sums[b]
        span = (ledger.end_s - ledger.warm_s) / ledger.batches
        self._batch_end = ledger.warm_s + (b + 1) * span if now_s <= ledger.end_s else math.inf
        if b == ledger.batches - 1 and self.counting:
            self._batch_end = math.inf if ledger.drains else ledger.end_s
