"""`plan render` and `plan check`: from a plan to its files, and whether a folder still holds what its plan says."""

from __future__ import annotations

from pathlib import Path

import click

from planner.documents import shown_path
from planner.errors import Exit, UserError, Where

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("plan_file", type=PATH)
@click.option("-o", "--output-dir", type=PATH, help="Folder to write into; without it the plan's own folder.")
@click.option("--force", is_flag=True, help="Overwrite files that were edited by hand.")
@click.option(
    "--templates", "templates_dir", type=PATH, help="Folder whose files replace shipped templates one at a time."
)
def render(plan_file: Path, output_dir: Path | None, force: bool, templates_dir: Path | None) -> None:
    """Write everything that a plan.yaml says, without solving."""
    from planner.plan.text import load
    from planner.render import render as render_files
    from planner.render import write_tree

    plan = load(plan_file)
    out = output_dir or (plan_file if plan_file.is_dir() else plan_file.parent)
    files = render_files(plan, templates_dir=templates_dir)
    write_tree(files, out, force=force)
    click.echo(f"wrote {len(files)} files to {out}", err=True)


@click.command()
@click.argument("folder", type=PATH)
@click.option("--templates", "templates_dir", type=PATH, help="Folder whose files replaced shipped templates.")
@click.option("--resolve", is_flag=True, help="Also solve the plan's own intent again and compare the answers.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def check(folder: Path, templates_dir: Path | None, resolve: bool, form: str) -> int:
    """Compare a rendered folder with its plan.yaml; exit 4 and a diff where they differ.

    Nothing is written and nothing is solved (unless --resolve).
    """
    from planner.render import check_tree, format_drift
    from planner.render.tree import beside

    if folder.is_dir() and not (folder / "plan.yaml").is_file():
        raise UserError(
            "no-plan",
            f"{shown_path(folder)} holds no plan.yaml",
            Where(shown_path(folder)),
            (),
            ("name the folder that `plan ... -o FOLDER` or `plan render` wrote",),
        )
    drift = check_tree(folder, templates_dir=templates_dir)
    others = beside(folder, templates_dir=templates_dir)
    if others:
        shown = ", ".join(others[:8]) + (f" and {len(others) - 8} more" if len(others) > 8 else "")
        click.echo(f"note: not of this plan, left alone: {shown}", err=True)
    if form == "json":
        from planner.cli.console import to_json

        click.echo(to_json([{"path": str(d.path), "kind": d.kind} for d in drift]))
    elif drift:
        click.echo(format_drift(drift))
    if drift:
        many = "1 file differs" if len(drift) == 1 else f"{len(drift)} files differ"
        click.echo(f"{many} from the plan in {folder}", err=True)
        return int(Exit.DRIFT)
    if resolve:
        from planner.pipeline import resolve_again
        from planner.plan.text import load

        changes = resolve_again(load(folder), folder)
        if changes:
            click.echo("\n".join(changes))
            click.echo("the files are what the plan says, but today's planner answers differently", err=True)
            return int(Exit.DIFFERS)
    click.echo(f"{folder}: every file is what its plan says", err=True)
    return 0
