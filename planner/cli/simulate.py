"""`plan simulate`: a plan under its traffic (or a trace) in the event simulation."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.types import Finite

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("plan_file", type=PATH)
@click.option("--service", help="Only this service.")
@click.option("--trace", type=PATH, help="Replay this trace's arrivals and lengths.")
@click.option("--rate-scale", type=Finite(0.001, 1000), default=1.0, help="Multiply every arrival rate.")
@click.option(
    "--fail-replica",
    multiple=True,
    metavar="POOL@TIME",
    help="A replica of the pool fails at that time, e.g. chat@60s.",
)
@click.option("--requests", type=click.IntRange(100, 10_000_000), help="Requests per seed.")
@click.option("--seed", "seeds", type=int, multiple=True, default=(1, 2), help="Seeds; repeats.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="What to print.")
def simulate(
    plan_file: Path,
    service: str | None,
    trace: Path | None,
    rate_scale: float,
    fail_replica: tuple[str, ...],
    requests: int | None,
    seeds: tuple[int, ...],
    form: str,
) -> None:
    """Simulate a plan: percentiles per class, goodput, utilisation, cache, preemptions, queues over time."""
    from planner.cli.console import progress, to_json, width
    from planner.pipeline.replay import replay, replay_text
    from planner.plan.text import load

    with progress() as told:
        told("simulating")
        found = replay(
            load(plan_file), service=service, trace=trace, rate_scale=rate_scale, failures=fail_replica,
            requests=requests, seeds=seeds, folder=plan_file if plan_file.is_dir() else plan_file.parent,
        )  # fmt: skip
    click.echo(to_json([r.as_data() for r in found]) if form == "json" else replay_text(found, width=width()))
