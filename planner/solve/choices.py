"""What CP-SAT selects among, and what it makes small: values that model and relaxation share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.solve.patterns import Pattern

Split = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Choices:
    """One service: how its classes may be split, and the patterns of every group."""

    service: str
    splits: tuple[Split, ...]
    groups: dict[tuple[str, ...], tuple[Pattern, ...]]
    surge: bool = False
    stopped: tuple[int, ...] = ()
    """By split: GPUs of what runs today for class groups that the split does not have."""

    @property
    def possible(self) -> tuple[Split, ...]:
        """Splits whose every group has a pattern."""
        return tuple(s for s in self.splits if all(self.groups.get(g) for g in s))

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        used = dict.fromkeys(g for s in self.possible for g in s)
        return tuple(p for g in used for p in self.groups[g])


Weigh = Callable[[Pattern], int]


@dataclass(frozen=True, slots=True)
class Goal:
    """One objective: an integer per pattern, and per GPU that a split of classes stops."""

    of: Weigh
    per_stopped: int = 0
