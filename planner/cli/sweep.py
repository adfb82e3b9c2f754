"""`plan sweep`: a grid of scenarios as one table."""

from __future__ import annotations

from pathlib import Path

import click

from planner.intent.resolve import Words

PATH = click.Path(path_type=Path)


@click.command()
@click.option("--fleet", type=PATH, required=True, help="Fleet file (may be varied).")
@click.option("-f", "--intent", "intent_file", type=PATH, help="Intent file.")
@click.option("--platform", "platform_file", type=PATH, help="Platform file.")
@click.option("--model", help="Model.")
@click.option("--slo", multiple=True, metavar="METRIC=LIMIT", help="Promise; repeats.")
@click.option("--rate", help="Requests per second at peak.")
@click.option("--input", help="Prompt tokens.")
@click.option("--output", help="Answer tokens.")
@click.option("--service", help="Which service of the intent is varied.")
@click.option(
    "--vary", multiple=True, required=True, metavar="KEY=V,V", help="What to vary, e.g. rate=5/s,10/s; repeats."
)
@click.option("-o", "--table", type=PATH, required=True, help="Table to write: *.csv or *.parquet.")
@click.option("--workers", type=click.IntRange(1, 1024), help="Local processes; none: one per core.")
@click.option("--scheduler", help="Address of a Dask scheduler (tcp://...); needs the extra `distributed`.")
@click.option("--no-verify", is_flag=True, help="Skip the event simulation.")
def sweep(
    fleet: Path,
    intent_file: Path | None,
    platform_file: Path | None,
    model: str | None,
    slo: tuple[str, ...],
    rate: str | None,
    input: str | None,
    output: str | None,
    service: str | None,
    vary: tuple[str, ...],
    table: Path,
    workers: int | None,
    scheduler: str | None,
    no_verify: bool,
) -> None:
    """Plan a grid of scenarios (rates, lengths, SLOs, prices, fleets) and write one table.

    Points that are finished are not repeated when an interrupted sweep is started again. An impossible point is a
    row with its reason.
    """
    from planner.cli.console import progress
    from planner.sweep import points, run_sweep
    from planner.sweep.run import Base, base_words

    words = Words(model=model, slo=slo, rate=rate, input=input, output=output, service=service)
    grid = points(vary)
    base = Base(
        str(fleet), str(intent_file) if intent_file else None, str(platform_file) if platform_file else None,
        base_words(words), not no_verify,
    )  # fmt: skip
    with progress() as told:
        rows = run_sweep(base, grid, table, workers=workers, scheduler=scheduler, progress=told)
    good = sum(r["status"] in ("optimal", "feasible") for r in rows)
    click.echo(f"{len(rows)} points, {good} with a plan, in {table}", err=True)
