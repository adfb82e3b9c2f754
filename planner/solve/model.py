"""The CP-SAT model: one pattern per class group, coupled by what the fleet holds.

    x_p in {0,1}                       pattern p is used
    sum over p of group g of x_p  =  1 (or: the split of the service that g belongs to is chosen)
    inventory and packing              per pool, from the blocks that used patterns take (rules/fleet_inventory.py)

Objectives are solved one after the other, each held at its proven value before the next is tried; the order of
services, the hash seed and the number of cores never enter: one worker, fixed seed, deterministic limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ortools.sat.python import cp_model

from planner.solve.choices import Choices, Goal
from planner.solve.packing import Block
from planner.solve.patterns import Pattern
from planner.solve.relaxation import cheapest, relax, within
from planner.solve.rules.fleet_inventory import add_inventory
from planner.solve.rules.packing import add_packing
from planner.solve.space import Space

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
# Weighted stages stay far inside CP-SAT's 64-bit sums.
_LARGEST_WEIGHT = 1 << 44


@dataclass(frozen=True, slots=True)
class Outcome:
    """What CP-SAT said."""

    status: Status
    chosen: tuple[Pattern, ...] = ()
    value: int = 0
    """Of the first objective."""
    bound: int = 0
    tie_breaks: bool = False
    left_out: tuple[str, ...] = ()
    """Services not carried, where leaving out was allowed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to think, in CP-SAT's deterministic time (about seconds, the same on every machine)."""

    first: float = 60.0
    ties: float = 20.0


@dataclass(slots=True)
class _Built:
    model: cp_model.CpModel
    patterns: list[Pattern]
    x: list[cp_model.IntVar]
    splits: list[tuple[cp_model.IntVar, int]] = field(default_factory=list)
    """Each split's variable and the GPUs it stops."""
    carried: dict[str, cp_model.IntVar] = field(default_factory=dict)


def _build(
    choices: Sequence[Choices], spaces: dict[str, Space], by_total: frozenset[str], *, pack: bool, optional: bool
) -> _Built:
    built = _Built(cp_model.CpModel(), [], [])
    model = built.model
    surging: dict[str, bool] = {}
    for c in choices:
        surging[c.service] = c.surge
        of_group: dict[tuple[str, ...], list[cp_model.IntVar]] = {}
        for g in dict.fromkeys(g for s in c.possible for g in s):
            for p in c.groups[g]:
                x = model.new_bool_var("")
                built.patterns.append(p)
                built.x.append(x)
                of_group.setdefault(g, []).append(x)
        chosen = []
        for s in c.possible:
            y = model.new_bool_var("")
            chosen.append(y)
            built.splits.append((y, c.stopped[c.splits.index(s)] if c.stopped else 0))
        for g, xs in of_group.items():
            model.add(sum(xs) == sum(y for s, y in zip(c.possible, chosen, strict=True) if g in s))
        if optional:
            carried = model.new_bool_var("")
            model.add(sum(chosen) == carried)
            built.carried[c.service] = carried
        else:
            model.add_exactly_one(chosen)
    taken: dict[Block, list[tuple[cp_model.IntVar, int]]] = {}
    spare: dict[str, dict[Block, list[cp_model.IntVar]]] = {}
    for p, x in zip(built.patterns, built.x, strict=True):
        for block, count in p.use:
            taken.setdefault(block, []).append((x, count))
            if surging[p.service]:
                spare.setdefault(block.pool, {}).setdefault(block, []).append(x)
    for pool in sorted(spare):
        # One free block per pool, as large as the largest replica of any service that surges there: rollouts take
        # turns. A free block of one size does for every smaller one.
        sizes = sorted(spare[pool], key=lambda b: (b.gpus, b))
        free = [model.new_bool_var("") for _ in sizes]
        for i, block in enumerate(sizes):
            for x in spare[pool][block]:
                model.add(sum(free[i:]) >= x)
            taken[block].append((free[i], 1))
    for pool, space in spaces.items():
        here = {b: terms for b, terms in taken.items() if b.pool == pool}
        if here:
            add_inventory(model, here, space)
            if pack and pool not in by_total:
                add_packing(model, here, space)
    return built


def _solver(limit: float) -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = limit
    return solver


_STATUS: dict[int, Status] = {
    int(cp_model.OPTIMAL): "optimal",
    int(cp_model.FEASIBLE): "feasible",
    int(cp_model.INFEASIBLE): "infeasible",
    int(cp_model.UNKNOWN): "unknown",
}


def fits(
    choices: Sequence[Choices],
    spaces: dict[str, Space],
    by_total: frozenset[str],
    *,
    pack: bool = True,
    limit: float = 20.0,
) -> bool | None:
    """Whether any choice of patterns fits the fleet together; None where the limit came first."""
    if not all(c.possible for c in choices):
        return False
    if len(choices) == 1 and not choices[0].surge and any(len(s) == 1 for s in choices[0].possible):
        # One service and a pattern by totals: it fits the empty fleet by construction.
        counted = not pack or all(b.pool in by_total for p in choices[0].patterns for b, _ in p.use)
        if counted:
            return True
    built = _build(choices, spaces, by_total, pack=pack, optional=False)
    status = _STATUS[int(_solver(limit).solve(built.model))]
    return None if status == "unknown" else status in ("optimal", "feasible")


def most_services(
    choices: Sequence[Choices], spaces: dict[str, Space], by_total: frozenset[str], *, limit: float = 20.0
) -> Outcome:
    """The largest number of services the fleet carries whole, and which are left out."""
    built = _build(choices, spaces, by_total, pack=True, optional=True)
    built.model.maximize(sum(built.carried.values()))
    solver = _solver(limit)
    status = _STATUS[int(solver.solve(built.model))]
    if status in ("infeasible", "unknown"):
        return Outcome(status)
    left = tuple(s for s, v in built.carried.items() if not solver.boolean_value(v))
    chosen = tuple(p for p, x in zip(built.patterns, built.x, strict=True) if solver.boolean_value(x))
    return Outcome(status, chosen, left_out=left)


def select(
    choices: Sequence[Choices],
    spaces: dict[str, Space],
    by_total: frozenset[str],
    *,
    first: Goal,
    then: Sequence[Goal],
    pack: bool = True,
    limits: Limits = Limits(),
) -> Outcome:
    """Minimise `first`, then each of `then`, then pattern names service by service.

    Tie-breaks are tried only after the first objective is proven; where one of them is not, the rest is left and
    `tie_breaks` says so.
    """
    if not all(c.possible for c in choices):
        return Outcome("infeasible")
    if sum(len(c.patterns) for c in choices) > PRUNED_ABOVE:
        choices = _pruned(choices, spaces, by_total, first=first, pack=pack, limits=limits)
    built = _build(choices, spaces, by_total, pack=pack, optional=False)
    model, x, pats = built.model, built.x, built.patterns
    variables = [*x, *(y for y, _ in built.splits)]
    value = sum(first.of(p) * v for p, v in zip(pats, x, strict=True)) + sum(
        first.per_stopped * gpus * y for y, gpus in built.splits if gpus and first.per_stopped
    )
    model.minimize(value)
    solver = _solver(limits.first)
    status = _STATUS[int(solver.solve(model))]
    if status in ("infeasible", "unknown"):
        return Outcome(status)
    best = round(solver.objective_value)
    picked = _picked(built, solver)
    if status != "optimal":
        return Outcome("feasible", _patterns(built, picked), best, _ceil(solver.best_objective_bound), False)
    model.add(value == best)
    proven = True
    for weights in _stages(built, choices, then):
        if not any(weights):
            continue
        model.clear_hints()  # type: ignore[no-untyped-call]
        for i, v in enumerate(x):
            model.add_hint(v, i in picked)
        objective = sum(w * v for w, v in zip(weights, variables, strict=True) if w)
        model.minimize(objective)
        solver = _solver(limits.ties)
        status = _STATUS[int(solver.solve(model))]
        if status == "unknown":
            proven = False
            break
        assert status != "infeasible", "the plan of the stage before satisfies this one"
        picked = _picked(built, solver)
        if status != "optimal":
            proven = False
            break
        model.add(objective == round(solver.objective_value))
    return Outcome("optimal", _patterns(built, picked), best, best, proven)


# Below this many patterns CP-SAT alone is as quick.
PRUNED_ABOVE = 150
_FIRST_PLAN = 12
"""Patterns per service to find a first plan among."""


def _pruned(
    choices: Sequence[Choices],
    spaces: dict[str, Space],
    by_total: frozenset[str],
    *,
    first: Goal,
    pack: bool,
    limits: Limits,
) -> Sequence[Choices]:
    """Choices without patterns that no optimal plan holds; unchanged where the relaxation cannot tell."""
    relaxed = relax(choices, spaces, first)
    if relaxed is None:
        return choices
    few = cheapest(choices, relaxed, _FIRST_PLAN)
    built = _build(few, spaces, by_total, pack=pack, optional=False)
    built.model.minimize(sum(first.of(p) * v for p, v in zip(built.patterns, built.x, strict=True)))
    solver = _solver(limits.ties)
    if _STATUS[int(solver.solve(built.model))] not in ("optimal", "feasible"):
        return choices
    return within(choices, relaxed, solver.objective_value - relaxed.bound)


def _stages(built: _Built, choices: Sequence[Choices], then: Sequence[Goal]) -> list[list[int]]:
    """Weights of the tie-breaks over patterns and splits, several merged into one solve where products stay small.

    Merging is exact: a stage's unit outweighs the largest sum that all later ones in the same solve can reach.
    """
    tail = len(built.splits)
    rows = [[*(g.of(p) for p in built.patterns), *(g.per_stopped * n for _, n in built.splits)] for g in then]
    order = {id(p): i for i, p in enumerate(built.patterns)}
    for c in choices:
        for g in dict.fromkeys(g for s in c.possible for g in s):
            row = [0] * (len(built.patterns) + tail)
            for rank, p in enumerate(sorted(c.groups[g], key=lambda p: p.name), start=1):
                row[order[id(p)]] = rank
            rows.append(row)
    merged: list[list[int]] = []
    most_of: list[int] = []
    for row in rows:
        most = _most(row, built.patterns)
        if merged and (most_of[-1] + 1) * (most + 1) < _LARGEST_WEIGHT:
            merged[-1] = [a * (most + 1) + b for a, b in zip(merged[-1], row, strict=True)]
            most_of[-1] = most_of[-1] * (most + 1) + most
        else:
            merged.append(list(row))
            most_of.append(most)
    return merged


def _most(row: Sequence[int], patterns: Sequence[Pattern]) -> int:
    """No smaller than the largest sum that a choice of one pattern per group can reach."""
    best: dict[tuple[str, tuple[str, ...]], int] = {}
    for w, p in zip(row, patterns, strict=False):
        key = (p.service, p.class_names)
        best[key] = max(best.get(key, 0), w)
    return sum(best.values()) + sum(row[len(patterns) :])


def _picked(built: _Built, solver: cp_model.CpSolver) -> set[int]:
    return {i for i, v in enumerate(built.x) if solver.boolean_value(v)}


def _patterns(built: _Built, picked: set[int]) -> tuple[Pattern, ...]:
    return tuple(built.patterns[i] for i in sorted(picked))


def _ceil(value: float) -> int:
    """CP-SAT's bound on an integer objective, rounded the safe way."""
    return -int(-(value - 1e-6) // 1)
