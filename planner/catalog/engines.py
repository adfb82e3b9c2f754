"""Engines as data: which versions exist, how they are started, and every flag each version knows.

`engines/<engine>-<version>.yaml` describes a version; the flag table beside it (`*.flags.json`, one flag per line) is
generated from the engine's own argument parser by `benchmarks/make_flag_tables.py`. A new version is two files and no
code. `trtllm` is known for prediction only: nothing is rendered for it.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from planner.catalog.gpus import Source
from planner.data import catalog_data
from planner.documents import Strict, load_yaml, read_as
from planner.errors import UserError, Where, did_you_mean, not_supported

FlagKind = Literal["switch", "int", "float", "human_int", "human_int_or_auto", "json", "str"]

ENGINES = ("vllm", "sglang", "trtllm")
DEFAULT_VERSION = {"vllm": "0.33.0", "sglang": "0.5.23", "trtllm": "1.3.0"}
DYNAMO = "1.6.1"
DYNAMO_CARRIES = {"vllm": "0.31.0", "sglang": "0.5.21"}
"""What the runtime images of Dynamo 1.6.1 hold (its METADATA)."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One command-line option of one engine version."""

    name: str
    """The canonical long form, e.g. `--max-num-seqs`."""
    aliases: tuple[str, ...]
    negations: tuple[str, ...]
    kind: FlagKind
    nargs: int | str | None
    choices: tuple[str, ...] | None
    default: object
    deprecated: bool
    yaml: bool
    """May stand in the engine's `--config` file."""
    repeats: bool


class EngineVersion(Strict):
    """One version of one engine (or router)."""

    engine: str
    version: str
    carried_by: str | None = None
    """The runtime that ships this version instead of the newest one."""
    source: Source
    predicts_only: bool
    router: bool = False
    allow: tuple[str, ...] | None = None
    """Where the version's own parser was not read: the only flags that may be rendered."""
    flags: str | None = None
    flags_source: Source | None = None
    command: tuple[str, ...] = ()
    images: dict[str, str] = Field(default_factory=dict)
    """Default image per vendor (`nvidia`, `amd`, or `any`)."""
    image_note: str = ""
    port: int | None = None
    health_path: str = "/health"
    ready_path: str = "/health"
    metrics_path: str = "/metrics"
    user: int | None = None
    user_source: str = ""
    metrics: dict[str, str] = Field(default_factory=dict)
    """What the planner calls a metric -> the engine's Prometheus name."""
    bucket_flags: dict[str, str] = Field(default_factory=dict)
    """Flag that sets a histogram's bucket edges."""
    bucket_families: dict[str, str] = Field(default_factory=dict)
    """Where one JSON flag sets all edges: the family that each metric's histogram belongs to."""
    bucket_edges: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """Bucket edges that the engine exports by default, seconds."""

    @property
    def label(self) -> str:
        """`vllm 0.33.0`"""
        return f"{self.engine} {self.version}"

    def flag_table(self) -> dict[str, Flag]:
        """Canonical name -> flag; only the allowed ones where the version has an allow-list."""
        if self.flags is None:
            raise not_supported(f"rendering for {self.label}")
        table = _flags(self.flags)
        if self.allow is None:
            return table
        return {name: table.get(name) or EXTRA[self.engine][name] for name in self.allow}


def _flag(name: str, kind: FlagKind, choices: tuple[str, ...] | None = None) -> Flag:
    nargs = 0 if kind == "switch" else None
    return Flag(name, (), (), kind, nargs, choices, None, deprecated=False, yaml=True, repeats=False)


# Flags of Dynamo's own wrappers, which the engines' parsers do not have.
EXTRA: dict[str, dict[str, Flag]] = {
    "vllm": {
        "--model": _flag("--model", "str"),
        "--disaggregation-mode": _flag("--disaggregation-mode", "str", ("agg", "prefill", "decode")),
    },
    "sglang": {},
}


@functools.cache
def _flags(file: str) -> dict[str, Flag]:
    rows = json.loads(catalog_data("engines").joinpath(file).read_text(encoding="utf-8"))["flags"]
    return {
        r["flag"]: Flag(
            name=r["flag"],
            aliases=tuple(r["aliases"]),
            negations=tuple(r["negations"]),
            kind=r["kind"],
            nargs=r["nargs"],
            choices=None if r["choices"] is None else tuple(str(c) for c in r["choices"]),
            default=r["default"],
            deprecated=r.get("deprecated", False),
            yaml=r.get("yaml", True),
            repeats=r.get("repeats", False),
        )
        for r in rows
    }


@functools.cache
def engine_versions() -> dict[tuple[str, str], EngineVersion]:
    """(engine, version) -> description, routers included, in order of their names."""
    found = {}
    for path in sorted(catalog_data("engines").glob("*.yaml")):
        version = read_as(EngineVersion, load_yaml(path, what="engine file"), what="an engine")
        assert path.stem == f"{version.engine}-{version.version}", path.name
        found[version.engine, version.version] = version
    return found


def find_engine(name: str, version: str | None = None, *, where: Where | None = None) -> EngineVersion:
    """The version of an engine that a service asks for, the default one where it names none.

    >>> find_engine("vllm").version
    '0.33.0'
    """
    if name not in ENGINES:
        raise UserError("unknown-engine", f"unknown engine {name!r}", where, (), did_you_mean(name, ENGINES))
    return _find(name, version or DEFAULT_VERSION[name], where)


def find_router(name: str) -> EngineVersion:
    """The P/D-aware router `vllm-router` or `smg`; its newest known version."""
    return _find(name, max(v for e, v in engine_versions() if e == name), None)


def _find(name: str, version: str, where: Where | None) -> EngineVersion:
    known = engine_versions()
    found = known.get((name, version))
    if found is None:
        raise UserError(
            "unknown-engine-version",
            f"{name} {version} is not in the catalogue",
            where,
            ("every rendered flag is checked against that version's own flag table",),
            (f"known: {', '.join(v for e, v in known if e == name)}",),
        )
    return found
