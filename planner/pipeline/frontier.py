"""The fronts of a plan's services, the chosen point among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from planner.candidates.frontier import Frontier, FrontierPoint
from planner.candidates.frontier import frontier as front_of
from planner.errors import UserError, did_you_mean
from planner.intent.resolve import load_fleet
from planner.pipeline.question import question_from, question_of
from planner.plan.document import Plan, ServiceDoc
from planner.report.charts import FrontierPoint as Mark
from planner.report.charts import frontier_chart
from planner.report.console import shape_text, table
from planner.report.review import frontier_html
from planner.units import show_money, show_time


@dataclass(frozen=True, slots=True)
class ServiceFronts:
    """One service's fronts and where its plan stands."""

    service: str
    fronts: Frontier
    chosen_label: str
    chosen_user_tokens_per_s: float
    chosen_gpu_tokens_per_s: float
    chosen_ttft_p99_s: float | None
    chosen_dollars_per_million_tokens: float

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def fronts(plan: Plan, *, fleet: Path | None = None, service: str | None = None) -> tuple[ServiceFronts, ...]:
    """Fronts of every service (or one) over the plan's pools, or over a whole fleet file."""
    names = [s.name for s in plan.services]
    if service is not None and service not in names:
        raise UserError(
            "unknown-service", f"no service {service!r} in this plan", None, (), did_you_mean(service, names)
        )
    question = question_of(plan)
    if fleet is not None:
        question = replace(question_from(plan.intent, load_fleet(fleet), plan.platform))
    found = []
    for s in plan.services:
        if service in (None, s.name):
            ask = next(a for a in question.asks if a.name == s.name)
            found.append(_chosen(s, front_of(ask)))
    return tuple(found)


def _chosen(service: ServiceDoc, front: Frontier) -> ServiceFronts:
    pools = [p for p in service.pools if p.role != "prefill"]
    main = max(pools, key=lambda p: p.gpus)
    figures = {f.metric: f.value for c in main.classes for f in c.figures}
    first = {f.metric: f.value for p in service.pools if p.role != "decode" for c in p.classes for f in c.figures}
    tokens = sum(c.rate * c.output_mean_tokens for p in pools for c in p.classes)
    itl = figures.get("itl.mean") or figures.get("tpot.mean")
    return ServiceFronts(
        service=service.name,
        fronts=front,
        chosen_label=f"{shape_text(main)} {service.model.precision}",
        chosen_user_tokens_per_s=1 / itl if itl else 0.0,
        chosen_gpu_tokens_per_s=tokens / sum(p.gpus for p in service.pools),
        chosen_ttft_p99_s=first.get("ttft.p99"),
        chosen_dollars_per_million_tokens=service.cost.per_million_output_tokens,
    )


def fronts_text(found: Sequence[ServiceFronts], *, width: int = 100) -> str:
    """Both fronts of each service for a terminal."""
    return "\n\n".join(_text(f, max(60, min(width, 140))) for f in found)


def _text(f: ServiceFronts, width: int) -> str:
    def row(p: FrontierPoint, *, last: str) -> tuple[str, ...]:
        return (
            f"{p.gpu} {p.shape} {p.precision}",
            f"{p.max_num_batched_tokens:,}",
            f"{p.rate_rps:.3g}/s",
            f"{p.user_tokens_per_s:.0f}",
            f"{p.gpu_tokens_per_s:,.0f}",
            show_time(p.ttft_p99_s),
            last,
        )

    money = f"{show_money(f.chosen_dollars_per_million_tokens)}"
    ttft = show_time(f.chosen_ttft_p99_s) if f.chosen_ttft_p99_s is not None else "-"
    chosen = (
        f"{f.chosen_label} (the plan)", "", "", f"{f.chosen_user_tokens_per_s:.0f}",
        f"{f.chosen_gpu_tokens_per_s:,.0f}", ttft, money,
    )  # fmt: skip
    headers = ("one replica", "budget", "rate", "tok/s a user", "tok/s a GPU", "TTFT p99", "$/M out")
    right = (1, 2, 3, 4, 5, 6)
    speed = [row(p, last=show_money(p.dollars_per_million_tokens)) for p in f.fronts.speed]
    cost = [row(p, last=show_money(p.dollars_per_million_tokens)) for p in f.fronts.cost]
    return (
        f"FRONTIER  {f.service}: speed of one user against yield of one GPU\n"
        + table(headers, [chosen, *speed], width=width, right=right)
        + "\n\nCost against TTFT p99\n"
        + table(headers, [chosen, *cost], width=width, right=right)
    )


def picture(found: Sequence[ServiceFronts], *, page: bool) -> str:
    """The first front as SVG, or as a page of its own."""
    points: list[Mark] = []
    for f in found:
        points += [
            Mark(f"{p.precision} {p.gpu} {p.shape} batch {p.rate_rps:.2g}/s", p.user_tokens_per_s, p.gpu_tokens_per_s)
            for p in f.fronts.speed
        ]
        points.append(Mark(f"{f.service} batch plan", f.chosen_user_tokens_per_s, f.chosen_gpu_tokens_per_s, "chosen"))
    chart = frontier_chart(points)
    return frontier_html(chart) if page else chart.svg("wide")
