"""Why this plan: what binds, what came second, what one GPU fewer would carry. Re-solved each time, never guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.candidates.candidate import Candidate
from planner.solve.choices import Choices
from planner.solve.model import Limits, fits, select
from planner.solve.objective import goals, most_traffic
from planner.solve.patterns import Pattern, least_alone
from planner.solve.prepare import Evaluator, Prepared, choices, demand_of, prepare
from planner.solve.question import Clause, Question
from planner.solve.rules import RULES
from planner.solve.rules.survive import losses
from planner.solve.scale import PER_DOLLAR, PER_RPS, capacity_urps, cost_udollars
from planner.solve.space import Space
from planner.units import show_money, show_rate, show_time

# Rules whose absence is not a plan anybody could run, or says nothing about the choice.
_NOT_ASKED = frozenset({"traffic-served", "engine-supports", "distinct-shapes", "kv-transfer"})


MOST_EXPLAINED = 12
"""With more services only what needs no solving again is told: each reason is a question of its own."""
_EXPLAIN_LIMITS = Limits(first=5.0, ties=2.0)


@dataclass(frozen=True, slots=True)
class Told:
    """The reasons of one service."""

    bound_by: tuple[str, ...]
    runner_up: str | None
    why: tuple[str, ...]


def explain_service(
    name: str,
    question: Question,
    evaluator: Evaluator,
    *,
    prepared: Prepared,
    found: Sequence[Choices],
    chosen: Sequence[Pattern],
    scale: int | None,
) -> Told:
    """Reasons for one service's patterns, the other services staying as planned."""
    mine = [p for p in chosen if p.service == name]
    others = [
        Choices(c.service, (tuple(p.class_names for p in ps),), {p.class_names: (p,) for p in ps}, c.surge)
        for c in found
        if c.service != name and (ps := [p for p in chosen if p.service == c.service])
    ]
    setting = _Setting(name, question, evaluator, prepared, tuple(others), tuple(mine), scale)
    if len(question.asks) > MOST_EXPLAINED:
        return Told((), _runner_up(setting), _why(setting))
    return Told(
        _bound_by(setting), _runner_up(setting), (*_why(setting), *_apart_or_together(setting), *_one_fewer(setting))
    )


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    question: Question
    evaluator: Evaluator
    prepared: Prepared
    others: tuple[Choices, ...]
    mine: tuple[Pattern, ...]
    scale: int | None

    @property
    def gpus(self) -> int:
        return sum(p.gpus for p in self.mine)

    @property
    def udollars(self) -> int:
        return sum(p.cost_udollars for p in self.mine)


def _alone(setting: _Setting, question: Question) -> tuple[Prepared, Choices] | None:
    """The service's choices under a changed question, on the same fleet."""
    prepared = prepare(question.only(setting.name), setting.evaluator)
    made = choices(prepared, scale_urps=setting.scale)
    return (prepared, made[0]) if made[0].possible else None


def _bound_by(setting: _Setting) -> tuple[str, ...]:
    """Rules without which the plan would be better, each with what it costs."""
    lines = []
    clauses: list[tuple[Clause, Question]] = []
    for rule in RULES:
        if rule.code in _NOT_ASKED or (rule.code == "fleet-inventory" and not _wants_more(setting)):
            continue
        for clause in rule.clauses(setting.question):
            if clause.service in (None, setting.name):
                clauses.append((clause, rule.off(setting.question, clause)))
    for clause, without in clauses:
        better = _saved(setting, without, clause)
        if better:
            label = " ".join(x for x in (clause.code, clause.detail) if x)
            lines.append(f"{label}: {better}")
    return tuple(lines)


def _wants_more(setting: _Setting) -> bool:
    """Whether a larger fleet could change the plan: some shape would do with less than is planned, but there are too
    few of its GPUs. Saves solving again where the fleet plainly does not bind."""
    if setting.scale is not None:
        return False
    ask = setting.question.ask(setting.name)
    by_cost = setting.question.objective == "cost"
    for pattern in setting.mine:
        demand = demand_of(ask, pattern.class_names, setting.question, None)
        planned = (pattern.cost_udollars, pattern.gpus) if by_cost else (pattern.gpus, pattern.cost_udollars)
        for c in setting.prepared.usable[setting.name]:
            n = least_alone(c, demand, setting.prepared.spaces) if c.class_names == pattern.class_names else None
            if n is not None and n > setting.prepared.spaces[c.fleet_pool].most_replicas(c):
                gpus, cost = n * c.gpus, n * cost_udollars(c.dollars_per_hour)
                if ((cost, gpus) if by_cost else (gpus, cost)) < planned:
                    return True
    return bool(setting.others)


def _saved(setting: _Setting, without: Question, clause: Clause) -> str | None:
    if setting.scale is not None:
        if clause.service is None or setting.others:
            return None
        most, _ = most_traffic(prepare(without, setting.evaluator), _EXPLAIN_LIMITS, least=setting.scale)
        gain = most / setting.scale - 1 if most else 0.0
        return f"{gain:+.0%} traffic without it" if gain >= 0.005 else None
    alone = _alone(setting, without)
    if alone is None:
        return None
    prepared, made = alone
    first, then = goals(setting.question)
    outcome = select(
        [made, *setting.others], prepared.spaces, prepared.by_total & setting.prepared.by_total,
        first=first, then=then[1:2], pack=prepared.pack, limits=_EXPLAIN_LIMITS,
    )  # fmt: skip
    if outcome.status not in ("optimal", "feasible"):
        return None
    mine = [p for p in outcome.chosen if p.service == setting.name]
    gpus, udollars = sum(p.gpus for p in mine), sum(p.cost_udollars for p in mine)
    if gpus < setting.gpus:
        return f"+{setting.gpus - gpus} GPUs (without it {gpus})"
    if udollars < setting.udollars and setting.question.objective == "cost":
        dollars = (setting.udollars - udollars) / PER_DOLLAR
        return f"+{show_money(dollars)}/h (without it {show_money(udollars / PER_DOLLAR)}/h)"
    return None


def _kind(c: Candidate) -> str:
    d = c.deployment
    return f"{c.fleet_pool} {d.shape.label} {d.precision}"


def _runner_up(setting: _Setting) -> str | None:
    """The best plan of another shape, checkpoint or GPU, and by how much it loses (single shapes, same classes)."""
    used = {_kind(part.candidate) for p in setting.mine for part in p.parts}
    pattern = max(setting.mine, key=lambda p: p.gpus)
    ask = setting.question.ask(setting.name)
    best: tuple[tuple[float, ...], str, str] | None = None
    demand = demand_of(ask, pattern.class_names, setting.question, setting.scale)
    for c in setting.prepared.usable[setting.name]:
        if c.class_names != pattern.class_names or c.role != "aggregated" or _kind(c) in used:
            continue
        space = setting.prepared.spaces[c.fleet_pool]
        if setting.scale is not None:
            carried = carried_by(c, space.most_replicas(c), demand.survive, setting.prepared.spaces)
            share = carried / (demand.rate_urps / PER_RPS)
            entry: tuple[tuple[float, ...], str, str] = (
                (-share,),
                _kind(c),
                f"carries {share:.0%} of that traffic on the whole pool{_under(demand.survive)}",
            )
        else:
            n = least_alone(c, demand, setting.prepared.spaces)
            if n is None:
                continue
            gpus, udollars = n * c.gpus, n * cost_udollars(c.dollars_per_hour)
            text = f"{gpus} GPUs" if n <= space.most_replicas(c) else f"{gpus} GPUs, more than pool {c.fleet_pool} has"
            if setting.question.objective == "cost":
                text += f", {show_money(udollars / PER_DOLLAR)}/h"
            text += f" against {pattern.gpus}"
            if setting.question.objective == "cost":
                text += f" and {show_money(pattern.cost_udollars / PER_DOLLAR)}/h"
            order = (udollars, gpus) if setting.question.objective == "cost" else (gpus, udollars)
            entry = ((float(n > space.most_replicas(c)), *map(float, order)), _kind(c), text)
        if best is None or entry < best:
            best = entry
    return f"{best[1]}: {best[2]}" if best else None


def _under(survive: str) -> str:
    return "" if survive == "none" else f" with {survive} lost"


def carried_by(c: Candidate, replicas: int, survive: str, spaces: dict[str, Space]) -> float:
    """Requests/s of so many replicas of one shape, under the survive rule as well.

    min(n x planned, (n - lost) x degraded) over every loss to survive
    """
    found = replicas * capacity_urps(c.load.planned_rps)
    for (lost,) in losses((c,), survive, spaces):
        found = min(found, max(0, replicas - lost) * capacity_urps(c.load.degraded_rps))
    return found / PER_RPS


def _why(setting: _Setting) -> tuple[str, ...]:
    """Why not the smaller TP, and what limits a replica."""
    lines = []
    raw = setting.evaluator(setting.question.ask(setting.name))
    for pattern in setting.mine:
        for part in pattern.parts:
            c = part.candidate
            tp = c.deployment.shape.tp
            alike = [
                o
                for o in raw
                if o.class_names == c.class_names
                and o.role == c.role
                and o.fleet_pool == c.fleet_pool
                and o.deployment.precision == c.deployment.precision
                and o.deployment.shape.pp == c.deployment.shape.pp
                and o.deployment.shape.dp == c.deployment.shape.dp
            ]
            smaller = sorted({o.deployment.shape.tp for o in alike if o.deployment.shape.tp < tp}, reverse=True)
            if smaller:
                line = _why_not(setting, c, smaller[0], [o for o in alike if o.deployment.shape.tp == smaller[0]])
                if line:
                    lines.append(line)
            lines.append(
                f"{c.deployment.shape.label} carries {show_rate(c.load.planned_rps)} per replica, limited by "
                f"{c.load.binding} (stable up to {show_rate(c.load.lambda_max_rps)})"
            )
    return tuple(dict.fromkeys(lines))


def _why_not(setting: _Setting, chosen: Candidate, tp: int, others: Sequence[Candidate]) -> str | None:
    """One line on the next smaller TP: it misses a promise at its best, or carries less per GPU."""
    label = chosen.deployment.shape.label
    missed = missed_promise(setting.question, setting.name, others)
    if all(o.load.planned_rps <= 0 for o in others):
        return f"{label}: tp{tp} misses {missed}" if missed else None
    best = max(others, key=lambda o: (o.load.planned_rps / o.gpus, o.key))
    mine, theirs = chosen.load.planned_rps / chosen.gpus, best.load.planned_rps / best.gpus
    if theirs < mine:
        return f"{label}: tp{tp} carries {show_rate(theirs)} per GPU against {show_rate(mine)}"
    return None


def missed_promise(question: Question, service: str, candidates: Sequence[Candidate]) -> str | None:
    """`ITL even at a 512-token budget (59ms)`: the promise that none of these reaches at any rate, at its best."""
    ask = question.ask(service)
    for class_name, _ in ask.rates:
        for slo in ask.slos_of(class_name):
            reach = [
                (c.best_s[f"{class_name} {slo.key}"], c.caps.max_num_batched_tokens, c)
                for c in candidates
                if f"{class_name} {slo.key}" in c.best_s
            ]
            if not reach:
                continue
            value, budget, _ = min(reach, key=lambda r: (r[0], r[1], r[2].key))
            if value > slo.limit_s:
                return f"{slo.metric.upper()} even at a {budget}-token budget ({show_time(value)})"
    return None


def _one_fewer(setting: _Setting) -> tuple[str, ...]:
    """What the service would carry with one GPU fewer than planned."""
    if setting.scale is not None or setting.gpus <= 1 or setting.question.keep:
        return ()
    most_gpus = setting.gpus - 1
    ask = setting.question.ask(setting.name)
    share = _share_within(setting, setting.question, most_gpus, most=1000)
    rate = show_rate(sum(rate for _, rate in ask.rates))
    gpus = "1 GPU" if most_gpus == 1 else f"{most_gpus} GPUs"
    if share >= 1000:
        # Fewer GPUs do; they are not what was minimised.
        return (f"{gpus} would carry all of it, for more money",) if setting.question.objective == "cost" else ()
    survive = ask.service.survive
    if survive != "none":
        spared = setting.question.with_ask(ask.with_service(survive="none"))
        free = _share_within(setting, spared, most_gpus, most=1000)
        if free > share:
            under = f"{share / 10:g}%" if share else "none"
            return (f"{gpus} would carry {under} of {rate} with {survive} lost, {free / 10:g}% with nothing lost",)
    if share == 0:
        return (f"{gpus} would carry none of it",)
    return (f"{gpus} would carry {share / 10:g}% of {rate}",)


def _apart_or_together(setting: _Setting) -> tuple[str, ...]:
    """Prefill and decode apart against aggregated pools, at equal GPUs."""
    ask = setting.question.ask(setting.name)
    if (ask.service.fixed.pools or ask.service.pools) == "aggregated" or setting.question.keep:
        return ()
    fixed = ask.service.fixed.model_copy(update={"pools": None})
    shares = {}
    for pools in ("aggregated", "disaggregated"):
        asked = setting.question.with_ask(ask.with_service(pools=pools, fixed=fixed))
        shares[pools] = _share_within(setting, asked, setting.gpus, most=8000)
    total = sum(rate for _, rate in ask.rates) * (1.0 if setting.scale is None else setting.scale / PER_RPS)
    together, apart = (show_rate(total * shares[p] / 1000) for p in ("aggregated", "disaggregated"))
    if not shares["aggregated"] or not shares["disaggregated"]:
        missing = "aggregated pools" if not shares["aggregated"] else "prefill and decode apart"
        return (f"{missing} cannot keep these promises on {setting.gpus} GPUs",)
    if shares["disaggregated"] <= shares["aggregated"]:
        return (
            f"prefill and decode apart are not worth it: {setting.gpus} GPUs carry {apart} apart, {together} together",
        )
    return (f"prefill and decode apart: {setting.gpus} GPUs carry {apart} apart, {together} together",)


def _share_within(setting: _Setting, question: Question, most_gpus: int, *, most: int) -> int:
    """Largest thousandths of the planned traffic that so many GPUs carry, at most `most`."""
    prepared = prepare(question.only(setting.name), setting.evaluator)
    base = PER_RPS if setting.scale is None else setting.scale

    def possible(thousandths: int) -> bool:
        made = choices(prepared, scale_urps=max(1, base * thousandths // 1000))[0]
        groups = {g: tuple(p for p in ps if p.gpus <= most_gpus) for g, ps in made.groups.items()}
        few = Choices(made.service, made.splits, groups, made.surge)
        if not few.possible:
            return False
        return bool(fits([few, *setting.others], prepared.spaces, prepared.by_total & setting.prepared.by_total))

    if not possible(1):
        return 0
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if possible(middle) else (low, middle)
    return low
