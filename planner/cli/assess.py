"""`plan assess`: a deployment that the planner never wrote, held against model, GPU, traffic and SLOs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from planner.errors import Exit, UserError

if TYPE_CHECKING:
    from planner.assess.change import ChangeAssessment
    from planner.assess.judge import Assessment

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("paths", nargs=-1, type=PATH)
@click.option(
    "--argv", help="A launch command in quotes instead of files, e.g. 'vllm serve ... --tensor-parallel-size 4'."
)
@click.option("--git", "revisions", metavar="BEFORE..AFTER", help="Compare two revisions of the given paths.")
@click.option("--fleet", type=PATH, help="Fleet file: GPU figures, network.")
@click.option("--gpu", help="GPU that it runs on, where the files do not say.")
@click.option("-f", "--intent", "intent_file", type=PATH, help="Intent file: traffic and SLOs to hold it against.")
@click.option(
    "--format", "form", type=click.Choice(["text", "markdown", "json"]), default="text", help="What to print."
)
def assess(
    paths: tuple[Path, ...],
    argv: str | None,
    revisions: str | None,
    fleet: Path | None,
    gpu: str | None,
    intent_file: Path | None,
    form: str,
) -> int:
    """Say whether a deployment starts, fits and keeps its promises, and which flag breaks what.

    Reads launch commands, Compose files and Kubernetes manifests (Deployment, StatefulSet, LeaderWorkerSet,
    DynamoGraphDeployment, LLMInferenceService) from files or folders. Exits 1 where something does not hold.
    """
    from planner.assess.change import assess_change
    from planner.assess.judge import assess as judge
    from planner.assess.read import read_deployment, read_revision
    from planner.cli.console import width
    from planner.cli.readable import check_quotes, with_unreadable
    from planner.intent.resolve import Words, load_fleet, load_intent

    if (argv is None) == (not paths):
        raise UserError(
            "usage",
            "give files or --argv",
            None,
            (),
            ("plan assess deploy/ --fleet fleets/h100.yaml", "plan assess --argv 'vllm serve ...' --gpu h100-sxm"),
        )
    asked_fleet = load_fleet(fleet) if fleet is not None else None
    intent = load_intent(intent_file, Words()).intent if intent_file is not None else None
    if revisions is not None:
        before, dots, after = revisions.partition("..")
        if not dots or not before:
            raise UserError("usage", f"{revisions!r} is not BEFORE..AFTER", None, (), ("write main..HEAD",))
        names = [str(p) for p in paths]
        found: Assessment | ChangeAssessment = assess_change(
            with_unreadable(read_revision(before, names)),
            with_unreadable(read_revision(after or "HEAD", names)),
            intent=intent,
            fleet=asked_fleet,
            gpu=gpu,
        )
    else:
        if argv is not None:
            check_quotes(argv)
        launches = read_deployment(argv if argv is not None else list(paths))
        found = judge(with_unreadable(launches), intent=intent, fleet=asked_fleet, gpu=gpu)
    if form == "json":
        click.echo(found.to_json().rstrip("\n"))
    elif form == "markdown":
        click.echo(found.to_markdown().rstrip("\n"))
    else:
        click.echo(found.to_text(width()).rstrip("\n"))
    return 0 if found.holds else int(Exit.DIFFERS)
