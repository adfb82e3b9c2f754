"""Replicas behind a router, pools that hand over to each other, replicas that fail."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.perf.pool import Handover, PoolSpec
from planner.simulate.engine import INF, Replica
from planner.simulate.link import Link
from planner.simulate.lockstep import Lockstep
from planner.simulate.requests import Ledger, Request


@dataclass(frozen=True, slots=True)
class Failure:
    """One replica of a pool is lost at a time; it is back after `reload_s` (infinite: not in this run)."""

    pool: int
    at_s: float
    reload_s: float = INF


class Pool:
    """Replicas of one kind and how requests are spread over them."""

    def __init__(
        self,
        spec: PoolSpec,
        replicas: int,
        ledger: Ledger,
        *,
        routing: str,
        max_waiting: int | None,
        priorities: Sequence[int] = (),
    ) -> None:
        self.spec = spec
        self.ledger = ledger
        self.routing = routing
        self.max_waiting = max_waiting
        make = Replica if spec.lockstep_ranks == 1 else Lockstep
        self.replicas: list[Replica | Lockstep] = [
            make(spec, ledger, max_waiting=max_waiting, priorities=priorities) for _ in range(replicas)
        ]
        self.turn = 0
        self.lazy = routing == "round-robin" and spec.role != "prefill"
        """Round-robin replicas do not depend on each other: each is advanced when a request reaches it."""
        self._ends: list[tuple[float, int]] = []
        self._next = [INF] * replicas

    def advance(self, until_s: float) -> None:
        """All replicas up to a time; cost per segment, not per replica."""
        if len(self.replicas) == 1:
            self.replicas[0].advance(until_s)
            return
        ends = self._ends
        while ends and ends[0][0] <= until_s:
            at, i = heapq.heappop(ends)
            if at == self._next[i]:  # else an older word on this replica
                self.replicas[i].advance(until_s)
                self._note(i)

    def _note(self, i: int) -> None:
        """Keep one valid entry per replica: when its segment ends now."""
        end = self.replicas[i].end_s
        self._next[i] = end
        if end < INF:
            heapq.heappush(self._ends, (end, i))

    def arrive(self, r: Request, now_s: float) -> bool:
        """Route one request. False where no replica lives."""
        reps = self.replicas
        s = r.session if self.spec.role != "decode" else None
        if len(reps) == 1:
            i = 0
            if not reps[0].alive:
                return False
        elif s is not None and s.home is not None and reps[s.home].alive:
            i = s.home
        elif self.routing == "round-robin":
            for _ in reps:
                i = self.turn
                self.turn = (self.turn + 1) % len(reps)
                if reps[i].alive:
                    break
            else:
                return False
        else:
            if not self.lazy:
                self.advance(now_s)
            best, i = INF, -1
            for j, rep in enumerate(reps):
                if rep.alive and rep.load < best:
                    best, i = rep.load, j
            if i < 0:
                return False
        if s is not None and s.sticky:
            s.home = i
        rep = reps[i]
        rep.advance(now_s)
        rep.arrive(r, now_s)
        if not self.lazy and len(reps) > 1 and rep.end_s != self._next[i]:
            self._note(i)
        return True

    def fail_one(self, now_s: float) -> list[Request]:
        """The busiest replica dies; its requests are returned."""
        for rep in self.replicas:
            rep.advance(now_s)
        alive = [rep for rep in self.replicas if rep.alive]
        if not alive:
            return []
        return max(alive, key=lambda rep: rep.load).evict_all(now_s)

    def revive_one(self) -> None:
        dead = next((rep for rep in self.replicas if not rep.alive), None)
        if dead is not None:
            dead.alive = True

    @property
    def next_event_s(self) -> float:
        """Not after the next end of a segment, at no cost: what is noted may have been overtaken."""
        if len(self.replicas) == 1:
            return self.replicas[0].end_s
        return self._ends[0][0] if self._ends else INF

    @property
    def next_end_s(self) -> float:
        return min((rep.end_s for rep in self.replicas), default=INF)

    @property
    def unfinished(self) -> int:
        return sum(rep.load for rep in self.replicas)


class Cluster:
    """One pool, or a prefill pool that feeds a decode pool."""

    def __init__(self, pools: list[Pool], handover: Handover | None, ledger: Ledger) -> None:
        assert len(pools) == (2 if handover is not None else 1)
        if handover is not None:
            for rep in pools[0].replicas:
                rep.link = Link(handover)
        self.pools = pools
        self.handover = handover
        self.ledger = ledger
        self._events: list[tuple[float, int, int]] = []
        self._moving: list[tuple[float, int, Request]] = []
        self.stranded = 0

    def run(self, arrivals: Iterator[Request], failures: tuple[Failure, ...], *, horizon_s: float = INF) -> None:
        """Every arrival to its end, or to the horizon."""
        events = self._events = sorted(
            [(f.at_s, 0, f.pool) for f in failures]
            + [(f.at_s + f.reload_s, 1, f.pool) for f in failures if f.reload_s < INF]
        )
        entry = self.pools[0]
        for r in arrivals:
            now = r.arrival_s
            if now > horizon_s:
                break
            while events and events[0][0] <= now:
                self._event(events.pop(0))
            if self.handover is not None:
                self._move_until(now)
            if self.handover is None and entry.spec.role == "prefill":
                r.output, r.thinking = 1, 0
            self.ledger.arrived += 1
            self.ledger.tokens_asked += r.output
            if not entry.arrive(r, now):
                self.ledger.reject(r)
        while events and events[0][0] <= horizon_s:
            self._event(events.pop(0))
        if self.handover is not None:
            while True:
                ahead = min(entry.next_end_s, self._moving[0][0] if self._moving else INF)
                if ahead > horizon_s or ahead == INF:
                    break
                self._move_until(ahead)
        for pool in self.pools:
            for rep in pool.replicas:
                rep.advance(min(horizon_s, 1e18))

    def in_order(self) -> None:
        """Arrivals will depend on completions: no replica may run behind the others."""
        for pool in self.pools:
            pool.lazy = False

    @property
    def next_event_s(self) -> float:
        """Nothing is done before this time; infinite where nothing runs."""
        ahead = min(pool.next_event_s for pool in self.pools)
        return min(ahead, self._moving[0][0]) if self._moving else ahead

    def step(self, until_s: float) -> None:
        """Everything up to `until_s`, between arrivals."""
        while self._events and self._events[0][0] <= until_s:
            self._event(self._events.pop(0))
        if self.handover is not None:
            self._move_until(until_s)
        for pool in self.pools:
            pool.advance(until_s)

    def _event(self, event: tuple[float, int, int]) -> None:
        at, kind, index = event
        pool = self.pools[index]
        if self.handover is not None:
            self._move_until(at)
        if kind == 1:
            pool.revive_one()
            return
        lost = pool.fail_one(at)
        if self._moving and lost:
            # What had not left a prefill replica yet is lost with it.
            gone = set(lost)
            self._moving = [m for m in self._moving if m[2] not in gone]
            heapq.heapify(self._moving)
        for r in lost:
            # A lost cache means starting again from the prompt, where requests enter.
            if not self.pools[0].arrive(r, at):
                self.ledger.reject(r)

    def _move_until(self, now_s: float) -> None:
        """Prefill replicas up to `now_s`; their prompts' caches on their way; arrivals at the decode pool in order."""
        assert self.handover is not None
        prefill, decode = self.pools
        prefill.advance(now_s)
        for rep in prefill.replicas:
            if rep.out:
                for arrives, r in rep.out:
                    heapq.heappush(self._moving, (arrives, r.index, r))
                rep.out = []
        while self._moving and self._moving[0][0] <= now_s:
            at, _, r = heapq.heappop(self._moving)
            r.first_s = -1.0
            if not decode.arrive(r, at):
                self.ledger.reject(r)

    @property
    def unfinished(self) -> int:
        return sum(p.unfinished for p in self.pools) + len(self._moving)
