"""formats: does this engine version run these number formats on this GPU, and does the GPU compute in them?

The table is `planner/catalog/quant_support.yaml`; "supported" and "native" are apart.
"""

from __future__ import annotations

from planner.catalog.quantsupport import Kind, Support, formats, support
from planner.perf.deployment import Deployment, Hardware
from planner.perf.rules.base import Refusal


def quant_support(engine: str, version: str, hardware: Hardware, precision: str) -> Support:
    """Weights stored in `precision` (bf16, fp8, int8, int4, nvfp4, mxfp4, mxfp8)."""
    return _support(engine, version, hardware, "weights", precision)


def kv_support(engine: str, version: str, hardware: Hardware, kv_dtype: str) -> Support:
    """A cache stored in `kv_dtype` (bf16, fp8)."""
    return _support(engine, version, hardware, "kv", kv_dtype)


def _support(engine: str, version: str, hardware: Hardware, kind: Kind, precision: str) -> Support:
    return support(
        engine=engine,
        version=version,
        vendor=hardware.vendor,
        arch=hardware.arch,
        capability=hardware.capability,
        kind=kind,
        precision=precision,
    )


def supported_formats(engine: str, version: str, hardware: Hardware, kind: Kind = "weights") -> tuple[str, ...]:
    """Formats that run here, native ones first."""
    found = [
        (f, s)
        for f in formats(engine, version, hardware.vendor, kind)
        if (s := _support(engine, version, hardware, kind, f)).supported
    ]
    return tuple(f for f, s in found if s.native) + tuple(f for f, s in found if not s.native)


def formats_run(d: Deployment) -> list[Refusal]:
    found = []
    kinds: tuple[tuple[Kind, str, str], ...] = (("weights", d.precision, "precision"), ("kv", d.kv_dtype, "kv-dtype"))
    for kind, precision, code in kinds:
        answer = _support(d.engine, d.engine_version, d.hardware, kind, precision)
        if not answer.supported:
            others = supported_formats(d.engine, d.engine_version, d.hardware, kind)
            found.append(Refusal(code, f"{answer.reason} ({answer.source})", ", ".join(others) or "another GPU"))
    return found
