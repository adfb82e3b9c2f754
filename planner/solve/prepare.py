"""From a question to the choices CP-SAT selects among: evaluation, rules, cuts, patterns."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

from planner.candidates.ask import Ask, class_groups
from planner.candidates.candidate import Candidate
from planner.errors import Exit, UserError
from planner.solve.choices import Choices
from planner.solve.packing import block_of, counts_suffice
from planner.solve.patterns import Demand, Part, Pattern, exact_pattern, patterns
from planner.solve.question import BaselinePool, Cut, Lift, Question
from planner.solve.rules.distinct_shapes import most_shapes
from planner.solve.rules.kv_transfer import wanted_pools
from planner.solve.scale import PER_RPS, demand_urps
from planner.solve.space import Space, spaces

Evaluate = Callable[[Ask], tuple[Candidate, ...]]


@dataclass(slots=True)
class Evaluator:
    """Evaluates asks and remembers: explanations ask the same again and again, differing in one rule."""

    evaluate: Evaluate
    refusals: dict[str, UserError] = field(default_factory=dict)
    """By service: why nothing on the fleet runs it, as the evaluation said."""
    _known: dict[str, tuple[Candidate, ...]] = field(default_factory=dict)

    def __call__(self, ask: Ask) -> tuple[Candidate, ...]:
        found = self._known.get(_key(ask))
        if found is None:
            found = self._known[_key(ask)] = self._told(ask, _evaluate(self.evaluate, ask))
        return found

    def warm(self, asks: Sequence[Ask], *, workers: int, progress: Callable[[str], None]) -> None:
        """Evaluate many services, in processes of their own where there are several; the answers are the same."""
        todo = [a for a in asks if _key(a) not in self._known]
        if workers <= 1 or len(todo) <= 1:
            for i, ask in enumerate(todo):
                self(ask)
                progress(f"evaluated {i + 1} of {len(todo)} services")
            return
        # Fresh processes: forking one that has run a solver's threads is not safe.
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            results = pool.map(_evaluate, [self.evaluate] * len(todo), todo)
            for i, (ask, result) in enumerate(zip(todo, results, strict=True)):
                self._known[_key(ask)] = self._told(ask, result)
                progress(f"evaluated {i + 1} of {len(todo)} services")

    def _told(self, ask: Ask, result: tuple[Candidate, ...] | _Refused) -> tuple[Candidate, ...]:
        if isinstance(result, _Refused):
            error = UserError(result.code, result.message, None, result.notes, result.helps, Exit.NO_PLAN)
            self.refusals.setdefault(ask.name, error)
            return ()
        return result


@dataclass(frozen=True, slots=True)
class _Refused:
    """A refusal as a value that goes from one process to another (an exception does not)."""

    code: str
    message: str
    notes: tuple[str, ...]
    helps: tuple[str, ...]


def _key(ask: Ask) -> str:
    # The documents print all of their fields; classes and model of a service do not change within one run.
    return f"{ask.service!r}|{ask.fleet!r}|{ask.announced}|{ask.lean}|{ask.coarse}"


def _evaluate(evaluate: Evaluate, ask: Ask) -> tuple[Candidate, ...] | _Refused:
    """Candidates, or the refusal that nothing runs: that is an answer, which a relaxed question may change."""
    try:
        return evaluate(ask)
    except UserError as e:
        if e.code != "no-configuration":
            raise
        return _Refused(e.code, e.message, tuple(e.notes), tuple(e.helps))


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything a solve needs."""

    question: Question
    spaces: dict[str, Space]
    by_total: frozenset[str]
    usable: dict[str, tuple[Candidate, ...]]
    """Candidates by service that pass the rules on their own, cuts applied."""

    @property
    def pack(self) -> bool:
        return "packing" not in self.question.off


def prepare(question: Question, evaluator: Evaluator) -> Prepared:
    """Evaluate every ask once; which pools can count GPUs is decided over all services together."""
    found_spaces = spaces(question.fleet, pack="packing" not in question.off)
    usable = {}
    for ask in question.asks:
        mine = [
            c
            for c in with_cuts(with_lifts(ask, evaluator(ask), question.lifts), question.cuts)
            if _passes(c, question.off)
        ]
        usable[ask.name] = tuple(c for c in mine if c.load.planned_rps > 0 and c.fleet_pool in found_spaces)
    everyone = [c for cs in usable.values() for c in cs]
    by_total = frozenset(
        name
        for name, space in found_spaces.items()
        if not space.pack or counts_suffice({block_of(c, space) for c in everyone if c.fleet_pool == name}, space)
    )
    return Prepared(question, found_spaces, by_total, usable)


def _passes(candidate: Candidate, off: frozenset[str]) -> bool:
    return all(code in off for code in candidate.rejected_by)


def with_lifts(ask: Ask, candidates: Sequence[Candidate], lifts: Sequence[Lift]) -> list[Candidate]:
    """Candidates with the rates that the simulation found them to carry, and those it brought back."""
    found = list(candidates)
    for lift in (x for x in lifts if x.service == ask.name):
        place = next((i for i, c in enumerate(found) if lift.raises(c)), None)
        if place is None:
            found.append(_lifted(lift.candidate, lift, planned_rps=0.0, degraded_rps=0.0))
        elif found[place].load.planned_rps < lift.rate_rps:
            load = found[place].load
            found[place] = _lifted(found[place], lift, planned_rps=load.planned_rps, degraded_rps=load.degraded_rps)
    return found


def _lifted(candidate: Candidate, lift: Lift, *, planned_rps: float, degraded_rps: float) -> Candidate:
    # Nothing was simulated above the lifted rate: after a failure it carries that much and no more.
    load = replace(
        candidate.load,
        lambda_slo_rps=max(lift.rate_rps, candidate.load.lambda_slo_rps if planned_rps else 0.0),
        planned_rps=max(lift.rate_rps, planned_rps),
        degraded_rps=max(lift.rate_rps, degraded_rps),
        binding=lift.binding,
    )
    return replace(candidate, load=load)


def with_cuts(candidates: Sequence[Candidate], cuts: Sequence[Cut]) -> list[Candidate]:
    """Candidates with the rates that the simulation allowed them."""
    most: dict[tuple[str, str, tuple[str, ...]], float] = {}
    for cut in cuts:
        key = (cut.service, cut.key, cut.class_names)
        most[key] = min(cut.most_rps, most.get(key, cut.most_rps))
    found = []
    for c in candidates:
        limit = min(most.get((c.service, c.key, group), math.inf) for group in ((), c.class_names))
        if limit < max(c.load.planned_rps, c.load.degraded_rps):
            load = replace(
                c.load,
                planned_rps=min(c.load.planned_rps, limit),
                degraded_rps=min(c.load.degraded_rps, limit),
                binding="simulation",
            )
            found.append(replace(c, load=load))
        else:
            found.append(c)
    return found


def choices(prepared: Prepared, *, scale_urps: int | None = None, prune: bool = True) -> list[Choices]:
    """Patterns of every service. `scale_urps`: where no rate is given, millionths of the factor on the classes' mix."""
    question = prepared.question
    found = []
    for ask in question.asks:
        everyone = tuple(n for n, _ in ask.rates)
        splits = class_groups(everyone)
        today = [b for b in question.baseline if b.service == ask.name]
        usable = prepared.usable[ask.name]
        groups: dict[tuple[str, ...], tuple[Pattern, ...]] = {}
        for group in dict.fromkeys(g for s in splits for g in s):
            mine = [c for c in usable if c.class_names == group]
            if mine:
                demand = demand_of(ask, group, question, scale_urps)
                running = [b for b in today if b.serves(group, everyone)]
                if ask.name in question.keep:
                    groups[group] = _kept(mine, demand, prepared, today, running)
                    continue
                groups[group] = tuple(
                    patterns(
                        mine,
                        demand,
                        prepared.spaces,
                        by_total=prepared.by_total,
                        baseline=running,
                        surge=ask.surge,
                        prune=prune,
                    )
                )
        stopped = tuple(
            sum(b.replicas * b.gpus for b in today if not any(b.serves(g, everyone) for g in s)) for s in splits
        )
        found.append(Choices(ask.name, splits, groups, ask.surge, stopped))
    return found


def demand_of(ask: Ask, group: tuple[str, ...], question: Question, scale_urps: int | None) -> Demand:
    """What one class group needs, in the solver's integers."""
    rate = ask.rate_of(group)
    # The factor is a whole number of millionths; weights may be fractions, so the product is rounded up again.
    rate_urps = demand_urps(rate) if scale_urps is None else demand_urps(rate * scale_urps / PER_RPS)
    service = ask.service
    return Demand(
        service=ask.name,
        class_names=group,
        rate_urps=rate_urps,
        survive=service.survive,
        replicas=service.fixed.replicas,
        rdma_needed="kv-transfer" not in question.off,
        most_shapes=most_shapes(question),
        endless="fleet-inventory" in question.off,
        pools=wanted_pools(service.pools, service.fixed.pools),
    )


def _kept(
    usable: Sequence[Candidate],
    demand: Demand,
    prepared: Prepared,
    today: Sequence[BaselinePool],
    running: Sequence[BaselinePool],
) -> tuple[Pattern, ...]:
    """Only what runs today for this group, if it carries the traffic."""
    if not today:
        raise UserError(
            "keep-without-baseline",
            f"service {demand.service} is to be kept, but no baseline says what it runs today",
            None,
            (),
            ("name its plan or deployment with baseline:",),
        )
    replicas = {b.key: b.replicas for b in running}
    parts = [Part(c, replicas[c.key]) for c in usable if c.key in replicas]
    if len(parts) < len(replicas):
        return ()
    kept = exact_pattern(parts, demand, prepared.spaces, baseline=running)
    return () if kept is None else (kept,)
