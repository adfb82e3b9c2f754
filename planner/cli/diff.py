"""`plan diff`: what changed between two plans, what caused it, which pods restart."""

from __future__ import annotations

from pathlib import Path

import click

from planner.errors import Exit

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("before", type=PATH)
@click.argument("after", type=PATH)
@click.option("--prove", is_flag=True, help="Plan again with each cause taken back, to show what it alone does.")
@click.option(
    "--format", "form", type=click.Choice(["text", "markdown", "json"]), default="text", help="What to print."
)
def diff(before: Path, after: Path, prove: bool, form: str) -> int:
    """Compare two plans (files, or folders that hold a plan.yaml); exit 1 where they differ."""
    from planner.cli.console import width
    from planner.pipeline import replan
    from planner.plan.document import Plan
    from planner.plan.text import load
    from planner.render import render
    from planner.report.diff import diff as compare

    def tree(plan: Plan) -> dict[str, str]:
        return {str(f.path): f.text for f in render(plan)}

    found = compare(load(before), load(after), render=tree, replan=replan if prove else None)
    if form == "json":
        click.echo(found.to_json(), nl=False)
    elif form == "markdown":
        click.echo(found.to_markdown())
    else:
        click.echo(found.to_text(width()))
    return int(Exit.DIFFERS) if found else 0
