"""`plan explain`: where milliseconds and gigabytes go."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("plan_file", type=click.Path(path_type=Path))
@click.option("--pool", help="Only this pool.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="What to print.")
def explain(plan_file: Path, pool: str | None, form: str) -> None:
    """Show where a step's milliseconds and a GPU's gigabytes go, and what growing the batch buys."""
    from planner.cli.console import to_json, width
    from planner.plan.text import load
    from planner.report.explain import explain as explained
    from planner.report.explain import explain_json, explain_text

    found = explained(load(plan_file), pool=pool)
    click.echo(to_json(explain_json(found)) if form == "json" else explain_text(found, width=width()))
