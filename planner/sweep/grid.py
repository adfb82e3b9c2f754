"""The grid of a sweep: which words are varied, and the points that makes.

A point is plain text (words as they would stand on the command line), so that it can be hashed, resumed after an
interruption and sent to another machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from planner.documents import digest
from planner.errors import UserError, Where, did_you_mean

VARIED = (
    "fleet", "model", "engine", "rate", "input", "output", "prefix_cache", "arrivals_cv", "precision", "kv_dtype",
    "accuracy_floor", "tp", "gpu", "pools", "survive", "max_context", "objective", "price",
)  # fmt: skip
"""`slo.METRIC` as well; `price` multiplies every price of the fleet."""
MOST_POINTS = 100_000


@dataclass(frozen=True, slots=True)
class Point:
    """One scenario: varied key -> text, in the order of the grid."""

    number: int
    values: tuple[tuple[str, str], ...]

    def key(self, base: object) -> str:
        """What makes this point's result reusable: the base question and the point's own words."""
        return digest([base, [list(v) for v in self.values]])


def points(vary: Sequence[str]) -> tuple[Point, ...]:
    """`["rate=5/s,10/s", "slo.itl=30ms,50ms"]` -> the four points, the last key varying fastest.

    >>> [p.values for p in points(["tp=1,2"])]
    [(('tp', '1'),), (('tp', '2'),)]
    """
    axes: list[list[tuple[str, str]]] = []
    seen: set[str] = set()
    for text in vary:
        where = Where("command line", 1, 8, f"--vary {text}"[:200], max(1, len(text)))
        key, equals, values = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not values.strip():
            raise UserError("bad-vary", f"{text!r} is not key=value,value", where, (), ("write --vary rate=5/s,10/s",))
        if key not in VARIED and not key.startswith("slo."):
            raise UserError("bad-vary", f"{key!r} cannot be varied", where, (), did_you_mean(key, (*VARIED, "slo.itl")))
        if key in seen:
            raise UserError("bad-vary", f"{key} is varied twice", where, (), ("give all its values in one --vary",))
        seen.add(key)
        axes.append([(key, v.strip()) for v in values.split(",") if v.strip()])
    total = 1
    for axis in axes:
        total *= len(axis)
    if total > MOST_POINTS:
        raise UserError(
            "sweep-too-large",
            f"the grid has {total:,} points; at most {MOST_POINTS:,} are run",
            None,
            (),
            ("vary less",),
        )
    return tuple(Point(i, values) for i, values in enumerate(itertools.product(*axes)))
