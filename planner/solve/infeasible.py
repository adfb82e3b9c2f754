"""No plan: which rules truly clash, the best that can be reached, and the smallest way out of each rule.

The clash is found by deletion: rules are switched off one at a time, and one without which there still is no plan
stays off; what remains is minimal (every rule in it is needed for the clash). Each way out relaxes one rule of the
original question by the fewest steps that give a plan, found by solving, never estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.candidates.breakdown import step_note
from planner.candidates.candidate import Candidate
from planner.catalog.gpus import Gpu, find_gpu, gpus
from planner.errors import Exit, UserError
from planner.solve.choices import Choices
from planner.solve.model import fits, most_services
from planner.solve.prepare import Evaluator, Prepared, choices, prepare
from planner.solve.question import Clause, Question, Relaxation
from planner.solve.rules import RULES, rule_of
from planner.solve.rules.slo import limit_of, split_detail
from planner.solve.scale import PER_RPS
from planner.units import show_bytes, show_rate, show_time

# Services that may be named one by one when only their sum does not fit.
MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Clash:
    """Why there is no plan."""

    clauses: tuple[Clause, ...]
    """Minimal; empty where no rule can be switched off to help: nothing runs this at all."""
    relaxations: tuple[tuple[Clause, Relaxation | None], ...]
    service: str | None
    """The one service that already fails alone on the whole fleet."""


def feasible(question: Question, evaluator: Evaluator) -> bool | None:
    """Whether the question has any plan; None where the limit came first."""
    prepared = prepare(question, evaluator)
    made = choices(prepared, scale_urps=None if question.has_rate else 1)
    return fits(made, prepared.spaces, prepared.by_total, pack=prepared.pack)


def find_clash(question: Question, evaluator: Evaluator) -> Clash:
    """The minimal clash of a question that has no plan."""
    alone = next((a.name for a in question.asks if feasible(question.only(a.name), evaluator) is False), None)
    asked = question.only(alone) if alone else question
    clauses = [c for rule in RULES for c in rule.clauses(asked)]
    if alone is None and len(asked.asks) > MOST_NAMED:
        clauses = [c for c in clauses if c.service is None]
    reduced = asked
    kept: list[Clause] = []
    for clause in clauses:
        without = rule_of(clause.code).off(reduced, clause)
        if feasible(without, evaluator) is False:
            reduced = without
        else:
            kept.append(clause)
    if not feasible(_all_off(asked, clauses), evaluator):
        return Clash((), (), alone)
    relaxations = tuple((c, rule_of(c.code).relax(asked, c, lambda q: feasible(q, evaluator))) for c in kept)
    return Clash(tuple(kept), relaxations, alone)


def _all_off(question: Question, clauses: Sequence[Clause]) -> Question:
    for clause in clauses:
        question = rule_of(clause.code).off(question, clause)
    return question


def infeasible(question: Question, evaluator: Evaluator, *, unknown: bool = False) -> UserError:
    """The error for a question without a plan."""
    if unknown:
        return time_limit(question)
    clash = find_clash(question, evaluator)
    if not clash.clauses:
        return _nothing_runs(question, clash, evaluator)
    asked = question.only(clash.service) if clash.service else question
    first = clash.clauses[0]
    notes: list[str] = []
    if len(clash.clauses) > 1:
        notes.append("these clash; without any one of them there is a plan: " + ", ".join(map(str, clash.clauses)))
    for clause in clash.clauses:
        notes += _notes(asked, clause, evaluator)
    if clash.service is None:
        notes += _what_fits(question, evaluator)
    helps = list(dict.fromkeys(r.text for _, r in clash.relaxations if r is not None))
    if len(clash.clauses) == 1 and first.code in ("slo-itl", "slo-tpot"):
        helps += _faster_gpu(asked, evaluator)
    stuck = [str(c) for c, r in clash.relaxations if r is None]
    if stuck and helps:
        notes.append(f"no change of {', '.join(stuck)} alone is enough")
    about = (first.code, first.service or "", first.detail)
    told = tuple(dict.fromkeys(notes))
    return UserError(first.code, _message(asked, clash), None, told, tuple(helps), Exit.NO_PLAN, about)


# How many faster GPUs are tried before the advice is left out.
_MOST_GPUS = 3


def _faster_gpu(question: Question, evaluator: Evaluator) -> list[str]:
    """The slowest GPU of more HBM bandwidth than the fleet's with which there is a plan, among the next few."""
    here = [find_gpu(p.gpu) for p in question.fleet.pools]
    best = max(here, key=lambda g: (g.memory.bandwidth, g.id))
    faster = [
        g
        for g in sorted(gpus().values(), key=lambda g: (g.memory.bandwidth, g.id))
        if g.memory.bandwidth > best.memory.bandwidth and _usable(g, best)
    ]
    for g in faster[:_MOST_GPUS]:
        pools = tuple(
            p.model_copy(update={"gpu": g.id, "gpus_per_node": None, "override": None}) for p in question.fleet.pools
        )
        if feasible(question.with_fleet(question.fleet.model_copy(update={"pools": pools})), evaluator):
            return [f"or use GPUs with more HBM bandwidth ({g.id}: {show_bytes(g.memory.bandwidth)}/s)"]
    return []


def _usable(g: Gpu, like: Gpu) -> bool:
    return g.status == "shipping" and g.vendor == like.vendor and g.memory.reported is not None


def _message(question: Question, clash: Clash) -> str:
    first = clash.clauses[0]
    fleet = question.fleet.name
    who = ", ".join(_served(question, a.name) for a in question.asks[:3])
    if len(question.asks) > 3:
        who += f" and {len(question.asks) - 3} more"
    if first.code.startswith("slo-"):
        class_name, key = split_detail(first.detail)
        metric, stat = key.split(".", 1)
        whose = f" of class {class_name}" if class_name else ""
        limit = f"{metric} {stat} <= {show_time(limit_of(question, first))}{whose}"
        if len(clash.clauses) == 1:
            return f"no configuration reaches {limit} for {who} on fleet {fleet}"
        return f"no plan keeps {limit} for {who} on fleet {fleet}"
    if any(c.code == "traffic-served" for c in clash.clauses):
        total = sum(rate for a in question.asks for _, rate in a.rates)
        return f"fleet {fleet} cannot carry {show_rate(total)} of {who}"
    if first.code == "fixed-choices" and first.service is not None:
        fixed = getattr(question.ask(first.service).service.fixed, first.detail, None)
        return f"no plan for {who} on fleet {fleet} with {first.detail} fixed to {fixed}"
    return f"no plan for {who} on fleet {fleet}: {first} rules every configuration out"


def _served(question: Question, service: str) -> str:
    model = question.ask(service).service.model
    return f"{model} ({service})" if len(question.asks) > 1 else model


def _notes(question: Question, clause: Clause, evaluator: Evaluator) -> list[str]:
    """What can be reached, or what stands in the way, from the candidates themselves."""
    if clause.code == "fixed-choices" and clause.service is not None:
        try:
            evaluator.evaluate(question.ask(clause.service))
        except UserError as e:
            return list(e.notes)
    if not clause.code.startswith("slo-") or clause.service is None:
        return []
    best = best_reachable(question, clause, evaluator)
    if best is None:
        return []
    value, candidate = best
    d = candidate.deployment
    metric = split_detail(clause.detail)[1].split(".", 1)[0]
    why = step_note(question.ask(clause.service), candidate, metric)
    return [
        f"best reachable {split_detail(clause.detail)[1]} is {show_time(value)} ({d.hardware.gpu_id}, {d.shape.label}, "
        f"{d.precision}, {candidate.caps.max_num_batched_tokens}-token budget, at almost no load)",
        *([why] if why else []),
    ]


def best_reachable(question: Question, clause: Clause, evaluator: Evaluator) -> tuple[float, Candidate] | None:
    """The least value of a promised figure over all candidates, at any rate, and who reaches it."""
    class_name, key = split_detail(clause.detail)
    ask = question.ask(clause.service)
    names = [class_name] if class_name else [c.name for c in ask.service.traffic if c.slo is None]
    worst: tuple[float, Candidate] | None = None
    for name in names:
        reach = [
            (c.best_s[f"{name} {key}"], c.key, c)
            for c in evaluator(ask)
            if f"{name} {key}" in c.best_s and not c.rejected_by and name in c.class_names
        ]
        if not reach:
            return None
        value, _, candidate = min(reach, key=lambda r: r[:2])
        if worst is None or value > worst[0]:
            worst = (value, candidate)
    return worst


def _what_fits(question: Question, evaluator: Evaluator) -> list[str]:
    """A fleet too small: how much of all traffic it carries, and which services it could carry whole."""
    prepared = prepare(question, evaluator)
    lines = []
    if question.has_rate:
        share = _carried(prepared)
        if share:
            lines.append(f"it carries {share:.1%} of every rate")
    made = choices(prepared, scale_urps=None if question.has_rate else 1)
    outcome = most_services(made, prepared.spaces, prepared.by_total)
    if outcome.left_out:
        lines.append(f"it carries all but {', '.join(outcome.left_out)}")
    return lines


def _carried(prepared: Prepared) -> float:
    """Largest thousandth of all rates together that fits."""
    low, high = 0, 1000
    while high - low > 1:
        middle = (low + high) // 2
        made: list[Choices] = choices(prepared, scale_urps=middle * (PER_RPS // 1000))
        if fits(made, prepared.spaces, prepared.by_total, pack=prepared.pack):
            low = middle
        else:
            high = middle
    return low / 1000


def _nothing_runs(question: Question, clash: Clash, evaluator: Evaluator) -> UserError:
    """Not a clash of rules: nothing in this fleet runs the model at all."""
    name = clash.service or question.asks[0].name
    ask = question.ask(name)
    if name in evaluator.refusals:
        return evaluator.refusals[name]
    marks = sorted({code for c in evaluator(ask) for code in c.rejected_by})
    notes = [f"every configuration is refused by: {', '.join(marks)}"] if marks else []
    return UserError(
        "no-configuration",
        f"nothing on fleet {question.fleet.name} runs {ask.service.model} ({name})",
        None,
        tuple(notes),
        ("use GPUs with more memory, a smaller precision (precisions: [fp8]), or a smaller model",),
        Exit.NO_PLAN,
    )


def time_limit(question: Question) -> UserError:
    names = ", ".join(a.name for a in question.asks[:5])
    return UserError(
        "time-limit",
        f"no plan found for {names} on fleet {question.fleet.name} within the time limit",
        None,
        ("this does not mean that there is none: the search was not finished",),
        ("raise --time-limit, or ask for fewer services at a time",),
        Exit.TIME_LIMIT,
    )
