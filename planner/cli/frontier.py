"""`plan frontier`: what can be had on this fleet, with the plan's own point beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.errors import UserError

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("plan_file", type=PATH)
@click.option("--fleet", type=PATH, help="Whole fleet file; none: the pools that the plan uses.")
@click.option("--service", help="Only this service.")
@click.option("-o", "--output", "out", type=PATH, help="Picture: frontier.svg or frontier.html.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="What to print.")
def frontier(plan_file: Path, fleet: Path | None, service: str | None, out: Path | None, form: str) -> None:
    """Show the Pareto fronts of a plan's services: throughput per GPU against speed per user, cost against TTFT."""
    from planner.cli.console import to_json, width
    from planner.cli.review import write
    from planner.pipeline.frontier import fronts, fronts_text, picture
    from planner.plan.text import load

    if out is not None and out.suffix not in (".svg", ".html"):
        raise UserError(
            "bad-output", f"{out.name} is neither .svg nor .html", None, (), ("name it frontier.svg or frontier.html",)
        )
    plan = load(plan_file)
    found = fronts(plan, fleet=fleet, service=service)
    if out is not None:
        write(out, picture(found, page=out.suffix == ".html"))
        click.echo(f"wrote {out}", err=True)
    data: Any = [f.as_data() for f in found]
    click.echo(to_json(data) if form == "json" else fronts_text(found, width=width()))
