"""Which number formats an engine runs on which GPUs, and where the GPU computes in them.

"Supported" and "native" are two questions: FP8 weights load on an A100 and save memory there, but arithmetic stays
in bf16. Support is a function of engine, version, vendor, capability and format, never of the GPU alone.
The table is `quant_support.yaml`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from planner.data import catalog_data
from planner.documents import Strict, load_yaml, read_as

Kind = Literal["weights", "kv"]
Source = Annotated[str, Field(min_length=1)]
Version = Annotated[str, Field(pattern=r"^\d+(\.\d+)+$")]
Capability = Annotated[str, Field(pattern=r"^\d+\.\d+$")]


class Format(Strict):
    """Where one format runs. `otherwise` says what happens where it is supported but not native."""

    from_: Annotated[Capability | None, Field(alias="from")] = None
    below: Capability | None = None
    native_from: Capability | None = None
    native_below: Capability | None = None
    archs: tuple[str, ...] = ()
    native_archs: tuple[str, ...] = ()
    otherwise: str | None = None
    why_not: str | None = None
    source: Source


class Entry(Strict):
    """One engine on one vendor's GPUs, from a version on."""

    engine: str
    since: Version
    vendor: str
    weights: dict[str, Format]
    kv: dict[str, Format]


class Table(Strict):
    """The whole file."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Support:
    """The answer: may it run, does the GPU compute in it, why, and who says so."""

    supported: bool
    native: bool
    reason: str
    source: str


def version_key(version: str) -> tuple[int, ...]:
    """Versions in order; what follows the numbers (`.post1`, `rc1`) does not count.

    >>> version_key("0.33.0") > version_key("0.9.2.post1")
    True
    """
    parts = []
    for part in version.lstrip("v").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)


@functools.cache
def table() -> Table:
    """The table as it ships."""
    return read_as(Table, load_yaml(catalog_data("quant_support.yaml"), what="quantisation table"), what="the table")


def entry_for(engine: str, version: str, vendor: str) -> Entry | None:
    """What holds for this version: the newest entry that is not newer than it."""
    asked = version_key(version)
    found = [e for e in table().entries if e.engine == engine and e.vendor == vendor and version_key(e.since) <= asked]
    return max(found, key=lambda e: version_key(e.since), default=None)


def formats(engine: str, version: str, vendor: str, kind: Kind) -> tuple[str, ...]:
    """Formats that the table knows for this engine and vendor."""
    entry = entry_for(engine, version, vendor)
    return () if entry is None else tuple(getattr(entry, kind))


@functools.lru_cache(maxsize=4096)
def support(
    *, engine: str, version: str, vendor: str, arch: str, capability: tuple[int, int] | None, kind: Kind, precision: str
) -> Support:
    """May `precision` run, and natively?

    >>> a100 = {"vendor": "nvidia", "arch": "Ampere", "capability": (8, 0), "kind": "weights", "precision": "fp8"}
    >>> found = support(engine="vllm", version="0.33.0", **a100)
    >>> found.supported, found.native
    (True, False)
    """
    entry = entry_for(engine, version, vendor)
    if entry is None:
        return Support(False, False, f"{engine} {version} is not known to run on {vendor} GPUs", "quant_support.yaml")
    found: Format | None = getattr(entry, kind).get(precision)
    thing = "cache" if kind == "kv" else "weights"
    if found is None:
        known = ", ".join(getattr(entry, kind)) or "none"
        reason = f"{engine} {version} has no {precision} {thing} on {vendor} GPUs (it has {known})"
        return Support(False, False, reason, "quant_support.yaml")
    if found.archs:
        supported, native = arch in found.archs, arch in found.native_archs
        need = " or ".join(found.archs)
    else:
        supported = _within(capability, found.from_, found.below)
        native = supported and _within(capability, found.native_from, found.native_below)
        need = f"compute capability {found.from_} or higher" + (f" and below {found.below}" if found.below else "")
    here = f"{arch} ({capability[0]}.{capability[1]})" if capability else arch
    if not supported:
        why = found.why_not or f"{precision} {thing} need {need}"
        return Support(False, False, f"{why}; this is {here}", found.source)
    if not native:
        return Support(True, False, found.otherwise or f"{precision} is unpacked before arithmetic", found.source)
    return Support(True, True, f"{here} computes in {precision}", found.source)


def _within(capability: tuple[int, int] | None, lowest: str | None, below: str | None) -> bool:
    if capability is None or lowest is None:
        return False
    return _pair(lowest) <= capability and (below is None or capability < _pair(below))


def _pair(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)
