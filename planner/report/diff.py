"""What changed between two plans, what caused it, and what it means for the pods that run.

    diff(a, b) -> PlanDiff      pure; `render` (plan -> files) is handed in, since this room does not know that one

Two plans are the same when they decide the same from the same inputs: a newer planner, catalogue or calibration
that leaves the answer and the pod templates alone is reported and is not a difference.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.plan.document import Figure, Plan, PoolDoc, ServiceDoc
from planner.report.causes import Replan, answer, causes, prove
from planner.report.console import shape_text
from planner.report.diff_view import Change, PlanDiff, SloChange
from planner.report.restarts import Tree, config_changes, files, restarts
from planner.units import show_money, show_rate

Render = Callable[[Plan], Tree]


def diff(a: Plan, b: Plan, *, render: Render | None = None, replan: Replan | None = None) -> PlanDiff:
    """Compare plan `a` (before) with plan `b` (after).

    `render` gives a plan's files, for restarts; `replan` plans again, to prove each cause by taking it back.
    """
    before, after = (render(a), render(b)) if render is not None else ({}, {})
    return PlanDiff(
        title=" + ".join(s.name for s in b.services),
        gpus=(a.totals.gpus, b.totals.gpus),
        cost=(a.totals.cost, b.totals.cost),
        odds=(a.totals.odds, b.totals.odds),
        changes=_changes(a, b),
        slos=_slos(a, b),
        causes=causes(a, b),
        proofs=prove(a, b, replan) if replan is not None else (),
        restarts=restarts(before, after),
        configs=config_changes(before, after),
        files=files(before, after),
        rendered=render is not None,
        same_answer=answer(a) == answer(b),
    )


def _changes(a: Plan, b: Plan) -> tuple[Change, ...]:
    found: list[Change] = []

    def add(what: str, x: str, y: str, delta: str = "") -> None:
        if x != y:
            found.append(Change(what, x, y, delta))

    add("status", a.status, b.status)
    add("checked by", a.verification.by, b.verification.by)
    if a.totals.scale is not None and b.totals.scale is not None:
        add(
            "traffic carried",
            f"x{a.totals.scale:.3g}",
            f"x{b.totals.scale:.3g}",
            _percent(a.totals.scale, b.totals.scale),
        )
    x_w, y_w = a.totals.power, b.totals.power
    add("power", _kilowatts(x_w), _kilowatts(y_w), _percent(x_w, y_w) if x_w and y_w else "")
    old, new = {s.name: s for s in a.services}, {s.name: s for s in b.services}
    for name in [*old, *(n for n in new if n not in old)]:
        x, y = old.get(name), new.get(name)
        if x is None or y is None:
            add(f"{name} service", "none" if x is None else "planned", "none" if y is None else "planned")
        if x is not None and y is not None:
            add(f"{name} model", f"{x.model.repo} {x.model.precision}", f"{y.model.repo} {y.model.precision}")
            add(f"{name} engine", f"{x.engine} {x.engine_version}", f"{y.engine} {y.engine_version}")
            add(f"{name} target", x.target, y.target)
            add(f"{name} speculation", _speculation(x), _speculation(y))
        pools_a = {p.name: p for p in x.pools} if x else {}
        pools_b = {p.name: p for p in y.pools} if y else {}
        for pool in [*pools_a, *(p for p in pools_b if p not in pools_a)]:
            _pool(pools_a.get(pool), pools_b.get(pool), pool, found)
        if x is not None and y is not None:
            cost_a, cost_b = x.cost.per_million_output_tokens, y.cost.per_million_output_tokens
            add(f"{name} per million output tokens", show_money(cost_a), show_money(cost_b), _percent(cost_a, cost_b))
    days_a, days_b = {(d.service, d.name): d for d in a.bad_days}, {(d.service, d.name): d for d in b.bad_days}
    for key in [k for k in days_a if k in days_b]:
        p, q = days_a[key], days_b[key]
        add(f"{key[0]}, {key[1]}", "; ".join(p.misses) or "SLOs hold", "; ".join(q.misses) or "SLOs hold")
    return tuple(found)


def _speculation(service: ServiceDoc) -> str:
    s = service.speculation
    return "none" if s is None else f"{s.method} {s.tokens} tokens, acceptance {s.acceptance:g}"


def _pool(x: PoolDoc | None, y: PoolDoc | None, name: str, found: list[Change]) -> None:
    def shown(p: PoolDoc | None) -> str:
        return "none" if p is None else f"{p.replicas} x {shape_text(p)} = {p.gpus} GPUs on {p.fleet_pool}"

    if shown(x) != shown(y):
        delta = (y.gpus if y else 0) - (x.gpus if x else 0)
        found.append(Change(f"{name} pool", shown(x), shown(y), f"{delta:+d} GPUs" if delta else ""))
    if x is None or y is None:
        return
    for field, text in (
        ("role", "role"),
        ("kv_dtype", "KV cache"),
        ("max_num_seqs", "max_num_seqs"),
        ("max_num_batched_tokens", "max_num_batched_tokens"),
        ("max_model_len", "max_model_len"),
        ("gpu_memory_utilization", "gpu_memory_utilization"),
    ):
        p, q = getattr(x, field), getattr(y, field)
        if p != q:
            found.append(Change(f"{name} {text}", str(p), str(q)))
    if show_rate(x.rate) != show_rate(y.rate):
        found.append(Change(f"{name} rate", show_rate(x.rate), show_rate(y.rate), _percent(x.rate, y.rate)))
    if f"{x.load:.0%}" != f"{y.load:.0%}":
        found.append(Change(f"{name} load", f"{x.load:.0%}", f"{y.load:.0%}"))


def _kilowatts(power: float | None) -> str:
    return "unknown" if power is None else f"{power / 1e3:.1f}kW"


def _percent(a: float, b: float) -> str:
    return f"{(b - a) / a:+.0%}" if a and abs(b - a) / abs(a) >= 0.005 else ""


def _figures(plan: Plan) -> dict[tuple[str, str, str], Figure]:
    found: dict[tuple[str, str, str], Figure] = {}
    for s in plan.services:
        for p in s.pools:
            for c in p.classes:
                for f in c.figures:
                    key = (s.name, c.name, f.metric)
                    # Two shapes of one class: the one with the least slack is the promise.
                    if f.limit is not None and (key not in found or f.value / f.limit > _used(found[key])):
                        found[key] = f
    return found


def _used(f: Figure) -> float:
    return f.value / f.limit if f.limit else 0.0


def _slos(a: Plan, b: Plan) -> tuple[SloChange, ...]:
    old, new = _figures(a), _figures(b)
    found = []
    for key in [*old, *(k for k in new if k not in old)]:
        x, y = old.get(key), new.get(key)
        found.append(
            SloChange(
                *key,
                limit_before_s=x.limit if x else None,
                limit_after_s=y.limit if y else None,
                before_s=x.value if x else None,
                after_s=y.value if y else None,
            )
        )
    return tuple(found)
