"""`plan estimate`: what a given configuration would do, without solving; one, or a file of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli.types import positive
from planner.errors import UserError

if TYPE_CHECKING:
    from planner.estimate import Estimate

PATH = click.Path(path_type=Path)


@click.command()
@click.option("--model", help="Model: catalogue name, Hugging Face id, or a folder with config.json.")
@click.option("--gpu", help="GPU, e.g. h100-sxm.")
@click.option("--engine", default="vllm", help="vllm, sglang or trtllm.")
@click.option("--engine-version", default="", help="Engine version; none: the newest known.")
@click.option("--tp", type=click.IntRange(1, 1024), default=1, help="Tensor parallelism.")
@click.option("--pp", type=click.IntRange(1, 64), default=1, help="Pipeline parallelism.")
@click.option("--dp", type=click.IntRange(1, 1024), default=1, help="Attention data parallelism.")
@click.option("--ep", is_flag=True, help="Spread experts over the ranks instead of splitting each.")
@click.option("--precision", default="", help="bf16, fp8, int8, int4, nvfp4 or mxfp4; none: the checkpoint's own.")
@click.option("--kv-dtype", default="", help="bf16 or fp8.")
@click.option("--isl", type=positive(1), help="Prompt tokens.")
@click.option("--osl", type=positive(1), help="Answer tokens.")
@click.option("--concurrency", type=positive(), help="Requests in flight (closed loop).")
@click.option("--rate", help="Requests per second (Poisson), e.g. 3/s.")
@click.option("--batch", type=positive(), help="One static batch.")
@click.option("--cases", type=PATH, help="CSV of configurations (columns of public measurement files).")
@click.option("-o", "--output", "out", type=PATH, help="Where --cases writes the rows with predictions.")
@click.option("--simulate", is_flag=True, help="Take TTFT from the event simulation.")
@click.option("-v", "--verbose", is_flag=True, help="Show every operation group of a step.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="What to print.")
def estimate(
    model: str | None,
    gpu: str | None,
    engine: str,
    engine_version: str,
    tp: int,
    pp: int,
    dp: int,
    ep: bool,
    precision: str,
    kv_dtype: str,
    isl: float | None,
    osl: float | None,
    concurrency: float | None,
    rate: str | None,
    batch: float | None,
    cases: Path | None,
    out: Path | None,
    simulate: bool,
    verbose: bool,
    form: str,
) -> None:
    """Predict what a configuration would do: TTFT, TPOT, throughput and cache, with bands.

    \b
        plan estimate --model Qwen/Qwen3-8B --gpu h100-sxm --isl 1024 --osl 256 --concurrency 32
        plan estimate --cases runs.csv -o predicted.csv
    """
    from planner.catalog.engines import DEFAULT_VERSION
    from planner.estimate import estimate_cases, estimate_one

    ttft = None
    if simulate:
        from planner.pipeline.closed import simulated_ttft

        ttft = simulated_ttft
    if cases is not None:
        if out is None:
            raise UserError("usage", "--cases needs -o", None, (), ("add -o predicted.csv",))
        done = estimate_cases(cases, out, simulate=ttft)
        click.echo(f"{done.predicted} of {done.rows} rows predicted, {done.refused} refused; wrote {out}", err=True)
        return
    missing = [o for o, v in (("--model", model), ("--gpu", gpu), ("--isl", isl), ("--osl", osl)) if v is None]
    if missing:
        raise UserError(
            "usage", f"{missing[0]} is missing", None, (), (f"add {missing[0]} ...", "see `plan estimate --help`")
        )
    loads = [o for o, v in (("--concurrency", concurrency), ("--rate", rate), ("--batch", batch)) if v is not None]
    if len(loads) != 1:
        said = " and ".join(loads) or "no load"
        raise UserError("usage", f"{said} given", None, (), ("give one of --concurrency, --rate and --batch",))
    assert model is not None
    assert gpu is not None
    assert isl is not None
    assert osl is not None
    found = estimate_one(
        model=model,
        gpu=gpu,
        engine=engine,
        engine_version=engine_version or DEFAULT_VERSION.get(engine, ""),
        precision=precision,
        kv=kv_dtype,
        tp=tp,
        pp=pp,
        dp=dp,
        ep=ep,
        isl_tokens=isl,
        osl_tokens=osl,
        concurrency=batch if batch is not None else concurrency,
        rate_rps=_rate(rate),
        kind="static" if batch is not None else "closed-loop",
        simulate=ttft,
    )
    if form == "json":
        from planner.cli.console import to_json

        click.echo(to_json(_data(found)))
    else:
        click.echo(_text(found, verbose=verbose))


def _rate(text: str | None) -> float | None:
    from planner.units import RATE, QuantityError

    if text is None:
        return None
    try:
        return RATE.parse(text)
    except QuantityError as e:
        raise UserError("bad-value", f"--rate: {e}", None, (), (e.advice,) if e.advice else ()) from e


def _data(e: Estimate) -> dict[str, Any]:
    def figure(f: Any) -> Any:
        return None if f is None or not math.isfinite(f.value) else {"value": f.value, "low": f.low, "high": f.high}

    d = e.deployment
    return {
        "model": d.arch.name,
        "gpu": d.hardware.gpu_id,
        "shape": d.shape.label,
        "precision": d.precision,
        "kv_dtype": d.kv_dtype,
        "engine": f"{d.engine} {d.engine_version}".strip(),
        "calibration": e.calibration.name,
        "ttft_s": figure(e.ttft_s),
        "tpot_s": figure(e.tpot_s),
        "output_tok_s": figure(e.output_tok_s),
        "kv_tokens": round(e.kv_tokens) if math.isfinite(e.kv_tokens) else None,
        "running": e.running,
        "saturated": e.saturated,
        "limit_rps": e.limit_rps,
        "anchored_rows": e.anchored_rows,
        "warnings": list(e.warnings),
    }


def _text(e: Estimate, *, verbose: bool) -> str:
    from planner.cli.console import width
    from planner.report.console import paragraph, table
    from planner.units import show_count, show_time

    d = e.deployment
    columns = max(60, min(width(), 140))
    rows = []
    for name, f, show in (
        ("TTFT", e.ttft_s, show_time),
        ("TPOT", e.tpot_s, show_time),
        ("output tokens/s", e.output_tok_s, show_count),
    ):
        if f is None or not math.isfinite(f.value):
            why = "not defined here: requests queue" if e.saturated and name == "TTFT" else "not defined for this run"
            rows.append((name, "-", why))
        else:
            rows.append((name, show(f.value), f"{show(f.low)} to {show(f.high)}"))
    cache = f"{e.kv_tokens:,.0f} tokens" if math.isfinite(e.kv_tokens) else "-"
    rows.append(("KV cache", cache, f"{e.running:.1f} sequences running per rank"))
    if e.limit_rps is not None:
        rows.append(
            ("stability limit", f"{e.limit_rps:.3g}/s", "SATURATED" if e.saturated else f"{e.row.rate_rps:g}/s asked")
        )
    where = f"{d.hardware.gpu_id} {d.shape.label}, {d.engine} {d.engine_version}".rstrip()
    head = f"ESTIMATE  {d.arch.name} {d.precision} on {where}"
    method = f"closed form, {e.calibration.name}" + (
        f", {e.anchored_rows} measured rows anchor it" if e.anchored_rows else ""
    )
    blocks = [
        head,
        table(("", "mean", "80% band"), rows, width=columns, right=(1,)),
        "\n".join(paragraph("METHOD", [method], columns)),
    ]
    if e.warnings:
        blocks.append("\n".join(paragraph("WARNING", e.warnings, columns)))
    if verbose:
        from planner.perf.breakdown import step_groups
        from planner.report.explain import groups_text

        seqs = max(1.0, e.running)
        context = e.row.isl_tokens + e.row.osl_tokens / 2
        step = step_groups(d, e.calibration, decode_seqs=seqs, context_tokens=seqs * context)
        title = f"A decode step: {seqs:.0f} sequences of {context:,.0f} tokens, {show_time(step.seconds)}"
        blocks.append(f"{title} (MBU {step.mbu:.0%}, MFU {step.mfu:.0%})\n" + groups_text(step, columns))
    return "\n\n".join(blocks)
