"""`plan --fleet ... --slo ...`: solve, print, and write with `-o`."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.main import Group
from planner.errors import UserError
from planner.intent.resolve import Words

PATH = click.Path(path_type=Path)


@click.group(
    cls=Group,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--fleet", type=PATH, help="Fleet file: which GPUs there are (fleets/h100.yaml).")
@click.option(
    "-f", "--intent", "intent_files", type=PATH, multiple=True, help="Intent file: services, traffic, SLOs; repeats."
)
@click.option("--platform", "platform_file", type=PATH, help="Platform file: what the cluster's policies want.")
@click.option("--slo", multiple=True, metavar="METRIC=LIMIT", help="Promise, e.g. itl=50ms or ttft.p95=800ms; repeats.")
@click.option("--service", help="Which service of the intent the options below change.")
@click.option("--model", help="Model: catalogue name, Hugging Face id, or a folder with config.json.")
@click.option("--engine", help="vllm or sglang.")
@click.option("--target", help="none, kubernetes, dynamo, kserve, llm-d or compose.")
@click.option("--rate", help="Requests per second at peak, e.g. 12/s; none: the most the fleet carries.")
@click.option("--input", help="Prompt tokens.")
@click.option("--output", help="Answer tokens.")
@click.option("--trace", help="CSV with request lengths (and times) instead of --input and --output.")
@click.option("--prefix-cache", help="Share of prompt tokens that hit the prefix cache (0.4 or 40%).")
@click.option("--arrivals-cv", help="CV of the gaps between arrivals; 1 is Poisson.")
@click.option("--precision", multiple=True, help="Allowed weight precision (bf16, fp8, ...); repeats.")
@click.option("--kv-dtype", help="auto, bf16 or fp8.")
@click.option("--accuracy-floor", help="Least accuracy kept, as a share of the original's (0.99).")
@click.option("--tp", type=int, help="Fix tensor parallelism.")
@click.option("--gpu", help="Fix the GPU type.")
@click.option("--pools", help="auto, aggregated or disaggregated.")
@click.option("--survive", help='none, "1 replica" or "1 node".')
@click.option("--max-context", type=int, help="Longest request (prompt and answer) that must be admitted.")
@click.option("--objective", help="cost, gpus or throughput.")
@click.option("--baseline", type=PATH, help="What runs today (a plan, or manifests): changing it then counts.")
@click.option("--keep", multiple=True, help="Service that stays exactly as the baseline has it; repeats.")
@click.option("-o", "--output-dir", type=PATH, help="Write plan.yaml and everything rendered from it into this folder.")
@click.option("--force", is_flag=True, help="Overwrite files that were edited by hand.")
@click.option(
    "--templates", "templates_dir", type=PATH, help="Folder whose files replace shipped templates one at a time."
)
@click.option("--no-verify", is_flag=True, help="Skip the event simulation (recorded in the plan).")
@click.option("--format", "form", type=click.Choice(["text", "json", "yaml"]), default="text", help="What to print.")
@click.version_option(package_name="llm-deployment-planner", message="%(version)s")
@click.pass_context
def plan(
    ctx: click.Context,
    fleet: Path | None,
    intent_files: tuple[Path, ...],
    platform_file: Path | None,
    slo: tuple[str, ...],
    service: str | None,
    model: str | None,
    engine: str | None,
    target: str | None,
    rate: str | None,
    input: str | None,
    output: str | None,
    trace: str | None,
    prefix_cache: str | None,
    arrivals_cv: str | None,
    precision: tuple[str, ...],
    kv_dtype: str | None,
    accuracy_floor: str | None,
    tp: int | None,
    gpu: str | None,
    pools: str | None,
    survive: str | None,
    max_context: int | None,
    objective: str | None,
    baseline: Path | None,
    keep: tuple[str, ...],
    output_dir: Path | None,
    force: bool,
    templates_dir: Path | None,
    no_verify: bool,
    form: str,
) -> int | None:
    """Plan an LLM deployment before anything is deployed.

    Gives GPU type, parallelism, precision, batch caps and pool sizes for a model, its traffic and its SLOs on a
    fleet, with reasons; and with -o the launch files that say exactly that.

    \b
        plan --fleet fleets/h100.yaml --slo itl=50ms
        plan --fleet fleets/h100.yaml -f intent.yaml -o deploy/
    """
    if ctx.invoked_subcommand is not None:
        said = [f"--{k.replace('_', '-')}" for k, v in ctx.params.items() if v not in (None, (), False, "text")]
        if said:
            raise UserError(
                "usage",
                f"{said[0]} stands before the command {ctx.invoked_subcommand!r}",
                None,
                (),
                (f"write plan {ctx.invoked_subcommand} ... with its own options",),
            )
        return None
    if fleet is None:
        raise UserError(
            "missing-fleet",
            "no fleet given",
            None,
            ("a plan needs to know which GPUs there are",),
            ("add --fleet FILE, e.g. --fleet fleets/h100.yaml", "see `plan --help`"),
        )
    from planner.cli.console import print_plan, progress
    from planner.pipeline import Question, ask, make_plan

    words = Words(
        service=service, model=model, engine=engine, target=target, slo=slo, rate=rate, input=input, output=output,
        trace=trace, prefix_cache=prefix_cache, arrivals_cv=arrivals_cv, precision=precision, kv_dtype=kv_dtype,
        tp=tp, gpu=gpu, survive=survive, pools=pools, accuracy_floor=accuracy_floor, max_context=max_context,
        objective=objective,
    )  # fmt: skip
    question: Question = ask(
        fleet=fleet,
        intent_files=intent_files,
        platform_file=platform_file,
        words=words,
        baseline=baseline,
        keep=keep,
    )
    with progress() as told:
        answer = make_plan(question, verify=not no_verify, progress=told)
    if output_dir is not None:
        from planner.render import render, write_tree

        files = render(answer, templates_dir=templates_dir)
        write_tree(files, output_dir, force=force)
        print_plan(answer, form)
        click.echo(f"wrote {len(files)} files to {output_dir}", err=True)
    else:
        print_plan(answer, form)
    return None
