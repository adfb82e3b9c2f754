"""Charts of a review, as Vega-Lite specifications (altair) rendered to SVG offline (vl-convert).

Drawn ahead of time, so that the page needs no script for them, prints, and can forbid every connection; the numbers
also stand in a table beside each chart. A chart is drawn twice, for wide and for narrow screens. Colours are a fixed
light palette; the page replaces them by its own variables, so that they follow light and dark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from planner.errors import UserError

WIDTHS = {"wide": 640, "narrow": 262}
"""Plot widths in pixels, axes not included: for a text column of 720 and for a phone of 390."""

PALETTE = {
    "fg": "#1f2430",
    "muted": "#5b6472",
    "grid": "#dfe3ea",
    "weights": "#2f6fde",
    "kv": "#e07b1a",
    "compute": "#1f9d6b",
    "other": "#8b93a3",
    "band": "#a9c4f5",
    "limit": "#c92a3d",
    "chosen": "#7a3fd0",
}
"""Role -> colour. Distinct by lightness too, so that prints and colour-blind readers can tell them apart."""

_FONT = "Helvetica, Arial, sans-serif"
Size = Literal["wide", "narrow"]
LINES = ("weights", "kv", "compute", "other", "muted", "fg")
"""Roles for things told apart by colour alone; `chosen` and `limit` keep their meaning."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a chart's table."""

    title: str
    right: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: what it shows in words, its specification per size, and its numbers."""

    name: str
    title: str
    alt: str
    """What a reader who cannot see it should know."""
    specs: tuple[tuple[Size, dict[str, Any]], ...]
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    def svg(self, size: Size = "wide") -> str:
        """The chart as SVG text; the same input gives the same bytes."""
        return _render(dict(self.specs)[size], f"{self.name}-{size}", self.alt)


def altair() -> Any:
    """The chart library, or what to install."""
    try:
        import altair as alt
        import vl_convert  # noqa: F401
    except ImportError as e:
        raise UserError(
            "extra-missing",
            "charts need altair and vl-convert-python",
            None,
            ("they are an optional extra, so that planning and rendering stay small",),
            ("pip install 'llm-deployment-planner[review]'",),
        ) from e
    return alt


def _render(spec: dict[str, Any], prefix: str, alt_text: str) -> str:
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(spec, vl_version="6.4")
    # Several charts share one page: their inner names must differ.
    svg = re.sub(r'id="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    # Hundredths of a pixel are enough, and the font stands once instead of at every word.
    svg = re.sub(r"(\d+\.\d\d)\d+", r"\1", svg).replace(f' font-family="{_FONT}"', "")
    label = alt_text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" font-family="{_FONT}" ', 1)


def themed(svg: str) -> str:
    """The palette's colours as the page's variables, so that the chart follows light and dark."""
    for role, colour in PALETTE.items():
        svg = re.sub(colour, f"var(--{role})", svg, flags=re.IGNORECASE)
    # Never wider than drawn: text keeps its size; the page shrinks it where it must.
    size = re.search(r' width="([\d.]+)" height="[\d.]+"', svg)
    assert size is not None
    return svg.replace(size[0], f' style="max-width:{size[1]}px"', 1)


def _styled(chart: Any) -> dict[str, Any]:
    """Quiet axes, no frame, the page's font."""
    font = _FONT
    styled = (
        chart.configure_view(stroke=None)
        .configure_axis(
            labelColor=PALETTE["muted"],
            titleColor=PALETTE["muted"],
            gridColor=PALETTE["grid"],
            domainColor=PALETTE["grid"],
            tickColor=PALETTE["grid"],
            labelFont=font,
            titleFont=font,
            labelFontSize=11,
            titleFontSize=11,
            titleFontWeight="normal",
        )
        .configure_legend(
            labelColor=PALETTE["fg"],
            titleColor=PALETTE["muted"],
            labelFont=font,
            titleFont=font,
            orient="top",
            labelFontSize=11,
            symbolSize=90,
        )
        .configure_text(font=font, color=PALETTE["fg"])
        .configure_title(font=font, color=PALETTE["fg"])
    )
    spec: dict[str, Any] = styled.to_dict()
    spec["background"] = "transparent"
    return spec


def short(value: float) -> float:
    """Four significant digits: what a tooltip can show, and half the size of the drawing."""
    return float(f"{value:.4g}")


def both(build: Any, heights: tuple[int, int]) -> tuple[tuple[Size, dict[str, Any]], ...]:
    """The same chart at both widths."""
    sizes: tuple[Size, Size] = ("wide", "narrow")
    return tuple((s, _styled(build(s, WIDTHS[s], h))) for s, h in zip(sizes, heights, strict=True))
