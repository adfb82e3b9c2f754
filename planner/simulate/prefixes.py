"""One replica's prefix cache: contexts of finished requests in the blocks that nothing running needs.

Least recently used first out, and of one context its end first, as vLLM frees a request's blocks last to first (V1
block pool): what is left of it is a shorter prefix that still hits. Whatever runs takes its blocks from here. A
session's turn finds what this replica still has of it; other requests only leave contexts that nobody comes back for
(prefixes that groups share are drawn, not kept here).
"""

from __future__ import annotations

from collections import OrderedDict

from planner.perf.pool import PoolSpec
from planner.perf.traffic import BLOCK_TOKENS
from planner.simulate.requests import Ledger, Request


class Idle:
    """One context at rest."""

    __slots__ = ("session", "tokens", "units", "useful", "whole")

    def __init__(self, session: int, tokens: float, useful: float, units: float) -> None:
        self.session = session
        """Whose it is; -1: nobody comes back for it."""
        self.tokens = tokens
        self.useful = useful
        """Leading tokens that the session's next prompt begins with: not thinking, nor what follows it."""
        self.whole = units
        self.units = units
        """Cache that is left of `whole`."""


class Prefixes:
    """Idle contexts of one replica (rank), oldest first."""

    def __init__(self, pool: PoolSpec, ledger: Ledger) -> None:
        self.pool = pool
        self.ledger = ledger
        self.idle: OrderedDict[int, Idle] = OrderedDict()
        self.units = 0.0
        self._of: dict[int, int] = {}
        """Session -> its place in `idle`."""
        self._next = 0

    def admit(self, r: Request, used: float) -> None:
        """A prompt begins; what is found of its session joins what runs. `used`: by all that runs, this one too."""
        s = r.session
        if s is not None:
            found = self._take(s.number, r.input) if s.warm else 0
            r.cached = max(s.stated, found)
            if not s.looked:
                s.looked = True
                self.ledger.look(r, s.history, min(found, s.history))
        self._evict(used)

    def put(self, r: Request, used: float) -> None:
        """A request is done here and its blocks are free. `used`: by all that still runs."""
        s = r.session
        tokens = r.input if self.pool.role == "prefill" else r.input + r.output - 1
        if s is None or not s.warm:
            self._leave(tokens - r.cached)
        else:
            self._keep(s.number, tokens, r.input if r.thinking else tokens)
        self._evict(used)

    def recall(self, r: Request) -> None:
        """A turn of the time before the run, while nothing runs yet."""
        assert r.session is not None
        self._take(r.session.number, r.input)
        self.put(r, 0.0)

    def rest(self, tokens: float) -> None:
        """Another request of the time before the run."""
        self._leave(tokens)
        self._evict(0.0)

    def _keep(self, session: int, tokens: float, useful: float) -> None:
        """A session's context comes to rest, on top of all others."""
        before = self._of.get(session)
        if before is not None:
            self.idle[before].session = -1
        self._of[session] = self._push(Idle(session, tokens, useful, self.pool.cost(tokens)))

    def _leave(self, tokens: float) -> None:
        """A context that nobody comes back for."""
        if tokens > 0:
            self._push(Idle(-1, tokens, 0, self.pool.cost(tokens)))

    def clear(self) -> None:
        """The replica is lost."""
        self.idle.clear()
        self._of.clear()
        self.units = 0.0

    def _push(self, entry: Idle) -> int:
        at = self._next
        self._next += 1
        self.idle[at] = entry
        self.units += entry.units
        return at

    def _take(self, session: int, prompt_tokens: int) -> int:
        at = self._of.pop(session, None)
        if at is None:
            return 0
        entry = self.idle[at]
        left = entry.tokens * entry.units / entry.whole
        found = int(min(left, entry.useful, prompt_tokens - 1)) // BLOCK_TOKENS * BLOCK_TOKENS
        # What ends differently (thinking) stays where it is, for nobody.
        entry.session = -1
        taken = entry.units * found / left if left > 0 else 0.0
        entry.units -= taken
        self.units -= taken
        if left - found < BLOCK_TOKENS:
            self._drop(at)
        return found

    def _drop(self, at: int) -> None:
        entry = self.idle.pop(at)
        self.units -= entry.units
        if entry.session >= 0:
            del self._of[entry.session]

    def _evict(self, used: float) -> None:
        room = self.pool.kv_capacity - used
        while self.units > room and self.idle:
            at, entry = next(iter(self.idle.items()))
            over = self.units - room
            if entry.units > over:
                entry.units -= over
                self.units = room
                return
            self._drop(at)
