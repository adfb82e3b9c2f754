"""`plan catalog`: what the planner knows, with sources, and what it understood of a user's own model or trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from planner.documents import shown_path
from planner.errors import UserError, Where
from planner.units import show_bytes, show_count

FORMAT = click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="What to print.")


@click.group()
def catalog() -> None:
    """What the planner knows: models, GPUs, engines, checkpoints; and what it makes of yours."""


def _print(
    headers: Sequence[str], rows: Sequence[Sequence[str]], data: Any, form: str, right: Sequence[int] = ()
) -> None:
    from planner.cli.console import to_json, width

    if form == "json":
        click.echo(to_json(data))
        return
    from planner.report.console import table

    click.echo(table(headers, rows, width=max(width(), 60), right=right))


@catalog.command()
@click.argument("name", required=False)
@FORMAT
def gpus(name: str | None, form: str) -> None:
    """GPUs: memory the driver reports, bandwidth, dense rates, links, with sources."""
    from planner.catalog.gpus import find_gpu
    from planner.catalog.gpus import gpus as every

    if name is not None:
        gpu = find_gpu(name)
        data = gpu.model_dump(mode="json", exclude_none=True)
        _print(("figure", "value"), _flat(data), data, form)
        return
    found = [g for _, g in sorted(every().items())]
    rows = [
        (
            g.id,
            g.arch,
            show_bytes(g.memory.reported) if g.memory.reported else "-",
            f"{g.memory.bandwidth / 1e12:.3g} TB/s",
            *(_rate(getattr(g, f)) for f in ("bf16", "fp8", "fp4")),
            f"{g.scale_up.kind} x{g.scale_up.domain_gpus}",
            "" if g.status == "shipping" else g.status,
        )
        for g in found
    ]
    headers = ("gpu", "arch", "memory", "bandwidth", "bf16", "fp8", "fp4", "link", "")
    _print(headers, rows, [g.model_dump(mode="json", exclude_none=True) for g in found], form, right=(2, 3, 4, 5, 6))


def _rate(rate: Any) -> str:
    if rate.dense is None:
        return "-"
    return f"{rate.dense / 1e12:,.0f}" + ("" if rate.native else " (emulated)")


def _flat(data: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Nested data as dotted rows."""
    if isinstance(data, dict):
        return [row for k, v in data.items() for row in _flat(v, f"{prefix}.{k}" if prefix else str(k))]
    if isinstance(data, list):
        if all(not isinstance(v, (dict, list)) for v in data):
            return [(prefix, ", ".join(str(v) for v in data))]
        return [row for i, v in enumerate(data) for row in _flat(v, f"{prefix}[{i}]")]
    return [(prefix, f"{data:,}" if isinstance(data, int) and not isinstance(data, bool) else str(data))]


@catalog.command()
@click.argument("name", required=False)
@FORMAT
def models(name: str | None, form: str) -> None:
    """Models: parameters, weight bytes, KV cache, state and FLOPs, computed from each config.json."""
    from planner.catalog.models import find_model
    from planner.catalog.models import models as every
    from planner.perf.describe import model_json

    if name is not None:
        data = model_json(find_model(name))
        _print(("figure", "value"), _flat(data), data, form)
        return
    found = [model_json(m) for _, m in sorted(every().items())]
    rows = [
        (
            d["id"],
            d["family"],
            show_count(d["params_total"]),
            show_count(d["params_active"]),
            show_bytes(d["weight_bytes"]["bf16"]),
            show_bytes(d["kv_bytes_per_token"]["bf16"]),
            show_bytes(d["state_bytes_per_sequence"]) if d["state_bytes_per_sequence"] else "-",
        )
        for d in found
    ]
    headers = ("model", "family", "parameters", "active", "bf16", "KV/token", "state/seq")
    _print(headers, rows, found, form, right=(2, 3, 4, 5, 6))


@catalog.command()
@click.argument("name", required=False)
@FORMAT
def checkpoints(name: str | None, form: str) -> None:
    """Checkpoints of a model (or of all): repository, precision, accuracy prior."""
    from planner.catalog.models import find_model
    from planner.catalog.models import models as every
    from planner.perf.describe import model_json

    found = [model_json(m) for m in ([find_model(name)] if name else [m for _, m in sorted(every().items())])]
    data = [{"model": d["id"], "checkpoints": d["checkpoints"]} for d in found]
    rows = []
    for d in found:
        for c in d["checkpoints"]:
            prior = c.get("accuracy") or {}
            kept = f"{prior['value']:.3f} ({prior['low']:.3f}-{prior['high']:.3f})" if prior else "-"
            rows.append((d["id"], c["precision"], c["repo"] + (" (online)" if c.get("online") else ""), kept))
    _print(("model", "precision", "repository", "accuracy kept"), rows, data, form)


@catalog.command()
@click.argument("name", required=False)
@FORMAT
def engines(name: str | None, form: str) -> None:
    """Engines and versions: what can be rendered, and every flag that is checked."""
    from planner.catalog.engines import ENGINES, engine_versions
    from planner.errors import did_you_mean

    found = list(engine_versions().values())
    data: list[dict[str, Any]]
    if name is None:
        data = [
            {
                "engine": e.engine,
                "version": e.version,
                "use": "prediction only" if e.predicts_only else ("router" if e.router else "rendered"),
                "flags": len(e.flag_table()) if e.flags else 0,
                "source": e.source,
            }
            for e in found
        ]
        rows = [tuple(str(v) for v in d.values()) for d in data]
        _print(("engine", "version", "use", "flags", "source"), rows, data, form, right=(3,))
        return
    wanted = [e for e in found if name in (e.engine, e.label, f"{e.engine}-{e.version}")]
    if not wanted:
        raise UserError("unknown-engine", f"unknown engine {name!r}", None, (), did_you_mean(name, ENGINES))
    data = [
        {
            "engine": e.engine,
            "version": e.version,
            "flags": [
                {
                    "flag": f.name,
                    "type": f.kind,
                    "default": f.default,
                    "choices": list(f.choices or ()),
                    "aliases": list(f.aliases),
                }
                for f in e.flag_table().values()
            ]
            if e.flags
            else [],
        }
        for e in wanted
    ]
    rows = [
        (f"{d['engine']} {d['version']}", f["flag"], f["type"], str(f["default"]), ", ".join(f["choices"]))
        for d in data
        for f in d["flags"]
    ]
    _print(("engine", "flag", "type", "default", "choices"), rows, data, form)


def _place(path: Path, message: str) -> Where:
    """The line of a config.json that holds the key a message is about, or the file."""
    file = path / "config.json" if path.is_dir() else path
    shown = shown_path(file)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return Where(shown)
    for word in re.findall(r"\w+", message.rpartition(": ")[2]):
        for i, line in enumerate(lines, 1):
            if (at := line.find(f'"{word}"')) >= 0:
                return Where(shown, i, at + 1, line[:200], len(word) + 2)
    return Where(shown)


@catalog.command()
@click.argument("path", type=click.Path(path_type=Path))
@FORMAT
def add(path: Path, form: str) -> None:
    """Read a config.json (or the folder that holds it) and print what was understood of it."""
    from planner.catalog.models import find_model
    from planner.perf.describe import model_json

    if not path.exists():
        raise UserError(
            "no-such-file", f"{path} does not exist", None, (), ("name a config.json, or the folder that holds it",)
        )
    try:
        data = model_json(find_model(str(path)))
    except UserError as e:
        raise e.at(_place(path, e.message)) from e
    _print(("figure", "value"), _flat(data), data, form)
    if form == "text":
        click.echo(f"use it with: plan --model {path} --fleet FLEET", err=True)


@catalog.command()
@click.argument("path", type=click.Path(path_type=Path))
@FORMAT
def trace(path: Path, form: str) -> None:
    """Summarise a trace: rates, length percentiles, burstiness, prefix reuse."""
    from planner.intent.traces import summarise_file

    data = summarise_file(path).model_dump(mode="json", exclude_none=True)
    data.pop("pairs")
    _print(("figure", "value"), _flat(data), data, form)
