"""A cache by identity, for values that are expensive to hash.

A `ModelArch` holds hundreds of parts: hashing it costs more than most questions about it. The entry keeps the object
alive, so an id cannot come to mean another one; the cache is emptied when full, which changes no result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class ByIdentity(Generic[T]):
    """Remembers values for (object by identity, hashable rest)."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._found: dict[tuple[int, Hashable], tuple[object, T]] = {}

    def get(self, subject: object, rest: Hashable, make: Callable[[], T]) -> T:
        key = (id(subject), rest)
        found = self._found.get(key)
        if found is not None and found[0] is subject:
            return found[1]
        value = make()
        if len(self._found) >= self._most:
            self._found.clear()
        self._found[key] = (subject, value)
        return value
