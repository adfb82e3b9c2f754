"""What the commands share: printing a plan, widths, progress on a terminal only."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from planner.plan.document import Plan


def width() -> int:
    """Columns to lay text out for: the terminal's, or 100 where output goes to a file or pipe (COLUMNS overrides)."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return 100
    return shutil.get_terminal_size((100, 24)).columns


def print_plan(plan: Plan, form: str) -> None:
    """The plan on stdout as text, JSON or YAML."""
    if form == "json":
        click.echo(to_json(plan.model_dump(mode="json", exclude_none=True)))
    elif form == "yaml":
        from planner.plan.text import dumps

        click.echo(dumps(plan), nl=False)
    else:
        from planner.report.console import plan_text

        click.echo(highlight(plan_text(plan, width=width())))


def to_json(data: Any) -> str:
    """Stable JSON text."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def highlight(text: str) -> str:
    """Bold labels and red misses; click drops the colour when stdout is not a terminal."""
    from planner.report.console import LABELS

    lines = []
    for line in text.splitlines():
        label = next((label for label in LABELS if line.startswith(label)), None)
        shown = click.style(label, bold=True) + line[len(label) :] if label else line
        lines.append(shown.replace("MISSES", click.style("MISSES", fg="red", bold=True)))
    return "\n".join(lines)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that shows what is being done, on a terminal only; silent everywhere else."""
    if not sys.stderr.isatty():
        yield lambda _text: None
        return

    def told(text: str) -> None:
        click.echo(f"\r\x1b[2K{text}", nl=False, err=True)

    try:
        yield told
    finally:
        click.echo("\r\x1b[2K", nl=False, err=True)
