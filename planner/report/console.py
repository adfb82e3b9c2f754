"""A plan as people read it in a terminal: verdict, change from today, SLOs, bad days, what to decide, why.

Plain text for a given width; colour is the command line's business. Every figure stands beside its limit.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from planner.plan.document import BadDay, Figure, Plan, PoolDoc, ServiceDoc
from planner.units import show_money, show_rate, show_time

LABELS = (
    "DEFAULT", "PLAN", "TODAY", "BAD DAYS", "WHY", "BOUND", "INSTEAD", "DECIDE", "WARNING", "ASSUMED", "MEASURE",
    "CAPS",
    "SLO",
)  # fmt: skip


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, width: int, right: Sequence[int] = ()) -> str:
    """A table without lines, wrapped to `width`; columns in `right` are right-aligned."""
    t = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(headers))
    for i, header in enumerate(headers):
        t.add_column(
            header, justify="right" if i in right else "left", overflow="fold", no_wrap=i in right, header_style=""
        )
    for row in rows:
        t.add_row(*row)
    out = io.StringIO()
    Console(
        file=out, width=width, color_system=None, highlight=False, markup=False, emoji=False, legacy_windows=False
    ).print(t)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def paragraph(label: str, items: Iterable[str], width: int) -> list[str]:
    """`LABEL item · item`, wrapped and indented under the label."""
    lines: list[str] = []
    head = f"{label} "
    for item in items:
        lines += textwrap.wrap(
            item,
            width,
            initial_indent=head.ljust(8),
            subsequent_indent=" " * 8,
            break_long_words=False,
            break_on_hyphens=False,
        )
        head = ""
    return lines


def plan_text(plan: Plan, *, width: int = 100) -> str:
    """The whole answer for a terminal of `width` columns."""
    width = max(60, min(width, 140))
    blocks = ["\n".join(paragraph("DEFAULT", plan.defaults, width))] if plan.defaults else []
    blocks += [_verdict(plan, width), _services(plan, width), _slos(plan, width)]
    if plan.bad_days:
        blocks.append(_bad_days(plan.bad_days, width))
    tail: list[str] = []
    for service in plan.services:
        name = f"{service.name}: " if len(plan.services) > 1 else ""
        tail += paragraph("WHY", [name + w for w in service.why], width)
        if service.bound_by:
            tail += paragraph("BOUND", [name + b for b in service.bound_by], width)
        if service.runner_up:
            tail += paragraph("INSTEAD", [name + service.runner_up], width)
    for label, items in (
        ("DECIDE", plan.decide),
        ("WARNING", plan.warnings),
        ("ASSUMED", plan.assumed),
        ("MEASURE", plan.measure_first),
    ):
        tail += paragraph(label, items, width)
    blocks.append("\n".join(tail))
    return "\n\n".join(b for b in blocks if b)


def _verdict(plan: Plan, width: int) -> str:
    names = " + ".join(s.name for s in plan.services)
    if len(names) > width - 40:
        names = f"{len(plan.services)} services"
    how = {"optimal": "optimal within the model", "feasible": f"feasible, gap {plan.solver.gap:.1%}"}[plan.status]
    if plan.verification.failed:
        how += ", NOT CONFIRMED by simulation"
    else:
        how += ", verified by simulation" if plan.verification.by == "simulation" else ", not verified"
    head = f"PLAN  {names} on {plan.fleet.name}"
    # The verdict stands at the right edge where it fits, on a line of its own where not.
    first = head + how.rjust(width - len(head)) if len(head) + len(how) + 2 <= width else f"{head}\n      {how}"
    t = plan.totals
    facts = [f"{t.gpus} of {t.fleet_gpus} GPUs", f"{show_money(t.cost)}/h"]
    if t.scale is not None:
        rate = sum(c.rate for s in plan.services for p in s.pools if p.role != "prefill" for c in p.classes)
        facts.append(f"carries {show_rate(rate)}")
    missed = [f for _, _, f in _limited(plan) if f.limit is not None and f.value > f.limit] or plan.verification.failed
    facts.append("all SLOs met at peak" if not missed else f"{len(missed)} SLO{'s' if len(missed) > 1 else ''} MISSED")
    if t.odds is not None:
        facts.append(f"odds {t.odds:.0%}")
    lines = [first, "   ".join(facts)]
    if t.committed:
        lines.append(f"of which {show_money(t.committed)}/h is committed and counts as sunk")
    if plan.change is not None:
        c = plan.change
        restarts = f"restarts {', '.join(c.restarts)}" if c.restarts else "restarts nothing"
        money = f"{'-' if c.cost_per_hour < 0 else '+'}{show_money(abs(c.cost_per_hour))}/h"
        lines.append(f"TODAY {c.baseline}   change: {c.gpus:+d} GPUs, {money}, {restarts}")
    return "\n".join(lines)


def shape_text(pool: PoolDoc) -> str:
    """`h100-sxm tp4`, `b200-sxm dp8 ep`."""
    s = pool.shape
    parts = [pool.gpu, f"tp{s.tp}"]
    parts += [f"pp{s.pp}"] if s.pp > 1 else []
    parts += [f"dp{s.dp}"] if s.dp > 1 else []
    parts += ["ep"] if s.ep else []
    return " ".join(parts)


def _services(plan: Plan, width: int) -> str:
    rows = []
    for service in plan.services:
        for pool in service.pools:
            rows.append(
                (
                    pool.name,
                    f"{service.model.id.rsplit('/', 1)[-1]} {service.model.precision}",
                    shape_text(pool),
                    str(pool.replicas),
                    str(pool.gpus),
                    show_rate(pool.rate),
                    f"{pool.load:.0%}",
                )
            )
    block = table(("pool", "model", "shape", "replicas", "GPUs", "rate", "load"), rows, width=width, right=(3, 4, 5, 6))
    several = sum(len(s.pools) for s in plan.services) > 1
    caps: list[str] = []
    for service in plan.services:
        for p in service.pools:
            name = f"{p.name}: " if several else ""
            caps += paragraph("" if caps else "CAPS", [name + caps_text(service, p)], width)
    return block + "\n\n" + "\n".join(caps)


def caps_text(service: ServiceDoc, pool: PoolDoc) -> str:
    """`256 sequences (runs 103, p99 168; cache holds 269) · steps of 512 tokens · ...`"""
    return (
        f"max_num_seqs {pool.max_num_seqs:,} (runs {pool.running_mean:.0f}, p99 {pool.running_p99:.0f}; cache holds "
        f"{pool.kv_sequences:,.0f}) · max_num_batched_tokens {pool.max_num_batched_tokens:,} · "
        f"max_model_len {pool.max_model_len:,} · KV {pool.kv_dtype} · {service.engine} {service.engine_version}"
    )


def _limited(plan: Plan) -> list[tuple[str, str, Figure]]:
    """(pool, class, figure) of every figure that has a limit, or the headline ones where none has."""
    every = [(p.name, c.name, f) for s in plan.services for p in s.pools for c in p.classes for f in c.figures]
    return [e for e in every if e[2].limit is not None]


def figure_name(metric: str) -> str:
    """`itl.p99` -> `ITL p99`; ITL says what it pools.

    >>> figure_name("ttft.mean")
    'TTFT mean'
    """
    name, _, stat = metric.partition(".")
    return f"{name.upper()} {stat}"


def _slos(plan: Plan, width: int) -> str:
    rows = []
    several = sum(len(p.classes) for s in plan.services for p in s.pools) > 1
    for service in plan.services:
        for pool in service.pools:
            for cls in pool.classes:
                who = " ".join([pool.name, *([cls.name] if cls.name != "default" else [])])
                for f in cls.figures:
                    if f.limit is None and not _headline(f, service):
                        continue
                    shown = f"{show_time(f.value)} ({show_time(f.low)}-{show_time(f.high)})"
                    verdict = "" if f.limit is None else ("meets" if f.value <= f.limit else "MISSES")
                    limit = show_time(f.limit) if f.limit is not None else "-"
                    cells = (figure_name(f.metric), limit, shown, verdict, f.checked_by)
                    rows.append((*([who] if several else []), *cells))
    headers = ("SLO", *([""] if several else []), "limit", "plan (80% band)", "", "by")
    return table(headers, rows, width=width, right=(2 if several else 1,))


def _headline(figure: Figure, service: ServiceDoc) -> bool:
    """Figures shown although nobody limited them: the means, so that the reader sees the usual case too."""
    return figure.metric in ("ttft.p95", "tpot.mean")


def _bad_days(days: Sequence[BadDay], width: int) -> str:
    several = len({d.service for d in days}) > 1
    rows = []
    for day in days:
        verdict = "hold" if not day.misses else "MISSES " + "; ".join(day.misses)
        rows.append((day.name, *([day.service] if several else []), f"{day.load:.0%}", verdict))
    return table(
        ("BAD DAYS", *([""] if several else []), "load", "SLOs"), rows, width=width, right=(2 if several else 1,)
    )
