"""A review's content in reading order, from a plan: verdict, change, promises, bad days, odds, decisions, evidence.

Each function gives plain rows of text, so that the page and the Markdown form say the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.plan.document import ClassDoc, Figure, Plan, PoolDoc, ServiceDoc
from planner.report.charts import MemoryPart, Promise, Quantile
from planner.report.console import figure_name, shape_text
from planner.units import show_bytes, show_count, show_money, show_rate, show_time

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Predicted:
    """One figure with where it belongs."""

    service: ServiceDoc
    pool: PoolDoc
    cls: ClassDoc
    figure: Figure
    alone: bool = False
    """The plan has one service with one pool and class: its name says nothing."""

    @property
    def label(self) -> str:
        """`chat ITL p99`, with pool and class where there are several."""
        if self.alone:
            return figure_name(self.figure.metric)
        several = len(self.service.pools) > 1 or len(self.pool.classes) > 1
        who = [self.pool.name if len(self.service.pools) > 1 else self.service.name]
        who += [self.cls.name] if several and self.cls.name not in ("default", self.pool.name) else []
        return f"{' '.join(who)} {figure_name(self.figure.metric)}"


def predicted(plan: Plan) -> Iterator[Predicted]:
    """Every figure of the plan in its order."""
    alone = len(plan.services) == len(plan.services[0].pools) == len(plan.services[0].pools[0].classes) == 1
    for s in plan.services:
        for p in s.pools:
            for c in p.classes:
                for f in c.figures:
                    yield Predicted(s, p, c, f, alone)


def limited(plan: Plan) -> list[Predicted]:
    """Figures with a limit: the promises."""
    return [p for p in predicted(plan) if p.figure.limit is not None]


def missed(plan: Plan) -> list[Predicted]:
    """Promises that the prediction breaks."""
    return [p for p in limited(plan) if p.figure.limit is not None and p.figure.value > p.figure.limit]


def title(plan: Plan) -> str:
    """`Capacity review: chat + autocomplete on h100-prod`"""
    names = " + ".join(s.name for s in plan.services) if len(plan.services) <= 4 else f"{len(plan.services)} services"
    return f"Capacity review: {names} on {plan.fleet.name}"


def lead(plan: Plan) -> str:
    """The verdict's standing in one sentence."""
    how = (
        "Optimal within the model"
        if plan.status == "optimal"
        else f"Feasible, within {plan.solver.gap:.1%} of the bound"
    )
    v = plan.verification
    checked = "verified by event simulation" if v.by == "simulation" else "not verified by simulation"
    if v.failed:
        checked = f"not confirmed by event simulation: {'; '.join(v.failed)}"
    note = f" ({plan.verification.note})" if plan.verification.note else ""
    return f"{how}, {checked}{note}. Objective: {plan.solver.objective}."


def facts(plan: Plan) -> list[tuple[str, str, str, str]]:
    """(label, value, note, tone) of the headline."""
    t, miss = plan.totals, missed(plan)
    found = [
        ("GPUs", f"{t.gpus}", f"of {t.fleet_gpus} in these pools", ""),
        (
            "Cost",
            f"{show_money(t.cost)}/h",
            f"{show_money(t.committed)}/h of it is committed" if t.committed else "idle included",
            "",
        ),
        (
            "SLOs at peak",
            f"{len(miss)} missed" if miss else ("all met" if limited(plan) else "none asked"),
            f"of {len(limited(plan))}",
            "bad" if miss else ("good" if limited(plan) else ""),
        ),
    ]
    if t.odds is not None:
        tone = "good" if t.odds >= 0.8 else "warn" if t.odds >= 0.5 else "bad"
        found.append(("Odds that all hold", f"{t.odds:.0%}", "from the error bands", tone))
    if t.scale is not None:
        found.append(("Traffic carried", show_rate(carried_rate(plan)), "as much as the fleet carries", ""))
    if t.power is not None:
        found.append(("Power", f"{t.power / 1e3:.3g} kW", "bound from TDP", ""))
    return found


def carried_rate(plan: Plan) -> float:
    """Requests/s over all services; prefill pools carry the same requests again."""
    return sum(c.rate for s in plan.services for p in s.pools if p.role != "prefill" for c in p.classes)


POOL_COLUMNS = ("pool", "model", "layout", "replicas", "GPUs", "rate", "load", "caps")


def pool_rows(plan: Plan) -> list[Row]:
    """One row per pool."""
    return [
        (
            p.name,
            f"{s.model.id.rsplit('/', 1)[-1]} {s.model.precision}"
            + (f", KV {p.kv_dtype}" if p.kv_dtype != "bf16" else ""),
            shape_text(p),
            str(p.replicas),
            str(p.gpus),
            show_rate(p.rate),
            f"{p.load:.0%}",
            f"{p.max_num_seqs:,} seqs, {p.max_num_batched_tokens:,} tokens",
        )
        for s in plan.services
        for p in s.pools
    ]


def change_lines(plan: Plan) -> list[str]:
    """What differs from what runs today."""
    c = plan.change
    if c is None:
        return ["The intent names no baseline, so nothing is compared with what runs today."]
    gpus = f"{abs(c.gpus)} GPUs {'fewer' if c.gpus < 0 else 'more'}" if c.gpus else "as many GPUs"
    more = "less" if c.cost_per_hour < 0 else "more"
    money = f"{show_money(abs(c.cost_per_hour))}/h {more}" if c.cost_per_hour else "the same cost"
    restarts = f"Restarts {', '.join(c.restarts)}." if c.restarts else "Restarts nothing."
    return [f"Against {c.baseline}: {gpus}, {money}. {restarts}"]


SLO_COLUMNS = ("SLO", "limit", "predicted", "80% band", "verdict", "checked by")


def _verdict(f: Figure) -> str:
    assert f.limit is not None
    if f.value > f.limit:
        return f"MISS by {show_time(f.value - f.limit)}"
    slack = (f.limit - f.value) / f.limit
    return f"meets, {slack:.0%} slack" + ("" if f.high <= f.limit else "; band reaches past it")


def slo_rows(plan: Plan) -> list[Row]:
    """Each promise beside its prediction."""
    return [
        (
            p.label,
            show_time(p.figure.limit or 0.0),
            show_time(p.figure.value),
            f"{show_time(p.figure.low)} to {show_time(p.figure.high)}",
            _verdict(p.figure),
            p.figure.checked_by,
        )
        for p in limited(plan)
    ]


def promises(plan: Plan) -> list[Promise]:
    """The same as numbers, for the chart."""
    return [
        Promise(
            label=p.label,
            limit_s=p.figure.limit or 0.0,
            value_s=p.figure.value,
            low_s=p.figure.low,
            high_s=p.figure.high,
            simulated_s=p.figure.simulated,
            shown=(
                show_time(p.figure.limit or 0.0),
                show_time(p.figure.value),
                f"{show_time(p.figure.low)} to {show_time(p.figure.high)}",
                show_time(p.figure.simulated) if p.figure.simulated is not None else "none",
                p.figure.method,
            ),
        )
        for p in limited(plan)
    ]


def distributions(plan: Plan) -> list[tuple[str, list[Quantile], tuple[float, float] | None, str]]:
    """(label, percentiles, promised corner, its words) of each metric of which three or more percentiles are known."""
    groups: dict[tuple[str, str, str, str], list[Predicted]] = {}
    for p in predicted(plan):
        metric = p.figure.metric.partition(".")[0]
        groups.setdefault((p.service.name, p.pool.name, p.cls.name, metric), []).append(p)
    found = []
    for key, members in groups.items():
        quantiles = sorted(
            (
                Quantile(
                    f.metric.partition(".")[2],
                    float(f.metric.partition(".")[2][1:]) / 100,
                    f.value,
                    f.low,
                    f.high,
                    f.simulated,
                    f"{show_time(f.value)} ({show_time(f.low)} to {show_time(f.high)})",
                )
                for m in members
                if (f := m.figure).metric.partition(".")[2] != "mean"
            ),
            key=lambda q: q.share,
        )
        if len(quantiles) < 3:
            continue
        label = members[0].label.rsplit(" ", 1)[0]
        promised = [m.figure for m in members if m.figure.limit is not None and not m.figure.metric.endswith("mean")]
        corner = None
        words = ""
        if promised and promised[0].limit is not None:
            stat = promised[0].metric.partition(".")[2]
            corner = (promised[0].limit, float(stat[1:]) / 100)
            words = f"; promised {stat} {show_time(promised[0].limit)}"
        assert key
        found.append((label, quantiles, corner, words))
    return found


BAD_DAY_COLUMNS = ("what happens", "service", "load", "SLOs", "by")


def bad_day_rows(plan: Plan) -> list[Row]:
    """What holds when something breaks."""
    return [
        (d.name, d.service, f"{d.load:.0%}", "hold" if not d.misses else f"MISS: {'; '.join(d.misses)}", d.method)
        for d in plan.bad_days
    ]


def odds_lines(plan: Plan) -> list[str]:
    """How likely the promises hold, and what would raise that."""
    t = plan.totals
    if t.odds is None:
        return ["No odds were computed: " + (t.odds_note or "the plan has no promise or no error band") + "."]
    lines = [
        f"All promises hold at peak with probability {t.odds:.0%}: the share of the step model's error band, and of "
        "the simulation's spread, in which every one of them is met."
    ]
    if t.odds_note:
        lines.append(t.odds_note[:1].upper() + t.odds_note[1:].rstrip(".") + ".")
    return lines


REASON_COLUMNS = ("decision", "reason")


def reason_rows(pool: PoolDoc) -> list[Row]:
    """Why each cap and shape, as it stands in the rendered files."""
    return [(k.replace("_", " ") if " " in k else k, v) for k, v in pool.reasons.items()]


CACHE_COLUMNS = ("pool", "runs, mean", "runs, p99", "SLO and cap allow", "cache holds", "cache used, p99", "MBU", "MFU")


def cache_rows(plan: Plan) -> list[Row]:
    """Both limits of concurrency, and how much of each is used."""
    return [
        (
            p.name,
            f"{p.running_mean:.1f}",
            f"{p.running_p99:.0f}",
            f"{p.max_num_seqs:,}",
            f"{p.kv_sequences:,.0f} ({show_count(p.kv_tokens)} tokens)",
            f"{p.kv_use_p99:.0%}",
            f"{p.mbu:.0%}",
            f"{p.mfu:.0%}",
        )
        for s in plan.services
        for p in s.pools
    ]


def memory_parts(plan: Plan) -> list[MemoryPart]:
    """One GPU's memory by pool; what the engine may not take stands last."""
    found = []
    for s in plan.services:
        for p in s.pools:
            m = p.memory
            rest = max(0.0, m.total - m.weights - m.activations - m.cuda_graphs - m.overhead - m.kv_cache)
            for part, role, size in (
                ("weights", "weights", m.weights),
                ("KV cache", "kv", m.kv_cache),
                ("activations", "compute", m.activations),
                ("CUDA graphs", "chosen", m.cuda_graphs),
                ("context, links", "other", m.overhead),
                ("left free", "band", rest),
            ):
                found.append(MemoryPart(p.name, part, size / 1e9, role, show_bytes(size)))
    return found


COST_COLUMNS = (
    "service",
    "per hour",
    "per million output tokens",
    "per million input tokens",
    "output tokens, daily mean",
)


def cost_rows(plan: Plan) -> list[Row]:
    """Whole service cost over output, and over input tokens: the two are not additive."""
    return [
        (
            s.name,
            show_money(s.cost.per_hour),
            show_money(s.cost.per_million_output_tokens),
            show_money(s.cost.per_million_input_tokens),
            show_money(s.cost.per_million_output_tokens_daily_mean)
            if s.cost.per_million_output_tokens_daily_mean is not None
            else "no daily low given",
        )
        for s in plan.services
    ]


ALTERNATIVE_COLUMNS = ("service", "what", "reason")


def alternative_rows(plan: Plan) -> list[Row]:
    """Runners-up and what binds."""
    rows: list[Row] = []
    for s in plan.services:
        if s.runner_up:
            rows.append((s.name, "runner-up", s.runner_up))
        rows += [(s.name, "bound by", b) for b in s.bound_by]
        rows += [(s.name, "why this one", w) for w in s.why]
    return rows


def lists(plan: Plan) -> list[tuple[str, tuple[str, ...]]]:
    """Assumptions, warnings, what to measure first."""
    accuracy = tuple(
        f"{s.name}: {s.model.id} in {s.model.precision} keeps {s.model.accuracy_prior:.1%} of its accuracy"
        + (
            f" ({s.model.accuracy_low:.1%} to {s.model.accuracy_high:.1%})"
            if s.model.accuracy_low is not None and s.model.accuracy_high is not None
            else ""
        )
        + (f", a prior: {s.model.accuracy_source}" if s.model.accuracy_source else ", a prior")
        for s in plan.services
        if s.model.accuracy_prior is not None
    )
    every = (
        ("Assumptions", plan.assumed),
        ("Warnings", plan.warnings),
        ("Accuracy", accuracy),
        ("Measure first", plan.measure_first),
    )
    return [(t, entries) for t, entries in every if entries]


def version_rows(plan: Plan) -> list[Row]:
    """What the plan was made with."""
    rows: list[Row] = [
        ("planner", plan.planner_version),
        ("solver", f"{plan.solver.name} {plan.solver.version}, gap {plan.solver.gap:.2%}"),
    ]
    rows += [(f"engine of {s.name}", f"{s.engine} {s.engine_version}, target {s.target}") for s in plan.services]
    rows += [(f"digest of the {k}", v.removeprefix("sha256:")[:16]) for k, v in plan.digests.model_dump().items()]
    return rows
