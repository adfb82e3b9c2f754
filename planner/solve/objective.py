"""What is made small, and in which order; and the most traffic a fleet carries, by bisection over feasibility."""

from __future__ import annotations

from planner.solve.choices import Goal
from planner.solve.model import Limits, fits
from planner.solve.patterns import MOST_SPARE, Pattern
from planner.solve.prepare import Prepared, choices
from planner.solve.question import Question
from planner.solve.scale import PER_DOLLAR, capacity_urps


def goals(question: Question) -> tuple[Goal, tuple[Goal, ...]]:
    """The first objective and the tie-breaks as integers per pattern."""
    restart = round(question.change_cost * PER_DOLLAR)

    def cost(p: Pattern) -> int:
        return p.cost_udollars + restart * p.restarted_gpus

    def restarts(p: Pattern) -> int:
        return p.restarted_gpus

    def gpus(p: Pattern) -> int:
        return p.gpus

    def shapes(p: Pattern) -> int:
        return p.shapes

    def tp(p: Pattern) -> int:
        return p.tp

    def used_up(p: Pattern) -> int:
        return MOST_SPARE - p.spare_ppm

    first = Goal(gpus) if question.objective == "gpus" else Goal(cost, restart)
    return first, (Goal(restarts, 1), Goal(gpus), Goal(shapes), Goal(tp), Goal(used_up))


def most_traffic(prepared: Prepared, limits: Limits, *, least: int = 1) -> tuple[int, int]:
    """Largest factor on all rates (in millionths) that the fleet carries, and the proven bound on it.

    Bisection over whole millionths: carrying more never gets easier. (0, 0) where not even `least` can be carried;
    (0, bound) where the limit came before an answer.
    """

    def possible(scale: int) -> bool | None:
        made = choices(prepared, scale_urps=scale)
        return fits(made, prepared.spaces, prepared.by_total, pack=prepared.pack, limit=limits.ties)

    first = possible(least)
    if not first:
        return (0, 0) if first is False else (0, least)
    low, high = least, max(least, _ceiling(prepared)) + 1
    bound = high
    while high - low > 1:
        middle = (low + high) // 2
        answer = possible(middle)
        if answer:
            low = middle
        else:
            high = middle
            if answer is False:
                bound = middle
    return low, max(low, bound - 1)


def _ceiling(prepared: Prepared) -> int:
    """A factor that no fleet exceeds: each class group with every pool to itself."""
    best = []
    for ask in prepared.question.asks:
        by_group: dict[tuple[str, ...], dict[str, int]] = {}
        for c in prepared.usable[ask.name]:
            pools = by_group.setdefault(c.class_names, {})
            carried = prepared.spaces[c.fleet_pool].most_replicas(c) * capacity_urps(c.load.planned_rps)
            pools[c.fleet_pool] = max(pools.get(c.fleet_pool, 0), carried)
        best.append(max((round(sum(p.values()) / ask.rate_of(g)) + 1 for g, p in by_group.items()), default=0))
    return min(best)
