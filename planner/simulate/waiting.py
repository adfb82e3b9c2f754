"""The waiting queue of a pool whose classes differ in priority: by (priority, arrival), lower values first.

Where all are equal a deque does the same and is faster; both offer the handful of operations that the engine uses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from planner.simulate.requests import Request


class Ranked:
    """A deque's head and ends over a heap. `appendleft` puts a request before all others of its own priority."""

    __slots__ = ("_back", "_front", "_heap", "_priorities")

    def __init__(self, priorities: Sequence[int]) -> None:
        self._priorities = priorities
        """Of each class."""
        self._heap: list[tuple[int, int, Request]] = []
        self._front = self._back = 0

    def append(self, r: Request) -> None:
        self._back += 1
        heappush(self._heap, (self._priorities[r.cls], self._back, r))

    def appendleft(self, r: Request) -> None:
        self._front -= 1
        heappush(self._heap, (self._priorities[r.cls], self._front, r))

    def popleft(self) -> Request:
        return heappop(self._heap)[2]

    def clear(self) -> None:
        self._heap.clear()

    def __getitem__(self, at: int) -> Request:
        assert at == 0, "only the head is in order"
        return self._heap[0][2]

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (r for _, _, r in sorted(self._heap, key=lambda entry: entry[:2]))


def waiting_queue(priorities: Sequence[int]) -> deque[Request] | Ranked:
    """A plain queue, unless classes differ in priority."""
    return Ranked(priorities) if differ(priorities) else deque()


def differ(priorities: Sequence[int]) -> bool:
    """Whether a scheduler has anything to choose between."""
    return len(set(priorities)) > 1
