"""The linear relaxation, for pruning: which patterns can still be part of an optimum.

Without packing and with fractions of patterns allowed, the least value LB is a bound, and each pattern has a reduced
cost: what using it adds to LB at least. Given any plan of value UB,

    LB + reduced cost(p) > UB    =>    p is in no optimal plan, and in no plan of the same value

so it is dropped before CP-SAT is asked. Of hundreds of patterns per service a handful stays: resources are few (one
per pool), and a relaxation has at most as many fractional services as it has binding resources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]

from planner.solve.choices import Choices, Goal
from planner.solve.patterns import Pattern
from planner.solve.space import Space


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A lower bound and every pattern's reduced cost (in the objective's integers, rounded the safe way)."""

    bound: float
    reduced: dict[int, float]
    """By id of the pattern."""


def relax(choices: Sequence[Choices], spaces: dict[str, Space], goal: Goal) -> Relaxed | None:
    """The relaxation of services whose classes are not split; None where it does not apply or has no solution."""
    if any(len(c.possible) != 1 or len(c.possible[0]) != 1 for c in choices):
        return None
    solver = pywraplp.Solver.CreateSolver("GLOP")
    objective = solver.Objective()
    rows = {pool: solver.Constraint(-solver.infinity(), float(s.gpus), pool) for pool, s in spaces.items()}
    variables: list[tuple[Pattern, pywraplp.Variable]] = []
    for c in choices:
        one = solver.Constraint(1.0, 1.0, c.service)
        for p in c.patterns:
            x = solver.NumVar(0.0, solver.infinity(), "")
            one.SetCoefficient(x, 1.0)
            objective.SetCoefficient(x, float(goal.of(p)))
            taken: dict[str, int] = {}
            for block, count in p.use:
                taken[block.pool] = taken.get(block.pool, 0) + block.gpus * count
            for pool, gpus in taken.items():
                rows[pool].SetCoefficient(x, float(gpus))
            variables.append((p, x))
    objective.SetMinimization()
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return None
    return Relaxed(objective.Value(), {id(p): max(0.0, x.reduced_cost()) for p, x in variables})


def within(choices: Sequence[Choices], relaxed: Relaxed, slack: float) -> list[Choices]:
    """Only the patterns whose reduced cost is at most `slack` (and a hair, for the relaxation's floats)."""
    most = slack + 1e-6 * abs(relaxed.bound) + 1e-6
    return [
        replace(
            c, groups={g: tuple(p for p in ps if relaxed.reduced.get(id(p), 0.0) <= most) for g, ps in c.groups.items()}
        )
        for c in choices
    ]


def cheapest(choices: Sequence[Choices], relaxed: Relaxed, count: int) -> list[Choices]:
    """The `count` patterns of least reduced cost of every group: enough for a first plan."""

    def cost(p: Pattern) -> float:
        return relaxed.reduced.get(id(p), 0.0)

    return [replace(c, groups={g: tuple(sorted(ps, key=cost)[:count]) for g, ps in c.groups.items()}) for c in choices]
