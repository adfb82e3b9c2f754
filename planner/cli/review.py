"""`plan review`: the capacity review, as one self-contained page or as Markdown."""

from __future__ import annotations

from pathlib import Path

import click

from planner.errors import UserError

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("plan_file", type=PATH)
@click.option(
    "-o", "--output", "out", type=PATH, required=True, help="review.html, or review.md with SVG charts beside it."
)
def review(plan_file: Path, out: Path) -> None:
    """Write the capacity review of a plan: verdict, SLOs, bad days, what to decide, then the evidence."""
    from planner.plan.text import load
    from planner.report.build import build_evidence
    from planner.report.review import review_html, review_markdown

    if out.suffix not in (".html", ".md"):
        raise UserError(
            "bad-output", f"{out.name} is neither .html nor .md", None, (), ("name it review.html or review.md",)
        )
    plan = load(plan_file)
    evidence = build_evidence(plan)
    if out.suffix == ".html":
        write(out, review_html(plan, evidence))
        click.echo(f"wrote {out}", err=True)
        return
    text, charts = review_markdown(plan, evidence)
    for name, svg in charts.items():
        write(out.parent / name, svg)
    write(out, text)
    click.echo(f"wrote {out} and {len(charts)} charts", err=True)


def write(path: Path, text: str) -> None:
    """Old file or new file, never half of one."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as e:
        temporary.unlink(missing_ok=True)
        raise UserError("cannot-write", f"{path} cannot be written: {e.strerror}") from e
