"""One engine replica: continuous batching with chunked prefill, in jumps.

Between two events (an arrival that could be admitted, a completion, a prompt's chunk, a full cache) every decoding
sequence takes the same number of steps, so a run of decode steps is one segment with a closed form: its steps grow
linearly (`table`). Cost is per event, whatever the answers' length.

decode-first (vLLM): each step decodes all running sequences and gives the rest of its token budget to prompts, the
partly prefilled one first, then the waiting queue in order, as long as slots and cache for the whole prompt are there.
prefill-first (SGLang): as long as a prompt can be admitted, steps hold prompts alone and decodes stall.
When a step finds no cache block, the youngest sequence is preempted: its cache is dropped and recomputed later.

Where classes differ in priority (lower values first, as vLLM counts), the waiting queue is in order of (priority,
arrival), and the sequence that is preempted is the last in that order, a half-read prompt included (vLLM 0.33:
`max(running, key=(priority, arrival))`). Nothing that runs is stopped for something that waits.

A prefill replica keeps a prompt's blocks until its cache has left over the `Link`; a prompt that finds no room waits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop

from planner.perf.pool import PoolSpec
from planner.simulate.batch import Batch
from planner.simulate.gauge import Gauge
from planner.simulate.link import Link
from planner.simulate.requests import Ledger, Request

INF = math.inf


class Replica(Batch):
    """One replica. `end_s` is when its current segment ends; infinite while it is idle."""

    def __init__(
        self, pool: PoolSpec, ledger: Ledger, *, max_waiting: int | None = None, priorities: Sequence[int] = ()
    ) -> None:
        super().__init__(pool, ledger, priorities)
        self.gauge = Gauge(ledger, capacity=pool.kv_capacity, token_s=pool.table.token_s)
        self.max_waiting = max_waiting
        table = pool.table
        self.draft_s = pool.drafting.draft_s if pool.drafting is not None else 0.0
        self.width = pool.tokens_per_sequence
        self.decode_role = pool.role == "decode"
        self.prefill_role = pool.role == "prefill"
        self.prefill_first = pool.scheduler == "prefill-first" and pool.role == "aggregated"
        self.host_s = table.request_s + table.token_s
        self.token_s = table.token_s
        self.stream_s = table.stream_s
        self._mixed_x, self._mixed_y, self._mixed_k = _pieces(table.linear_mixed.x, table.linear_mixed.y)
        self._pre_x, self._pre_y, self._pre_k = _pieces(table.prefill_attention.x, table.prefill_attention.y)
        self._by_n: dict[int, tuple[float, tuple[float, ...], tuple[float, ...], tuple[float, ...]]] = {}
        self.stalled: list[tuple[float, list[int]]] = []
        """Prefill-first: last token time of groups that stall, and their sizes by class."""
        self.joining: list[Request] = []
        """Prompts whose last chunk is in the current step."""
        # Current segment.
        self.end_s = INF
        self.seg_steps = 0
        self.seg_first_s = 0.0
        self.seg_growth_s = 0.0
        self.seg_prompts = False
        self.seg_decodes = False
        self.cuttable = False
        self.resting = False
        """No step under way: the segment only waits for the next cache to leave."""
        self.held = False
        """A rank of a lock-step group: the group plans and cuts, not the rank."""
        self.alive = True
        self.link: Link | None = None
        """Prefill role: how caches leave; a prefill pool on its own has none, and requests end with their prompt."""
        self.out: list[tuple[float, Request]] = []
        """Prefill role: finished prompts and when their caches arrive, for the router to hand over."""

    # ------------------------------------------------------------ outside

    @property
    def load(self) -> int:
        """Requests here, running or waiting: what least-loaded routing compares."""
        return self.n + len(self.waiting) + len(self.joining) + (self.partial is not None)

    def arrive(self, r: Request, now_s: float) -> None:
        """A request reaches this replica (all segments that end before `now_s` are done)."""
        pool = self.pool
        longest = r.todo + 1 if self.prefill_role else r.input + r.output
        if (r.input + r.output > pool.longest_tokens or pool.cost(longest) > pool.kv_capacity) or (
            self.max_waiting is not None and len(self.waiting) >= self.max_waiting
        ):
            self.ledger.reject(r)
            return
        r.host_s = self.host_s + self.stream_s * (self.load + 1)
        if self.held:
            self.waiting.append(r)
            return
        if self.resting:
            self.end_s = now_s
            self.commit()
            self.end_s = INF
        self.waiting.append(r)
        if self.end_s == INF:
            self.start_s = now_s
            self._plan(now_s)
        elif self.cuttable and (not self.ranked or self.waiting[0] is r):
            self._cut(now_s)

    def advance(self, until_s: float) -> None:
        """Finish every segment that ends by `until_s`."""
        while self.end_s <= until_s:
            self.commit()
            self._plan(self.start_s)

    def evict_all(self, now_s: float) -> list[Request]:
        """The replica dies: everything on it starts anew elsewhere, prompts whose caches have not left included."""
        self._free(now_s)
        found = [r for _, _, r in self.heap] + self.joining + list(self.waiting) + [r for _, r in self.sending]
        for finish, _, r in self.heap:
            r.tokens = max(r.output - math.ceil((finish - self.steps) * self.per_step), 0)
        if self.partial is not None:
            found.append(self.partial)
        for r in found:
            r.lost += r.tokens
            r.tokens, r.prefilled, r.todo, r.first_s, r.last_s = 0, 0, r.input, -1.0, -1.0
        self.ledger.restarted += len(found)
        self.heap, self.joining, self.partial, self.n, self.context = [], [], None, 0, 0.0
        self.waiting.clear()
        self.sending.clear()
        if self.link is not None:
            self.link.free_s = now_s
        self.counts = [0] * self.ledger.classes
        self.fresh, self.stalled = [], []
        self.kv_base = self.kv_slope = self.kv_prompts = 0.0
        if self.prefixes is not None:
            self.prefixes.clear()
        self.end_s = INF
        self.resting = False
        self.alive = False
        return sorted(found, key=lambda r: r.index)

    # ------------------------------------------------------------ segments

    def _row(self, n: int) -> tuple[float, tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        """Of a batch size: the decode step without attention, and the attention's pieces over the mean context."""
        found = self._by_n.get(n)
        if found is None:
            curve = self.pool.table.decode_curve(n)
            found = (self.pool.table.linear_decode(n * self.width) + self.draft_s, *_pieces(curve.x, curve.y))
            self._by_n[n] = found
        return found

    def _cut(self, now_s: float) -> None:
        """An arrival may be admitted: the run of decode steps ends with the step under way."""
        first, growth = self.seg_first_s, self.seg_growth_s
        elapsed = now_s - self.start_s
        if growth == 0.0:
            steps = math.ceil(elapsed / first - 1e-9)
        else:
            # steps x first + growth x steps (steps - 1) / 2 >= elapsed
            half = growth / 2
            b = first - half
            steps = math.ceil((math.sqrt(b * b + 4 * half * elapsed) - b) / (2 * half) - 1e-9)
        steps = max(steps, 1)
        if steps < self.seg_steps:
            self.seg_steps = steps
            self.end_s = self.start_s + steps * first + growth * steps * (steps - 1) / 2
        self.cuttable = False

    def commit(self) -> None:
        """The current segment happened: tokens, completions, prompts that are done."""
        start, end, n = self.start_s, self.end_s, self.n
        gauge = self.gauge
        used = self.kv_base + self.kv_slope * self.steps + self.kv_prompts
        if self.resting:
            gauge.rest(start, end, waiting=len(self.waiting), used=used)
            self.start_s = end
            return
        gauge.segment(
            start,
            end,
            decoding=n,
            prompts=len(self.joining) + (self.partial is not None),
            waiting=len(self.waiting),
            used=used,
        )
        heap = self.heap
        if n and self.seg_decodes:
            k = self.seg_steps
            if gauge.counting:
                self._record(k)
            self.start_s = end
            if self.fresh:
                first = start + self.seg_first_s
                for r in self.fresh:
                    r.first_s = first + r.host_s
                self.fresh = []
            self.stalled = []
            self.steps += k
            self.context += n * k * self.per_step
            steps = self.steps
            while heap and heap[0][0] <= steps:
                self._complete(heappop(heap)[2], end)
        self.start_s = end
        if self.joining:
            for r in self.joining:
                self._join(r, end)
            self.joining = []

    def _complete(self, r: Request, now_s: float) -> None:
        self.n -= 1
        self.counts[r.cls] -= 1
        self.context -= self._context_of(r)
        self.kv_base -= r.base
        self.kv_slope -= r.slope
        if self.n == 0:
            self.context = self.kv_base = self.kv_slope = 0.0
        self._done(r, now_s)

    def _done(self, r: Request, now_s: float) -> None:
        if self.prefixes is not None:
            self.prefixes.put(r, self.kv_base + self.kv_slope * self.steps + self.kv_prompts)
        self.ledger.finish(r, now_s + r.host_s + (r.output - 1) * self.token_s)

    def _join(self, r: Request, now_s: float) -> None:
        """A prompt is done: its next token leaves now, and it decodes from the next step on."""
        if self.prefill_role:
            r.first_s = now_s + r.host_s
            if self.link is None:
                self.kv_prompts -= self.pool.cost(r.todo + 1)
                self._done(r, now_s)
            else:
                gone = (self.link.send(now_s, r.todo), r)
                self.sending.append(gone)
                self.out.append(gone)
            return
        self.kv_prompts -= self.pool.cost(r.todo + 1)
        r.tokens += 1
        if r.first_s < 0:
            r.first_s = now_s + r.host_s
        elif self.gauge.counting:
            # Preempted: this gap held the wait and the recomputation.
            self.gauge.gap(r.cls, now_s - r.last_s, 1.0)
        if r.tokens >= r.output:
            self._done(r, now_s)
            return
        if self.prefill_first:
            one = [0] * len(self.counts)
            one[r.cls] = 1
            self.stalled.append((now_s, one))
        self._decode(r, r.todo + 1, r.output - r.tokens)

    # ------------------------------------------------------------ scheduling

    def parts(self) -> list[Replica]:
        """Whose statistics count: itself."""
        return [self]

    def plan(self, now_s: float) -> None:
        """Schedule from a step boundary on."""
        self.start_s = now_s
        self._plan(now_s)

    def _plan(self, now_s: float) -> None:
        """What the next step holds, and how many like it can follow."""
        pool = self.pool
        self.resting = False
        if self.sending:
            self._free(now_s)
        if self.ranked:
            self._make_room()
        waiting, n = self.waiting, self.n
        if self.decode_role:
            # Handed over: the cache is there, its first token is the first step's.
            while waiting and waiting[0].tokens == 0 and n < pool.max_num_seqs and self._room_for(waiting[0]):
                r = waiting.popleft()
                self._decode(r, r.todo + 1, r.output)
                self.fresh.append(r)
                n = self.n
            if self.partial is None and (not waiting or waiting[0].tokens == 0):
                self._plan_decodes(now_s, n)
                return
        if waiting or self.partial is not None:
            budget = pool.max_num_batched_tokens - (0 if self.prefill_first or self.prefill_role else n * self.width)
            tokens = 0
            pairs = 0.0
            joining = self.joining
            current = self.partial
            slots = pool.max_num_seqs - n
            if self.prefill_role:
                slots = pool.max_num_seqs
            while budget > 0:
                if current is None:
                    if not waiting or len(joining) >= slots or not self._room_for(waiting[0]):
                        break
                    if self.decode_role and waiting[0].tokens == 0:
                        break
                    current = r = waiting.popleft()
                    self.kv_prompts += pool.cost(r.todo + 1)
                    if self.prefixes is not None:
                        self.prefixes.admit(r, self.kv_base + self.kv_slope * self.steps + self.kv_prompts)
                    r.prefilled = min(r.cached, r.todo - 1)
                r = current
                left = r.todo - r.prefilled
                take = left if left <= budget else budget
                pairs += take * r.prefilled + take * (take + 1) / 2
                tokens += take
                budget -= take
                r.prefilled += take
                if take < left:
                    break
                joining.append(r)
                current = None
            self.partial = current
            if tokens:
                self._plan_prompts(now_s, n, tokens, pairs)
                return
        self._plan_decodes(now_s, n)

    def _plan_prompts(self, now_s: float, n: int, tokens: int, pairs: float) -> None:
        """One step with prompt chunks in it, beside the decodes or (prefill-first) while they stall."""
        decodes = n if not self.prefill_first else 0
        if decodes and not self._grow(1):
            n = decodes = self.n
        at = tokens + decodes * self.width
        x = self._mixed_x
        i = min(max(bisect_right(x, at) - 1, 0), len(x) - 1)
        took = self._mixed_y[i] + (at - x[i]) * self._mixed_k[i]
        x = self._pre_x
        i = min(max(bisect_right(x, pairs) - 1, 0), len(x) - 1)
        took += self._pre_y[i] + (pairs - x[i]) * self._pre_k[i]
        if decodes:
            _, x, y, k = self._row(decodes)
            mean = self.context / decodes
            i = min(max(bisect_right(x, mean) - 1, 0), len(x) - 1)
            took += y[i] + (mean - x[i]) * k[i] + self.draft_s
        if self.prefill_first and n and not self.stalled:
            self.stalled = [(now_s, list(self.counts))]
        self.seg_prompts, self.seg_decodes = True, decodes > 0
        self.seg_steps, self.seg_first_s, self.seg_growth_s = 1, took, 0.0
        self.end_s = now_s + took
        self.cuttable = False

    def _plan_decodes(self, now_s: float, n: int) -> None:
        """A run of decode steps up to the next completion, bend of the table, or full cache."""
        if n == 0:
            self.end_s = INF
            self.cuttable = False
            if self.sending:
                self.end_s, self.resting = self.sending[0][0], True
            elif self.waiting and self.partial is None:
                # Nothing runs and the head does not fit beside stale counts: arrive() saw that it fits alone.
                self.kv_base = self.kv_slope = self.kv_prompts = 0.0
                self._plan(now_s)
            return
        k = self.heap[0][0] - self.steps
        if self.kv_base + self.kv_slope * (self.steps + k) + self.kv_prompts > self.pool.kv_capacity:
            k = min(k, self._grow(k))
            n = self.n
            k = min(k, self.heap[0][0] - self.steps)
        linear, x, y, slopes = self._row(n)
        mean = self.context / n
        i = bisect_right(x, mean) - 1
        i = max(i, 0)
        last = len(x) - 1
        if i < last:
            bend = math.ceil((x[i + 1] - mean) / self.per_step)
            if bend < k:
                k = bend if bend > 1 else 1
        slope = slopes[i]
        first = linear + y[i] + (mean - x[i]) * slope
        growth = slope * self.per_step
        self.seg_prompts, self.seg_decodes = False, True
        self.seg_steps, self.seg_first_s, self.seg_growth_s = k, first, growth
        self.end_s = now_s + k * first + growth * k * (k - 1) / 2
        self.cuttable = (self.ranked or not self.waiting) and n < self.pool.max_num_seqs

    def _record(self, k: int) -> None:
        """Gaps of one segment: k steps, each a gap for every sequence that already had a token."""
        first, gauge = self.seg_first_s, self.gauge
        if self.fresh or self.stalled:
            # The first step is not a gap for fresh sequences, and a longer one for stalled ones.
            counts = list(self.counts)
            for r in self.fresh:
                counts[r.cls] -= 1
            for since, group in self.stalled:
                for c, m in enumerate(group):
                    if m:
                        gauge.gap(c, self.start_s + first - since, m)
                        counts[c] -= m
            for c, m in enumerate(counts):
                if m > 0:
                    gauge.gap(c, first, m)
            first += self.seg_growth_s
            k -= 1
            if k == 0:
                return
        gauge.run(self.counts, k, first, self.seg_growth_s, self.per_step)


def _pieces(
    x: tuple[float, ...], y: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """A curve's knots (without the last, beyond which the last slope holds), values and slopes."""
    if len(x) == 1:
        return x, y, (0.0,)
    slopes = tuple((y[i + 1] - y[i]) / (x[i + 1] - x[i]) for i in range(len(x) - 1))
    return x[:-1], y[:-1], slopes
