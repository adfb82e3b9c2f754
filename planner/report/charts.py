"""The charts of a review: what each shows, in which colours, with which words and numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from planner.report.vega import LINES, PALETTE, Chart, Column, Size, altair, both, short


@dataclass(frozen=True, slots=True)
class Promise:
    """One SLO beside its prediction."""

    label: str
    limit_s: float
    value_s: float
    low_s: float
    high_s: float
    simulated_s: float | None
    shown: tuple[str, ...]
    """limit, value, band, simulated, checked by: as text."""


def slo_chart(promises: Sequence[Promise]) -> Chart:
    """Every promise as a share of its limit: the band, the prediction, the simulation; past 100% is a miss."""
    alt = altair()
    values: list[dict[str, Any]] = [
        {
            "slo": p.label,
            "low": short(p.low_s / p.limit_s),
            "high": short(p.high_s / p.limit_s),
            "value": short(p.value_s / p.limit_s),
            "limit": 1.0,
        }
        | ({"simulated": short(p.simulated_s / p.limit_s)} if p.simulated_s is not None else {})
        for p in promises
    ]
    top = max(1.15, *(v["high"] * 1.03 for v in values))

    def build(size: Size, width: int, height: int) -> Any:
        base = alt.Chart(alt.Data(values=values), width=width, height=height)
        x = alt.X(
            "value:Q",
            title="share of the limit",
            axis=alt.Axis(format="%", tickCount=6),
            scale=alt.Scale(domain=[0, top]),
        )
        y = alt.Y(
            "slo:N",
            title=None,
            sort=None,
            axis=alt.Axis(labelLimit=180 if size == "wide" else 120, ticks=False, domain=False),
        )
        band = base.mark_bar(height=12, color=PALETTE["band"], cornerRadius=3).encode(
            x=alt.X(
                "low:Q",
                title="share of the limit",
                axis=alt.Axis(format="%", tickCount=6),
                scale=alt.Scale(domain=[0, top]),
            ),
            x2="high:Q",
            y=y,
        )
        point = base.mark_tick(thickness=3, size=20, color=PALETTE["weights"]).encode(x=x, y=y)
        simulated = (
            base.transform_filter("isValid(datum.simulated)")
            .mark_point(shape="diamond", filled=True, size=70, color=PALETTE["chosen"], opacity=1)
            .encode(x="simulated:Q", y=y)
        )
        limit = base.mark_rule(color=PALETTE["limit"], strokeWidth=2, strokeDash=[4, 3]).encode(x="limit:Q")
        return alt.layer(band, limit, point, simulated)

    each = 34
    return Chart(
        name="slo",
        title="Predicted latency as a share of each limit",
        alt="; ".join(f"{p.label}: {p.shown[1]} of {p.shown[0]}, 80% band {p.shown[2]}" for p in promises),
        specs=both(build, (each * len(values), each * len(values))),
        columns=(
            Column("SLO", right=False),
            Column("limit"),
            Column("predicted"),
            Column("80% band"),
            Column("simulated"),
            Column("checked by", right=False),
        ),
        rows=tuple((p.label, *p.shown) for p in promises),
    )


@dataclass(frozen=True, slots=True)
class Quantile:
    """One point of a latency distribution."""

    stat: str
    share: float
    value_s: float
    low_s: float
    high_s: float
    simulated_s: float | None
    shown: str


def nines(share: float) -> float:
    """A percentile's place on an axis that spreads the tail: -log10(1 - share).

    >>> nines(0.9), nines(0.99)
    (1.0, 2.0)
    """
    return round(-math.log10(max(1.0 - share, 1e-6)), 9)


def distribution_chart(
    name: str,
    label: str,
    quantiles: Sequence[Quantile],
    *,
    unit_s: float,
    unit: str,
    limit: tuple[float, float] | None,
    limit_text: str,
) -> Chart:
    """Latency against the share of requests that are at least as quick, with its band and the promised corner."""
    alt = altair()
    values: list[dict[str, Any]] = [
        {
            "at": nines(q.share),
            "value": short(q.value_s / unit_s),
            "low": short(q.low_s / unit_s),
            "high": short(q.high_s / unit_s),
            "stat": q.stat,
        }
        | ({"simulated": short(q.simulated_s / unit_s)} if q.simulated_s is not None else {})
        for q in quantiles
    ]
    corner = [] if limit is None else [{"at": nines(limit[1]), "limit": limit[0] / unit_s}]

    def build(size: Size, width: int, height: int) -> Any:
        base = alt.Chart(alt.Data(values=values), width=width if size == "narrow" else 330, height=height)
        # Nines: p50 at 0.3, p90 at 1, p99 at 2, so that the tail is not squeezed into the right edge.
        ticks = [nines(q) for q in (0.5, 0.9, 0.95, 0.99)]
        words = "{'0.3': 'p50', '1.0': 'p90', '1.3': 'p95', '2.0': 'p99'}[format(datum.value, '.1f')]"
        scale = alt.Scale(domain=[0.25, max(2.05, *(float(v["at"]) + 0.05 for v in values))])
        x = alt.X("at:Q", title=None, axis=alt.Axis(values=ticks, labelExpr=words), scale=scale)
        y = alt.Y("value:Q", title=unit, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5))
        band = base.mark_area(color=PALETTE["band"], opacity=0.6).encode(x=x, y=alt.Y("low:Q", title=unit), y2="high:Q")
        line = base.mark_line(color=PALETTE["weights"], strokeWidth=2.5).encode(x=x, y=y)
        points = base.mark_point(color=PALETTE["weights"], filled=True, size=45, opacity=1).encode(x=x, y=y)
        simulated = base.transform_filter("isValid(datum.simulated)").mark_point(
            shape="diamond", filled=True, size=60, color=PALETTE["chosen"], opacity=1
        )
        layers = [band, line, points, simulated.encode(x=x, y="simulated:Q")]
        if corner:
            promised = alt.Chart(alt.Data(values=corner))
            rule = promised.mark_rule(color=PALETTE["limit"], strokeDash=[4, 3], strokeWidth=2)
            mark = promised.mark_point(color=PALETTE["limit"], shape="square", size=90, strokeWidth=2)
            layers += [rule.encode(y="limit:Q"), mark.encode(x="at:Q", y="limit:Q")]
        return alt.layer(*layers)

    return Chart(
        name=name,
        title=f"{label}: percentiles",
        alt=f"{label} by share of requests: " + "; ".join(f"{q.stat} {q.shown}" for q in quantiles) + limit_text,
        specs=both(build, (180, 170)),
        columns=(Column("share of requests", right=False), Column("latency")),
        rows=tuple((q.stat, q.shown) for q in quantiles),
    )


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One batch size of the sweep: where a decode step's time goes, and what it yields."""

    batch: int
    weights_s: float
    """Share of the step that reading weights takes; parts add up to the step."""
    compute_s: float
    kv_s: float
    other_s: float
    tokens_per_s: float


def sweep_chart(
    name: str,
    label: str,
    points: Sequence[SweepPoint],
    *,
    cap: int | None,
    running: float | None,
    itl_limit_s: float | None,
) -> Chart:
    """A decode step by batch size, stacked by where the time goes, with the cap and the ITL limit."""
    alt = altair()
    parts = (
        ("matrices: weights", "weights"),
        ("matrices: arithmetic", "compute"),
        ("KV cache", "kv"),
        ("fixed, links, host", "other"),
    )
    values = [
        {"batch": str(p.batch), "part": title, "ms": short(getattr(p, f"{role}_s") * 1e3), "order": n}
        for p in points
        for n, (title, role) in enumerate(parts)
    ]

    def build(size: Size, width: int, height: int) -> Any:
        shown = points if size == "wide" else points[:: math.ceil(len(points) / 8)]
        kept = {str(p.batch) for p in shown}
        order = [str(p.batch) for p in shown]
        data = [v for v in values if v["batch"] in kept]
        x = alt.X("batch:O", sort=order, title="running sequences", axis=alt.Axis(labelAngle=0, ticks=False))
        legend = alt.Legend(title=None, columns=4 if size == "wide" else 2, labelLimit=150)
        bars = (
            alt.Chart(alt.Data(values=data), width=width, height=height)
            .mark_bar()
            .encode(
                x=x,
                y=alt.Y("ms:Q", title="milliseconds per step"),
                color=alt.Color(
                    "part:N",
                    scale=alt.Scale(domain=[t for t, _ in parts], range=[PALETTE[r] for _, r in parts]),
                    legend=legend,
                ),
                order=alt.Order("order:Q"),
            )
        )
        layers = [bars]
        if itl_limit_s is not None:
            rule = alt.Chart(alt.Data(values=[{"ms": itl_limit_s * 1e3}])).mark_rule(
                color=PALETTE["limit"], strokeDash=[4, 3], strokeWidth=2
            )
            layers.append(rule.encode(y="ms:Q"))
        marks = [("cap", cap), ("running", running)]
        for word, at in marks:
            if at is None:
                continue
            nearest = min(shown, key=lambda p: abs(p.batch - at))
            step = sum(getattr(nearest, f"{r}_s") for _, r in parts) * 1e3
            text = alt.Chart(alt.Data(values=[{"batch": str(nearest.batch), "ms": step, "word": word}]))
            layers.append(text.mark_text(dy=-9, fontWeight="bold", fontSize=11).encode(x=x, y="ms:Q", text="word:N"))
        return alt.layer(*layers)

    first, last = points[0], points[-1]
    return Chart(
        name=name,
        title=f"{label}: one decode step by batch size",
        alt=f"A step takes {_ms(first)} at batch {first.batch} and {_ms(last)} at batch {last.batch}.",
        specs=both(build, (230, 220)),
        columns=tuple(
            Column(t) for t in ("batch", "weights", "arithmetic", "KV cache", "fixed, links, host", "step", "tokens/s")
        ),
        rows=tuple(
            (
                str(p.batch),
                *(f"{getattr(p, f'{r}_s') * 1e3:.2f}ms" for _, r in parts),
                _ms(p),
                f"{p.tokens_per_s:,.0f}",
            )
            for p in points
        ),
    )


def step_of(p: SweepPoint) -> float:
    """Seconds of the whole step."""
    return p.weights_s + p.compute_s + p.kv_s + p.other_s


def _ms(p: SweepPoint) -> str:
    return f"{step_of(p) * 1e3:.2f}ms"


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One kind of step on the roofline of one GPU."""

    label: str
    intensity_flop_per_byte: float
    flop_per_s: float


def roofline_chart(
    name: str,
    label: str,
    points: Sequence[RooflinePoint],
    *,
    peak_flop_per_s: float,
    hbm_bytes_per_s: float,
    precision: str,
) -> Chart:
    """Arithmetic done per second against arithmetic per byte read, under the GPU's two roofs."""
    alt = altair()
    ridge = peak_flop_per_s / hbm_bytes_per_s
    low = min(1.0, *(p.intensity_flop_per_byte * 0.7 for p in points))
    high = max(ridge * 4, *(p.intensity_flop_per_byte * 1.5 for p in points))
    roof = [
        {"x": low, "y": low * hbm_bytes_per_s / 1e12},
        {"x": ridge, "y": peak_flop_per_s / 1e12},
        {"x": high, "y": peak_flop_per_s / 1e12},
    ]
    values: list[dict[str, Any]] = [
        {"x": short(p.intensity_flop_per_byte), "y": short(p.flop_per_s / 1e12), "label": p.label} for p in points
    ]

    def build(size: Size, width: int, height: int) -> Any:
        powers = [10.0**n for n in range(-2, 7)]
        log = alt.Scale(type="log")
        x = alt.X("x:Q", scale=log, title="FLOP per byte read", axis=alt.Axis(values=powers, format="~s"))
        y = alt.Y("y:Q", scale=log, title="TFLOP/s on one GPU", axis=alt.Axis(values=powers, format=",~g"))
        line = (
            alt.Chart(alt.Data(values=roof), width=width, height=height)
            .mark_line(color=PALETTE["muted"], strokeWidth=2)
            .encode(x=x, y=y)
        )
        # Words at the points would run into each other and the roof: colours and a legend name them.
        names = [str(v["label"]) for v in values]
        scale = alt.Scale(domain=names, range=[PALETTE[LINES[i % len(LINES)]] for i in range(len(names))])
        legend = alt.Legend(title=None, columns=3 if size == "wide" else 2, labelLimit=150)
        dots = alt.Chart(alt.Data(values=values)).mark_point(filled=True, size=110, opacity=1)
        dots = dots.encode(x=x, y=y, color=alt.Color("label:N", scale=scale, legend=legend))
        return alt.layer(line, dots)

    return Chart(
        name=name,
        title=f"{label}: roofline",
        alt=(
            f"The roof is {hbm_bytes_per_s / 1e12:.3g} TB/s up to {ridge:.0f} FLOP per byte, "
            f"then {peak_flop_per_s / 1e12:,.0f} TFLOP/s ({precision}). "
            + "; ".join(
                f"{p.label}: {p.intensity_flop_per_byte:.0f} FLOP per byte, {p.flop_per_s / 1e12:.0f} TFLOP/s"
                for p in points
            )
        ),
        specs=both(build, (240, 220)),
        columns=(Column("step", right=False), Column("FLOP per byte"), Column("TFLOP/s"), Column("of the roof")),
        rows=tuple(
            (
                p.label,
                f"{p.intensity_flop_per_byte:,.1f}",
                f"{p.flop_per_s / 1e12:,.1f}",
                f"{p.flop_per_s / min(peak_flop_per_s, p.intensity_flop_per_byte * hbm_bytes_per_s):.0%}",
            )
            for p in points
        ),
    )


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of one GPU's memory."""

    pool: str
    part: str
    gigabytes: float
    role: str
    shown: str


def memory_chart(parts: Sequence[MemoryPart]) -> Chart:
    """Where one GPU's memory goes, pool by pool."""
    alt = altair()
    names = list(dict.fromkeys(p.part for p in parts))
    colours = {p.part: PALETTE[p.role] for p in parts}
    pools = list(dict.fromkeys(p.pool for p in parts))
    values = [{"pool": p.pool, "part": p.part, "GB": p.gigabytes, "order": names.index(p.part)} for p in parts]

    def build(size: Size, width: int, height: int) -> Any:
        legend = alt.Legend(title=None, columns=6 if size == "wide" else 2)
        color = alt.Color("part:N", scale=alt.Scale(domain=names, range=[colours[n] for n in names]), legend=legend)
        return (
            alt.Chart(alt.Data(values=values), width=width, height=height)
            .mark_bar(height=20, stroke=PALETTE["grid"], strokeWidth=0.5)
            .encode(
                x=alt.X("GB:Q", title="GB of one GPU", axis=alt.Axis(tickCount=6)),
                y=alt.Y(
                    "pool:N",
                    sort=None,
                    title=None,
                    axis=alt.Axis(labelLimit=150 if size == "wide" else 90, ticks=False, domain=False),
                ),
                color=color,
                order=alt.Order("order:Q"),
            )
        )

    return Chart(
        name="memory",
        title="Memory of one GPU",
        alt="; ".join(
            f"{pool}: " + ", ".join(f"{p.part} {p.shown}" for p in parts if p.pool == pool) for pool in pools
        ),
        specs=both(build, (40 * len(pools), 40 * len(pools))),
        columns=(Column("pool", right=False), *(Column(n) for n in names)),
        rows=tuple(
            (pool, *(next((p.shown for p in parts if p.pool == pool and p.part == n), "none") for n in names))
            for pool in pools
        ),
    )


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One configuration: what a user gets and what a GPU yields."""

    label: str
    tokens_per_s_per_user: float
    tokens_per_s_per_gpu: float
    kind: Literal["candidate", "chosen", "today"] = "candidate"


def frontier_chart(points: Sequence[FrontierPoint], *, name: str = "frontier", title: str = "Frontier") -> Chart:
    """Throughput per GPU against speed per user; the chosen point and today's stand out."""
    alt = altair()
    marks = (("chosen", "chosen", "diamond", 170), ("today", "limit", "square", 110))
    values: list[dict[str, Any]] = []
    for p in points:
        shape = p.label.split(" batch ")[0]
        precision, _, layout = shape.partition(" ")
        values.append(
            {
                "user": short(p.tokens_per_s_per_user),
                "gpu": short(p.tokens_per_s_per_gpu),
                "shape": shape,
                "layout": layout or shape,
                "weights": precision,
                "kind": p.kind,
            }
        )
    layouts = list(dict.fromkeys(v["layout"] for v in values))
    precisions = list(dict.fromkeys(v["weights"] for v in values))
    dashes = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])

    def build(size: Size, width: int, height: int) -> Any:
        x = alt.X(
            "user:Q", title="output tokens/s for one user", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=7)
        )
        y = alt.Y("gpu:Q", title="output tokens/s per GPU", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=6))
        layers = []
        legend = alt.Legend(title=None, columns=6 if size == "wide" else 3, symbolType="stroke")
        color = alt.Color(
            "layout:N",
            scale=alt.Scale(domain=layouts, range=[PALETTE[LINES[i % len(LINES)]] for i in range(len(layouts))]),
            legend=legend,
        )
        dash = alt.StrokeDash(
            "weights:N",
            scale=alt.Scale(domain=precisions, range=[dashes[i % len(dashes)] for i in range(len(precisions))]),
            legend=legend if len(precisions) > 1 else None,
        )
        base = alt.Chart(alt.Data(values=[v for v in values if v["kind"] == "candidate"]), width=width, height=height)
        layers.append(
            base.mark_line(strokeWidth=1.8).encode(x=x, y=y, color=color, strokeDash=dash, order=alt.Order("user:Q"))
        )
        layers.append(base.mark_point(filled=True, size=18, opacity=1).encode(x=x, y=y, color=color))
        for kind, role, shape, area in marks:
            here = [v for v in values if v["kind"] == kind]
            if here:
                one = alt.Chart(alt.Data(values=[{**v, "word": kind} for v in here]))
                layers.append(
                    one.mark_point(shape=shape, size=area, filled=True, opacity=1, color=PALETTE[role]).encode(x=x, y=y)
                )
                layers.append(
                    one.mark_text(dx=11, align="left", fontWeight="bold", fontSize=12).encode(x=x, y=y, text="word:N")
                )
        return alt.layer(*layers)

    marked = [p for p in points if p.kind != "candidate"]
    return Chart(
        name=name,
        title=title,
        alt="; ".join(
            f"{p.kind} {p.label}: {p.tokens_per_s_per_user:.0f} tokens/s per user, "
            f"{p.tokens_per_s_per_gpu:,.0f} per GPU"
            for p in marked
        )
        or f"{len(points)} configurations",
        specs=both(build, (280, 240)),
        columns=(
            Column("configuration", right=False),
            Column("tokens/s per user"),
            Column("tokens/s per GPU"),
            Column("", right=False),
        ),
        rows=tuple(
            (
                p.label,
                f"{p.tokens_per_s_per_user:.1f}",
                f"{p.tokens_per_s_per_gpu:,.0f}",
                "" if p.kind == "candidate" else p.kind,
            )
            for p in points
        ),
    )
