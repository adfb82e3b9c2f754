"""The capacity review: a plan as one self-contained page, or as Markdown with SVG charts beside it.

    review_html(plan, evidence) -> text            no network, light and dark, printable
    review_markdown(plan, evidence) -> (text, {file name: SVG})

Both say the same in the same order: verdict, change from today, promises, bad days, odds, decisions, evidence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from planner.data import shipped
from planner.documents import dump_yaml
from planner.plan.document import Plan, PoolDoc
from planner.report import content
from planner.report.charts import (
    MemoryPart,
    Promise,
    SweepPoint,
    distribution_chart,
    frontier_chart,
    memory_chart,
    roofline_chart,
    slo_chart,
    step_of,
    sweep_chart,
)
from planner.report.diff_view import md_table
from planner.report.evidence import Evidence, PoolEvidence, Steps
from planner.report.vega import Chart, altair
from planner.report.view import Fact, Listing, PoolView, Section, figure, table
from planner.units import show_money

if TYPE_CHECKING:
    import jinja2

SECTIONS = (
    ("verdict", "Verdict"),
    ("change", "Change from today"),
    ("slos", "SLOs"),
    ("bad-days", "Bad days"),
    ("odds", "Odds"),
    ("decide", "Decide"),
    ("explore", "Where time goes"),
    ("evidence", "Evidence"),
    ("inputs", "Inputs"),
)
MOST_DRAWN = 4
"""Pools whose charts are drawn, the largest ones: a page of many services stays small. The others keep their tables."""
MOST_EXPLORED = 8
MOST_BARS = 16
"""Rows of a bar chart: promises with the least slack, pools with the most GPUs."""
ITL_NOTE = (
    "p99 ITL pools all gaps between tokens of a class. It is modelled and checked by simulation, not measured: "
    "there is no public measurement of it to speak of."
)


def review_html(plan: Plan, evidence: Evidence) -> str:
    """The page."""
    altair()
    environment = _environment()
    template = environment.get_template("review/review.html.j2")
    macros = environment.get_template("review/macros.html.j2")
    return template.render(r=_context(plan, evidence), m=macros.module)


def review_markdown(plan: Plan, evidence: Evidence) -> tuple[str, dict[str, str]]:
    """The same for a pull request or wiki; images are the SVG files returned beside it."""
    images: dict[str, str] = {}

    def image(chart: Chart) -> str:
        name = f"{chart.name}.svg"
        images[name] = chart.svg("wide")
        text = chart.alt.replace("[", "(").replace("]", ")")
        return f"![{text}]({name})\n"

    parts = [f"# {content.title(plan)}\n", f"{content.lead(plan)}\n"]
    parts.append(
        md_table(("", "", ""), [(f"**{label}**", value, note) for label, value, note, _ in content.facts(plan)])
    )
    parts.append(md_table(content.POOL_COLUMNS, content.pool_rows(plan), (3, 4, 5, 6)))
    parts += ["## Change from today\n", *(f"{line}\n" for line in content.change_lines(plan))]
    parts += ["## SLOs\n", md_table(content.SLO_COLUMNS, content.slo_rows(plan), (1, 2, 3))]
    if content.promises(plan):
        parts.append(image(slo_chart(_tightest(content.promises(plan)))))
    parts += [image(c) for c in _distributions(plan)]
    parts.append("## Bad days\n")
    parts.append(
        md_table(content.BAD_DAY_COLUMNS, content.bad_day_rows(plan), (2,)) if plan.bad_days else "None computed.\n"
    )
    parts += ["## Odds\n", *(f"{line}\n" for line in content.odds_lines(plan))]
    parts += [
        "## What you must decide\n",
        "\n".join(f"- {d}" for d in plan.decide) + "\n" if plan.decide else "Nothing.\n",
    ]
    parts.append("## Evidence\n")
    drawn = _largest(plan, evidence, MOST_DRAWN)
    for e in evidence.pools:
        parts += [
            f"### {e.pool}\n",
            f"{_note(e)}\n",
            *(image(c) for c in (_pool_charts(plan, e) if e in drawn else ())),
        ]
        rows = content.reason_rows(_pool(plan, e.pool))
        if rows:
            parts.append(md_table(content.REASON_COLUMNS, rows))
    parts += ["### Memory and cache\n", image(memory_chart(_memory(plan)))]
    parts.append(md_table(content.CACHE_COLUMNS, content.cache_rows(plan), (1, 2, 3, 4, 5, 6, 7)))
    parts += ["### Cost\n", md_table(content.COST_COLUMNS, content.cost_rows(plan), (1, 2, 3, 4))]
    lost = _alternatives(plan, evidence)
    if lost:
        parts += ["### What lost, what binds, and why\n", md_table(content.ALTERNATIVE_COLUMNS, lost)]
    for name, entries in content.lists(plan):
        parts += [f"### {name}\n", "\n".join(f"- {e}" for e in entries) + "\n"]
    parts += ["## Inputs and versions\n", md_table(("what", "which"), content.version_rows(plan))]
    return "\n".join(parts), images


def frontier_html(chart: Chart) -> str:
    """A page with the frontier alone, for `plan frontier -o frontier.html`."""
    environment = _environment()
    macros = environment.get_template("review/macros.html.j2")
    template = environment.get_template("review/chart.html.j2")
    return template.render(c=figure(chart), style=_file("style.css"), m=macros.module)


# ---------------------------------------------------------------- context


def _environment() -> jinja2.Environment:
    """The page's templates; what they place is escaped, what is missing stops them."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(shipped("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _file(name: str) -> Markup:
    return Markup((shipped("templates") / "review" / name).read_text(encoding="utf-8"))  # noqa: S704 - ships with us


def _pool(plan: Plan, name: str) -> PoolDoc:
    return next(p for s in plan.services for p in s.pools if p.name == name)


def _context(plan: Plan, evidence: Evidence) -> dict[str, Any]:
    promises, drawn = content.promises(plan), _largest(plan, evidence, MOST_DRAWN)
    return {
        "version": plan.planner_version,
        "title": content.title(plan),
        "lead": content.lead(plan),
        "style": _file("style.css"),
        "script": _file("page.js"),
        "sections": [Section(*s) for s in SECTIONS],
        "facts": [Fact(*f) for f in content.facts(plan)],
        "pools": table(
            "The answer, pool by pool", content.POOL_COLUMNS, content.pool_rows(plan), right=(3, 4, 5, 6), stack=True
        ),
        "change": content.change_lines(plan),
        "slos": table(
            "Each promise beside its prediction",
            content.SLO_COLUMNS,
            content.slo_rows(plan),
            right=(1, 2, 3),
            stack=True,
        ),
        "slo_chart": figure(slo_chart(_tightest(promises))) if promises else None,
        "itl_note": ITL_NOTE
        if any(".p99" in p.figure.metric and p.figure.metric.startswith("itl") for p in content.limited(plan))
        else "",
        "distributions": [figure(c) for c in _distributions(plan)],
        "bad_days": table(
            "What holds when something breaks",
            content.BAD_DAY_COLUMNS,
            content.bad_day_rows(plan),
            right=(2,),
            stack=True,
        ),
        "odds": content.odds_lines(plan),
        "decide": plan.decide,
        "explorer": [e.pool for e in _largest(plan, evidence, MOST_EXPLORED)],
        "explorer_note": "; with attention data parallelism, of one rank"
        if any(p.shape.dp > 1 for s in plan.services for p in s.pools)
        else "",
        "evidence": [_pool_view(plan, e, drawn=e in drawn) for e in evidence.pools],
        "memory": figure(memory_chart(_memory(plan))),
        "cache": table(
            "Concurrency: what runs, what promises and caps allow, what the cache holds",
            content.CACHE_COLUMNS,
            content.cache_rows(plan),
            right=range(1, 8),
            stack=True,
        ),
        "cost": table(
            "Whole service cost, idle included, at peak; the two per-token prices are not additive",
            content.COST_COLUMNS,
            content.cost_rows(plan),
            right=(1, 2, 3, 4),
            stack=True,
        ),
        "alternatives": table(
            "Runners-up, binding rules and reasons",
            content.ALTERNATIVE_COLUMNS,
            _alternatives(plan, evidence),
            stack=True,
        ),
        "lists": [Listing(t, e) for t, e in content.lists(plan)],
        "versions": table("What the plan was made with", ("what", "which"), content.version_rows(plan), stack=True),
        "intent": dump_yaml(
            {
                "intent": plan.intent.model_dump(mode="json", exclude_none=True),
                "fleet": plan.fleet.model_dump(mode="json", exclude_none=True),
            }
        ),
        "steps": Markup(json.dumps(_explorer(plan, evidence), separators=(",", ":")).replace("<", "\\u003c")),  # noqa: S704
    }


def _distributions(plan: Plan) -> list[Chart]:
    found = []
    for i, (label, quantiles, corner, words) in enumerate(content.distributions(plan)[: 2 * MOST_DRAWN]):
        seconds = quantiles[-1].value_s >= 1.0
        unit_s, unit = (1.0, "s") if seconds else (1e-3, "ms")
        found.append(
            distribution_chart(
                f"distribution-{i + 1}", label, quantiles, unit_s=unit_s, unit=unit, limit=corner, limit_text=words
            )
        )
    return found


def _pool_charts(plan: Plan, e: PoolEvidence) -> list[Chart]:
    pool = _pool(plan, e.pool)
    charts = []
    if pool.role != "prefill":
        limits = [
            f.limit for c in pool.classes for f in c.figures if f.limit is not None and f.metric.startswith("itl.")
        ]
        charts.append(
            sweep_chart(
                f"sweep-{e.pool}",
                f"{e.pool}, {e.context_tokens:,} tokens of context",
                _shown(e.sweep, pool.max_num_seqs, min(limits, default=None)),
                cap=pool.max_num_seqs,
                running=pool.running_mean,
                itl_limit_s=min(limits) if limits else None,
            )
        )
    charts.append(
        roofline_chart(
            f"roofline-{e.pool}",
            f"{e.pool} on {e.gpu}",
            e.roofline,
            peak_flop_per_s=e.peak_flop_per_s,
            hbm_bytes_per_s=e.hbm_bytes_per_s,
            precision=e.peak_format,
        )
    )
    if e.frontier:
        charts.append(
            frontier_chart(
                e.frontier, name=f"frontier-{e.pool}", title=f"{e.pool}: speed per user against yield per GPU"
            )
        )
    return charts


def _shown(points: Sequence[SweepPoint], cap: int, limit_s: float | None) -> list[SweepPoint]:
    """The part of the sweep that matters: up to twice the cap, or to where a step alone breaks the limit."""
    past = next((p.batch for p in points if limit_s is not None and step_of(p) > limit_s), 0)
    most = max(2 * cap, min(past, 4 * cap), 16)
    return [p for p in points if p.batch <= most]


def _largest(plan: Plan, evidence: Evidence, most: int) -> list[PoolEvidence]:
    """The pools with the most GPUs, in the plan's order."""
    by_size = sorted(evidence.pools, key=lambda e: (-_pool(plan, e.pool).gpus, e.pool))[:most]
    return [e for e in evidence.pools if e in by_size]


def _tightest(promises: list[Promise]) -> list[Promise]:
    """The promises nearest to their limits, in the plan's order."""
    kept = sorted(promises, key=lambda p: -p.value_s / p.limit_s)[:MOST_BARS]
    return [p for p in promises if p in kept]


def _memory(plan: Plan) -> list[MemoryPart]:
    pools = sorted((p for s in plan.services for p in s.pools), key=lambda p: -p.gpus)[:MOST_BARS]
    names = {p.name for p in pools}
    return [m for m in content.memory_parts(plan) if m.pool in names]


def _note(e: PoolEvidence) -> str:
    warning = f" Warning: {e.warning}." if e.warning else ""
    return f"{e.gpu}, planned as {e.planned}; step model calibrated by {e.calibration}.{warning}"


def _pool_view(plan: Plan, e: PoolEvidence, *, drawn: bool) -> PoolView:
    reasons = table(
        f"Decisions of {e.pool}, as the rendered files say them",
        content.REASON_COLUMNS,
        content.reason_rows(_pool(plan, e.pool)),
        stack=True,
    )
    return PoolView(e.pool, _note(e), tuple(figure(c) for c in _pool_charts(plan, e)) if drawn else (), reasons)


def _alternatives(plan: Plan, evidence: Evidence) -> list[tuple[str, ...]]:
    rows = content.alternative_rows(plan)
    for a in evidence.alternatives:
        cost = f", {show_money(a.dollars_per_hour)}/h" if a.dollars_per_hour is not None else ""
        gpus = f": {a.gpus} GPUs" if a.gpus is not None else ""
        rows.append((a.service, f"{a.label}{gpus}{cost}", a.why_it_lost))
    return rows


def _explorer(plan: Plan, evidence: Evidence) -> dict[str, Any]:
    pools = []
    for e in _largest(plan, evidence, MOST_EXPLORED):
        pool = _pool(plan, e.pool)
        limits = [
            f.limit for c in pool.classes for f in c.figures if f.limit is not None and f.metric.startswith("itl.")
        ]
        pools.append(
            {
                "pool": e.pool,
                "gpu": e.gpu,
                "role": pool.role,
                "planned": e.planned,
                "context": e.context_tokens,
                "running": max(1.0, pool.running_mean),
                "budget": pool.max_num_batched_tokens,
                "itl_limit": min(limits) if limits else None,
                "steps": [_steps(s) for s in e.steps],
            }
        )
    return {"pools": pools}


def _steps(s: Steps) -> dict[str, Any]:
    def short(values: tuple[float, ...]) -> list[float]:
        return [float(f"{v:.4g}") for v in values]

    ranks = int(s.layout.split("dp")[1].split()[0]) if "dp" in s.layout else 1
    return {
        "key": s.key,
        "precision": s.precision,
        "layout": s.layout,
        "gpus": s.gpus,
        "ranks": ranks,
        "batches": s.batches,
        "contexts": s.contexts,
        "chunks": s.chunks,
        "weights": short(s.weights_s),
        "compute": short(s.compute_s),
        "fixed": short(s.fixed_s),
        "linear": short(s.linear_s),
        "kv": [short(row) for row in s.kv_s],
        "prefill_weights": short(s.prefill_weights_s),
        "prefill_compute": short(s.prefill_compute_s),
        "prefill_fixed": short(s.prefill_fixed_s),
        "prefill_linear": short(s.prefill_linear_s),
        "prefill_attention": short(s.prefill_attention_s),
        "fits": s.fits,
        "crossover": s.crossover,
        "prefill_crossover": s.prefill_crossover,
    }


__all__ = ["frontier_html", "review_html", "review_markdown"]
