"""`plan schema`: JSON schemas of the documents, for editors."""

from __future__ import annotations

import click

DOCUMENTS = ("intent", "fleet", "platform", "plan")


@click.command()
@click.argument("document", type=click.Choice(DOCUMENTS))
def schema(document: str) -> None:
    """Print the JSON schema of a document, so that an editor completes and checks it."""
    from pydantic import BaseModel

    from planner.cli.console import to_json
    from planner.intent.document import Intent
    from planner.intent.fleet import Fleet
    from planner.intent.platform import Platform
    from planner.plan.document import Plan

    models: dict[str, type[BaseModel]] = {"intent": Intent, "fleet": Fleet, "platform": Platform, "plan": Plan}
    click.echo(to_json(models[document].model_json_schema()))
