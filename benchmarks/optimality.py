"""The solver against brute force on small random instances: the same optimum, objective and tie-breaks.

    python benchmarks/optimality.py [COUNT]

The brute force shares no rule code with the solver: it lists every pair of raw candidates with every pair of counts,
asks its own questions of each (does it carry the rate, does it survive each loss, does it pack into nodes and
domains), joins services by trying all combinations, and takes the best in dictionary order of the objectives.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from handmade import Toy, ask, evaluator, fleet, no_figures

from planner.candidates.ask import Ask
from planner.candidates.candidate import Candidate
from planner.errors import UserError
from planner.intent.fleet import Fleet
from planner.solve.question import BaselinePool, Objective
from planner.solve.scale import capacity_urps, cost_udollars, demand_urps
from planner.solve.solver import solve

Pattern = tuple[tuple[Candidate, int], ...]
Chosen = tuple[str, tuple[str, ...], Pattern]
"""Service, class group, replicas of candidates."""


@dataclass(frozen=True)
class Instance:
    """One question, small enough to try everything."""

    asks: tuple[Ask, ...]
    fleet: Fleet
    toys: dict[str, list[Toy]]
    objective: Objective
    baseline: tuple[BaselinePool, ...] = ()
    change_cost: float = 0.0


def instance(seed: int) -> Instance:
    """A random question: one or two services, one or two pools, every rule switched on now and then."""
    r = random.Random(seed)
    pools = []
    for name in ("a", "b")[: r.choice((1, 1, 2))]:
        per_node = r.choice((2, 4, 4, 6, 8))
        nodes = r.randint(2, max(2, 16 // per_node))
        pool: dict[str, Any] = {
            "name": name,
            "nodes": nodes,
            "gpus_per_node": per_node,
            "rdma": r.random() < 0.7,
            "price": f"${r.choice((1, 1.5, 2, 2.95))}/h",
            "override": {"scale_up_domain": per_node * r.choice((1, 1, 2))},
        }
        pools.append(pool)
    f = fleet(*pools)
    free = r.random() < 0.25
    objective: Objective = "throughput" if free else r.choice(("cost", "cost", "gpus", "throughput"))
    asks, toys = [], {}
    names = ("chat", "code")[: r.choice((1, 1, 2))]
    for name in names:
        toys[name] = list(_toys(r, pools))
        classes = 2 if len(names) == 1 and r.random() < 0.25 else 1
        traffic = [
            {
                "name": f"c{i}",
                "input": 100,
                "output": 100,
                **({} if free else {"rate": f"{r.choice((0.5, 0.7, 1, 2, 3, 5))}/s"}),
            }
            for i in range(classes)
        ]
        kw: dict[str, Any] = {
            "traffic": traffic,
            "pools": r.choice(("aggregated", "auto", "auto", "auto", "disaggregated")),
        }
        if r.random() < 0.5:
            kw["slo"] = {"itl": f"{r.choice((22, 30, 50))}ms"}
        kw["survive"] = r.choice(("none", "none", "1 replica", "1 node"))
        if r.random() < 0.2:
            kw["accuracy_floor"] = 0.98
        if r.random() < 0.1:
            kw["fixed"] = {"replicas": r.randint(1, 4)}
        asks.append(ask(f, name=name, surge=r.random() < 0.15, **kw))
    made = Instance(tuple(asks), f, toys, objective)
    if r.random() < 0.2 and objective != "throughput":
        evaluate = evaluator(toys)
        today = [
            BaselinePool(a.name, c.key, r.randint(1, 3), c.gpus, c.class_names)
            for a in asks
            for c in r.sample(evaluate(a), 1)
        ]
        made = replace(made, baseline=tuple(today), change_cost=r.choice((0.0, 0.7)))
    return made


def _toys(r: random.Random, pools: Sequence[dict[str, Any]]) -> Iterator[Toy]:
    seen = set()
    roles = ["aggregated", "prefill", "decode", "aggregated", "prefill", "decode"]
    for i in range(r.randint(2, 6)):
        pool = r.choice(pools)
        per_node = pool["gpus_per_node"]
        tp = r.choice([t for t in (1, 1, 2, 3, 4, 6, 8) if t <= per_node] + [per_node * 2])
        nodes = 0 if tp <= per_node else tp // per_node
        speed = tp * r.choice((0.7, 0.85, 1.0))
        toy = Toy(
            pool["name"],
            tp=tp,
            nodes=nodes,
            most_rps=round(3 * speed, 3),
            floor_s={"itl": r.choice((0.01, 0.018, 0.025))},
            slope_s={"itl": 0.002 / tp},
            role=roles[i],
            accuracy=r.choice((None, 0.99, 0.97)),
            refused=r.random() < 0.05,
            budget=r.choice((512, 1024, 2048)),
            precision=r.choice(("bf16", "bf16", "bf16", "fp8")),
        )
        key = (toy.pool, toy.tp, toy.role, toy.budget, toy.precision)
        if key not in seen:
            seen.add(key)
            yield toy


# ---------------------------------------------------------------- brute force


@dataclass(frozen=True)
class Best:
    """The best plan: scale (millionths, where it is asked for) and its place in dictionary order."""

    scale: int
    order: tuple[Any, ...]
    patterns: tuple[Chosen, ...]


def brute(question: Instance) -> Best | None:
    """The optimum by trying everything; None where there is none."""
    evaluate = evaluator(question.toys)
    maximise = question.objective == "throughput" or question.asks[0].service.traffic[0].rate is None
    options = []
    for a in sorted(question.asks, key=lambda a: a.name):
        mine = [c for c in evaluate(a) if not c.rejected_by and c.load.planned_rps > 0]
        options.append(list(_service_options(a, mine, question, maximise)))
    best: Best | None = None
    best_scale = 0
    for combo in itertools.product(*options):
        scale = min(o[0] for o in combo)
        if maximise and scale < best_scale:
            continue
        patterns = tuple(p for o in combo for p in o[1])
        if not _packs(question, patterns):
            continue
        best_scale = max(best_scale, scale)
    if maximise and best_scale < (1 if question.asks[0].service.traffic[0].rate is None else 1_000_000):
        return None
    for combo in itertools.product(*options):
        if maximise and min(o[0] for o in combo) < best_scale:
            continue
        patterns = tuple(p for o in combo for p in o[1])
        order = _order(question, patterns, best_scale if maximise else None)
        if best is not None and order >= best.order:
            continue
        if _packs(question, patterns):
            best = Best(best_scale, order, patterns)
    return best


def _service_options(
    a: Ask, candidates: Sequence[Candidate], question: Instance, maximise: bool
) -> Iterator[tuple[int, tuple[Chosen, ...]]]:
    names = tuple(n for n, _ in a.rates)
    splits = [(names,)] if len(names) == 1 else [(names,), tuple((n,) for n in names)]
    for split in splits:
        per_group = []
        for group in split:
            found = []
            for p in _patterns(a, [c for c in candidates if c.class_names == group], question.fleet):
                scale = _carries(a, group, p, question.fleet)
                if (maximise or scale >= 1_000_000) and _packs(question, ((a.name, group, p),)):
                    found.append((scale, (a.name, group, p)))
            per_group.append(found)
        for combo in itertools.product(*per_group):
            yield min(s for s, _ in combo), tuple(p for _, p in combo)


def _room(f: Fleet, pool: str) -> tuple[int, int, int]:
    p = next(p for p in f.pools if p.name == pool)
    assert p.gpus_per_node is not None
    assert p.override is not None
    assert p.override.scale_up_domain is not None
    return p.nodes - p.reserved_nodes, p.gpus_per_node, p.override.scale_up_domain // p.gpus_per_node


def _most(f: Fleet, c: Candidate) -> int:
    nodes, per_node, _ = _room(f, c.fleet_pool)
    return nodes * (per_node // c.gpus) if c.nodes == 0 else nodes // c.nodes


def _patterns(a: Ask, candidates: Sequence[Candidate], f: Fleet) -> Iterator[Pattern]:
    wanted, fixed = a.service.pools, a.service.fixed.replicas
    whole = [c for c in candidates if c.role == "aggregated"]
    if wanted != "disaggregated":
        for c in whole:
            for n in range(1, _most(f, c) + 1):
                if fixed in (None, n):
                    yield ((c, n),)
        for c, d in itertools.combinations(whole, 2):
            for n in range(1, _most(f, c) + 1):
                for m in range(1, _most(f, d) + 1):
                    if fixed in (None, n + m):
                        yield ((c, n), (d, m))
    if wanted != "aggregated" and fixed is None:
        for p in (c for c in candidates if c.role == "prefill"):
            for d in (c for c in candidates if c.role == "decode"):
                hp, hd = p.deployment, d.deployment
                if hp.precision != hd.precision or not (hp.hardware.rdma and hd.hardware.rdma):
                    continue
                for n in range(1, _most(f, p) + 1):
                    for m in range(1, _most(f, d) + 1):
                        yield ((p, n), (d, m))


def _carries(a: Ask, group: tuple[str, ...], p: Pattern, f: Fleet) -> int:
    """Largest scale (millionths) that this pattern carries and survives with."""
    rate = sum(r for n, r in a.rates if n in group)
    sides = [p] if p[0][0].role == "aggregated" else [(x,) for x in p]
    least = min(min(_planned(s), _after_loss(s, a.service.survive, f)) for s in sides)
    scale = int(least / rate) + 2
    while scale > 0 and demand_urps(rate * scale / 1_000_000) > least:
        scale -= 1
    return scale


def _planned(side: Pattern) -> int:
    return sum(n * capacity_urps(c.load.planned_rps) for c, n in side)


def _after_loss(side: Pattern, survive: str, f: Fleet) -> int:
    """What the worst single failure leaves."""
    if survive == "none":
        return 10**15
    total = sum(n * capacity_urps(c.load.degraded_rps) for c, n in side)
    worst = 0
    if survive == "1 replica":
        worst = max(capacity_urps(c.load.degraded_rps) for c, _ in side)
    else:
        for lost in itertools.product(*(range(n + 1) for _, n in side)):
            taken: dict[str, int] = {}
            groups = 0
            for (c, _), k in zip(side, lost, strict=True):
                if c.nodes:
                    groups += k
                elif k:
                    taken[c.fleet_pool] = taken.get(c.fleet_pool, 0) + k * c.gpus
            one_group = groups == 1 and not taken
            one_node = groups == 0 and len(taken) == 1 and all(g <= _room(f, p)[1] for p, g in taken.items())
            if one_group or one_node:
                gone = sum(k * capacity_urps(c.load.degraded_rps) for (c, _), k in zip(side, lost, strict=True))
                worst = max(worst, gone)
    return total - worst


def _packs(question: Instance, patterns: Sequence[Chosen]) -> bool:
    surging = {a.name for a in question.asks if a.surge}
    for pool in question.fleet.pools:
        inside: list[int] = []
        groups: list[int] = []
        spare: list[tuple[int, int]] = []
        for service, _, p in patterns:
            for c, n in p:
                if c.fleet_pool == pool.name:
                    (groups if c.nodes else inside).extend([c.nodes or c.gpus] * n)
                    if service in surging:
                        spare.append((c.gpus, c.nodes))
        if spare:
            gpus, nodes = max(spare)
            (groups if nodes else inside).append(nodes or gpus)
        if not _fits(inside, groups, _room(question.fleet, pool.name)):
            return False
    return True


def _fits(inside: list[int], groups: list[int], room: tuple[int, int, int]) -> bool:
    nodes, per_node, domain = room
    left = nodes - sum(groups)
    if left < 0:
        return False
    close = [g for g in groups if 1 < g <= domain and domain > 1]
    whole, rest = divmod(nodes, domain)
    return _bins(sorted(close, reverse=True), [domain] * whole + ([rest] if rest else [])) and _bins(
        sorted(inside, reverse=True), [per_node] * left
    )


def _bins(items: list[int], bins: list[int]) -> bool:
    if not items:
        return True
    if sum(items) > sum(bins):
        return False
    tried = set()
    for i, room in enumerate(bins):
        if room >= items[0] and room not in tried:
            tried.add(room)
            if _bins(items[1:], [*bins[:i], room - items[0], *bins[i + 1 :]]):
                return True
    return False


def _order(question: Instance, patterns: Sequence[Chosen], scale: int | None) -> tuple[Any, ...]:
    """The objectives in dictionary order."""
    parts = [part for _, _, p in patterns for part in p]
    cost = sum(n * cost_udollars(c.dollars_per_hour) for c, n in parts)
    gpus = sum(n * c.gpus for c, n in parts)
    moved = 0
    for a in question.asks:
        everyone = tuple(n for n, _ in a.rates)
        now = {(g, c.key): (n, c.gpus) for s, g, p in patterns if s == a.name for c, n in p}
        then = {
            (b.class_names or everyone, b.key): (b.replicas, b.gpus) for b in question.baseline if b.service == a.name
        }
        for key in now.keys() | then.keys():
            size = (now.get(key) or then[key])[1]
            moved += abs(now.get(key, (0, 0))[0] - then.get(key, (0, 0))[0]) * size
    used = 0
    for service, group, p in patterns:
        a = next(a for a in question.asks if a.name == service)
        rate = sum(r for n, r in a.rates if n in group)
        rate_urps = demand_urps(rate) if scale is None else demand_urps(rate * scale / 1_000_000)
        sides = [p] if p[0][0].role == "aggregated" else [(x,) for x in p]
        used += 4_000_000 - min(4_000_000, *(int(_planned(s) / rate_urps * 1e6) for s in sides))
    names: list[Any] = []
    for a in sorted(question.asks, key=lambda a: a.name):
        classes = tuple(n for n, _ in a.rates)
        groups = [classes] if len(classes) == 1 else [classes, *((n,) for n in classes)]
        mine = {g: p for s, g, p in patterns if s == a.name}
        names += [tuple(sorted((c.key, n) for c, n in mine.get(g, ()))) for g in groups]
    first = gpus if question.objective == "gpus" else cost + round(question.change_cost * 1e6) * moved
    return (first, moved, gpus, len(parts), sum(c.gpus for c, _ in parts), used, *names)


# ---------------------------------------------------------------- the comparison


def compare(seed: int) -> str:
    """`same`, `no plan` (both say so), or what differs."""
    question = instance(seed)
    expected = brute(question)
    try:
        got = solve(
            question.asks, question.fleet, evaluate=evaluator(question.toys), predict=no_figures,
            objective=question.objective, baseline=question.baseline, change_cost=question.change_cost, explain=False,
        )  # fmt: skip
    except UserError as e:
        if e.code in ("time-limit", "no-price"):
            raise
        return (
            "no plan"
            if expected is None
            else f"seed {seed}: no plan found ({e.code}), brute force has {expected.order}"
        )
    if expected is None:
        return f"seed {seed}: brute force has no plan, the solver has one"
    patterns = tuple(
        (s.name, group, tuple((p.candidate, p.replicas) for p in s.pools if p.candidate.class_names == group))
        for s in got.services
        for group in dict.fromkeys(p.candidate.class_names for p in s.pools)
    )
    maximise = got.scale is not None
    scale = round(got.scale * 1_000_000) if got.scale is not None else None
    if maximise and scale != expected.scale:
        return f"seed {seed}: scale {scale}, brute force {expected.scale}"
    order = _order(question, patterns, scale)
    if order != expected.order:
        return f"seed {seed}: {order}\n   brute {expected.order}"
    return "same" if got.status == "optimal" and got.tie_breaks else f"seed {seed}: not proven"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    started = time.perf_counter()
    found = [compare(seed) for seed in range(count)]
    wrong = [f for f in found if f not in ("same", "no plan")]
    print(*wrong, sep="\n")
    print(
        f"{count} instances: {found.count('same')} same optimum, {found.count('no plan')} without a plan in both, "
        f"{len(wrong)} differ ({time.perf_counter() - started:.0f} s)"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
