"""How few replicas survive: the smallest count at which every promise holds in the simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from planner.intent.slo import Slo
from planner.simulate.run import SimResult, SimSpec, simulate, verdicts


def survives(spec: SimSpec, slos: Mapping[str, Sequence[Slo]] | None = None) -> tuple[bool, SimResult]:
    """Whether every promise holds, nothing is rejected and nothing is left over."""
    result = simulate(spec)
    promised = slos if slos is not None else {c.name: c.slos for c in spec.classes}
    kept = all(v.holds for v in verdicts(result, promised))
    return kept and result.books.rejected == 0 and result.books.unfinished == 0, result


def smallest_count(holds: Callable[[int], bool], *, start: int = 1, most: int = 4096) -> int | None:
    """Smallest count that holds, where more never hurts: doubling from `start`, then halving; None above `most`.

    >>> smallest_count(lambda n: n >= 13, start=3)
    13
    """
    low, high = 0, max(start, 1)
    while not holds(high):
        low = high
        if high >= most:
            return None
        high = min(high * 2, most)
    while high - low > 1:
        mid = (low + high) // 2
        low, high = (low, mid) if holds(mid) else (mid, high)
    return high


def smallest_pool(spec: SimSpec, *, pool: int = 0, start: int = 1, most: int = 4096) -> int | None:
    """Fewest replicas of one pool with which a whole run (a trace, or all classes) keeps its promises."""

    def holds(count: int) -> bool:
        pools = tuple(
            replace(p, replicas=count, spec=replace(p.spec, replicas=count), routing="least-loaded") if i == pool else p
            for i, p in enumerate(spec.pools)
        )
        return survives(replace(spec, pools=pools))[0]

    return smallest_count(holds, start=start, most=most)
