"""What the review's templates place: frozen values of text, already decided and formatted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from planner.report.vega import Chart, Size, themed


@dataclass(frozen=True, slots=True)
class Head:
    """A column's title."""

    title: str
    right: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: text, its column's title (shown beside it on narrow screens), and how it looks."""

    text: str
    label: str
    head: bool = False
    css: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first cell of a row is its header."""

    caption: str
    columns: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...]
    stacks: bool = False
    """On narrow screens one block per row instead of a table to scroll."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One headline figure."""

    label: str
    value: str
    note: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart at both widths with its table."""

    title: str
    wide: Markup
    narrow: Markup
    table: Table


@dataclass(frozen=True, slots=True)
class Section:
    """An entry of the contents."""

    id: str
    title: str


@dataclass(frozen=True, slots=True)
class Listing:
    """A heading with sentences."""

    title: str
    entries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PoolView:
    """Evidence of one pool."""

    title: str
    note: str
    charts: tuple[Figure, ...]
    reasons: Table


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[int] = (),
    stack: bool = False,
) -> Table:
    """Text -> Table. `right` are right-aligned columns; a cell that starts with `MISS` or ends with it is marked."""
    made = tuple(
        tuple(
            Cell(
                text,
                columns[i],
                head=i == 0,
                css=" ".join(w for w in ("num" if i in right else "", "bad" if "MISS" in text else "") if w),
            )
            for i, text in enumerate(row)
        )
        for row in rows
    )
    heads = tuple(Head(c, i in right) for i, c in enumerate(columns))
    return Table(caption, heads, made, stack)


def figure(chart: Chart) -> Figure:
    """A chart drawn at both widths, in the page's colours."""

    def drawn(size: Size) -> Markup:
        return Markup(themed(chart.svg(size)))  # noqa: S704 - our own SVG; every text in it is escaped by Vega

    right = [i for i, c in enumerate(chart.columns) if c.right]
    numbers = table(chart.title, [c.title for c in chart.columns], chart.rows, right=right)
    return Figure(chart.title, drawn("wide"), drawn("narrow"), numbers)
