"""Measured rows as values: one line of a measurement CSV -> what ran, under which load, and what was measured.

Two layouts are read: that of measurements_open.csv, and that of silicon_open.csv joined with silicon_resolved.csv.
What a row leaves unsaid is filled from what is known of its source (lengths drawn from 0.8 to 1.0 of nominal, cache
precision of the launch scripts), and what cannot be known makes a UserError that says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from planner.errors import UserError
from planner.perf.anchors import canonical, configuration_name, shape_key

__all__ = ["Measured", "Pool", "Row", "canonical", "parse"]

Kind = Literal["closed-loop", "saturated", "offline", "static", "open-loop", "slo-max"]

KINDS: dict[str, Kind] = {
    "closed-loop": "closed-loop",
    "closed-loop-low-conc": "closed-loop",
    "single-stream": "closed-loop",
    "closed-loop-saturated": "saturated",
    "offline-max": "offline",
    "static-batch": "static",
    "open-loop": "open-loop",
    "open-loop-saturated": "offline",
    "open-loop-slo-max": "slo-max",
}

ENGINES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "tensorrt-llm",
    "tensorrt-llm": "tensorrt-llm",
    "dynamo-trt": "tensorrt-llm",
}

GPUS = {
    "h100-sxm": "h100-sxm",
    "h100_sxm": "h100-sxm",
    "h200-sxm": "h200-sxm",
    "h200_sxm": "h200-sxm",
    "b200": "b200-sxm",
    "b200_sxm": "b200-sxm",
    "b300": "b300-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "a100-sxm-80gb": "a100-80-sxm",
    "a100-80gb": "a100-80-sxm",
    "a100_sxm": "a100-80-sxm",
    "a100-sxm-40gb": "a100-40-sxm",
    "a100-pcie-80gb": "a100-80-pcie",
    "gh200-96gb": "gh200-96",
    "gh200": "gh200-96",
    "rtx-pro-6000": "rtx-pro-6000-server",
    "l40s": "l40s",
    "mi300x": "mi300x",
    "mi325x": "mi325x",
    "mi355x": "mi355x",
    "mi250": "mi250x",
    "h200-nvl": "h200-nvl",
    "h100-nvl": "h100-nvl",
    "h20-96gb": "h20",
    "a10g": "a10g",
    "rtx-4090": "rtx-4090",
}

PRECISIONS = {
    "bf16": "bf16",
    "fp16": "bf16",
    "bf16/fp16": "bf16",
    "fp8": "fp8",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "mxfp4": "mxfp4",
    "int4": "int4",
    "awq": "int4",
    "int4-awq": "int4",
    "int8": "int8",
}


@dataclass(frozen=True, slots=True)
class Pool:
    """One kind of worker of a prefill/decode deployment: `workers` engines of `gpus` GPUs."""

    workers: int
    gpus: int
    ep: bool
    attention_dp: bool

    @property
    def tp(self) -> int:
        """Tensor parallelism of attention in one worker."""
        return 1 if self.attention_dp else self.gpus

    @property
    def dp(self) -> int:
        """Attention-DP ranks of one worker."""
        return self.gpus if self.attention_dp else 1


@dataclass(frozen=True, slots=True)
class Measured:
    """What the source measured, where it did. Seconds and tokens/s."""

    ttft_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_s: float | None = None
    tpot_p99_s: float | None = None
    output_tok_s: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    id: str
    model: str
    gpu: str
    gpus: int | None
    engine: str
    engine_version: str
    date: str
    """Day of the run, or empty: YYYY-MM-DD."""
    tp: int
    pp: int
    dp: int
    ep: bool
    prefill: Pool | None
    decode: Pool | None
    precision: str
    kv: str
    """bf16, fp8, or empty where not stated."""
    isl_tokens: float
    osl_tokens: float
    reserved_tokens: float
    """Longest request: what admission keeps room for."""
    concurrency: float | None
    rate_rps: float | None
    kind: Kind
    speculation: bool
    admitted: bool
    """The file says that the cache and the cap admitted every client (kind closed-loop, not saturated)."""
    source: str
    note: str
    measured: Measured

    @property
    def configuration(self) -> str:
        """model x GPU x engine x parallelism x precision: what cross-validation leaves out as one."""
        if self.decode is not None and self.prefill is not None:
            ep, dp = "ep" if self.decode.ep else "", "dp" if self.decode.attention_dp else ""
            shape = f"p{self.prefill.gpus}d{self.decode.gpus}{ep}{dp}"
        else:
            shape = shape_key(tp=self.tp, pp=self.pp, dp=self.dp, ep=self.ep)
        return configuration_name(
            model=self.model,
            gpu=self.gpu,
            engine=self.engine,
            shape=shape,
            precision=self.precision,
            speculation=self.speculation,
        )

    @property
    def sweep(self) -> str:
        """The configuration at one pair of lengths."""
        return f"{self.configuration}/{self.isl_tokens:g}/{self.osl_tokens:g}/{self.date}/{self.engine_version}"


def _wrong(what: str) -> UserError:
    return UserError("case", what)


def _text(row: Mapping[str, str | None], *names: str) -> str:
    for n in names:
        v = row.get(n)
        if v and (text := v.strip()) and text not in ("nan", "NaN"):
            return text
    return ""


def number(row: Mapping[str, str | None], *names: str, what: str | None = None) -> float | None:
    """The first of these columns that holds a number; None where all are empty; UserError where one is no number."""
    text = _text(row, *names)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise _wrong(f"{what or names[0]} is {text[:40]!r}, not a number") from None
    if not math.isfinite(value):
        return None
    if value < 0:
        raise _wrong(f"{what or names[0]} is negative: {text[:40]}")
    return value


def count(row: Mapping[str, str | None], *names: str, default: int | None = None) -> int | None:
    """A positive whole number."""
    value = number(row, *names)
    if value is None:
        return default
    if value != int(value) or not 1 <= value <= 10**6:
        raise _wrong(f"{names[0]} is {value:g}; a whole number from 1 is needed")
    return int(value)


def _positive(row: Mapping[str, str | None], *names: str) -> float:
    value = number(row, *names)
    if value is None:
        raise _wrong(f"{names[0]} is missing")
    if not 1 <= value <= 10**8:
        raise _wrong(f"{names[0]} is {value:g} tokens")
    return value


_RUN = re.compile(r"(?:run |measured=)(\d{4}-\d{2}-\d{2})")


def gpu_id(name: str) -> str:
    """Catalogue id of a GPU as measurement files write it."""
    key = name.lower().rstrip("?").strip()
    return GPUS.get(key, name)


def engine_of(name: str) -> str:
    """Engine family of an engine as measurement files write it."""
    key = name.lower().strip()
    if key in ENGINES:
        return ENGINES[key]
    if key.startswith("mango"):
        # Mango LLMBoost wraps vLLM (its version string says which).
        return "vllm"
    if not key:
        raise _wrong("the engine is not stated")
    raise _wrong(f"engine {name!r} is not modelled")


def _precision(text: str, model: str) -> str:
    """Weight precision label; what a file leaves blank is read off the checkpoint's name, else 16-bit."""
    label = text.lower().strip()
    if label in PRECISIONS:
        return PRECISIONS[label]
    if label and label != "?":
        raise _wrong(f"weight precision {text!r} is not known")
    name = model.lower()
    for mark, found in (("nvfp4", "nvfp4"), ("fp8", "fp8"), ("awq", "int4"), ("int4", "int4"), ("gpt-oss", "mxfp4")):
        if mark in name:
            return found
    if "deepseek-v3" in name or "deepseek-r1" in name:
        return "fp8"
    return "bf16"


def _kv(text: str) -> str:
    label = text.lower().strip()
    if label.startswith(("fp8", "e4m3")):
        return "fp8"
    if label.startswith(("bf16", "fp16", "auto(16", "float16", "bfloat16")):
        return "bf16"
    return ""


def parse(row: Mapping[str, str | None]) -> Row:
    """One CSV line of either layout."""
    return (
        _silicon(row)
        if "silicon_ttft_ms" in row or "length_factor" in row or "silicon_data_source" in row
        else _open(row)
    )


def _open(row: Mapping[str, str | None]) -> Row:
    model = _text(row, "model")
    if not model:
        raise _wrong("model is missing")
    source = _text(row, "source_group", "source")
    note = _text(row, "note")
    if _text(row, "mode") == "disagg":
        raise _wrong("prefill/decode layout is not stated (workers per pool)")
    if "enforce-eager" in note.lower() or "enforce_eager" in note.lower():
        raise _wrong("ran without CUDA graphs (enforce-eager)")
    tp = count(row, "tp")
    if tp is None:
        raise _wrong("tensor parallelism is not stated")
    isl, osl = _positive(row, "isl"), _positive(row, "osl")
    spread = "inferencex single-turn" in note.lower() or source.lower().startswith("inferencex/")
    factor = 0.9 if spread else 1.0
    rate_text, conc_text = _text(row, "request_rate"), _text(row, "concurrency")
    rate = None if rate_text.lower() in ("", "inf") else number(row, "request_rate")
    concurrency = float(conc_text) if re.fullmatch(r"\d+(\.\d+)?", conc_text) else None
    kind = _kind(_text(row, "kind"), concurrency=concurrency, rate=rate, concurrency_text=conc_text)
    gpu = gpu_id(_text(row, "gpu"))
    gpus = count(row, "n_gpus")
    ms = 1e-3

    def seconds(*names: str) -> float | None:
        v = number(row, *names)
        return v * ms if v else None

    pp, dp = count(row, "pp", default=1) or 1, count(row, "dp", default=1) or 1
    ep = int(number(row, "ep") or 1)
    if "minimax-m2.5" in model.lower() and 1 < tp == dp and ep == tp * dp:
        # The exporter multiplied tp by dp (README trap 6): the run was tp GPUs with experts spread over them.
        gpus, dp, ep = tp, 1, tp
    if source.startswith("mlperf5.1") and "deepseek-r1" in model.lower() and tp == 8 and ep == 8:
        # Attention data parallelism, labelled tp8 (first study, inferred from a residual of a factor two).
        tp, dp = 1, 8
    return Row(
        id=_text(row, "id"),
        model=model,
        gpu=gpu,
        gpus=gpus,
        engine=engine_of(_text(row, "engine")),
        engine_version=_text(row, "engine_version"),
        date=m.group(1) if (m := _RUN.search(note)) else "",
        tp=tp,
        pp=pp,
        dp=dp,
        ep=ep > 1,
        prefill=None,
        decode=None,
        precision=_precision(_text(row, "precision_weights"), model),
        kv=_kv(_text(row, "precision_kv")),
        isl_tokens=isl * factor,
        osl_tokens=osl * factor,
        reserved_tokens=isl + osl,
        concurrency=concurrency,
        rate_rps=rate,
        kind=kind,
        speculation=_text(row, "spec_decode").lower() in ("mtp", "eagle", "yes"),
        admitted=_text(row, "kind") in ("closed-loop", "closed-loop-low-conc"),
        source=source,
        note=note,
        measured=Measured(
            ttft_s=seconds("ttft_ms_mean_or_p50"),
            ttft_p99_s=seconds("ttft_ms_p99"),
            tpot_s=seconds("tpot_ms_mean_or_p50"),
            tpot_p99_s=seconds("tpot_ms_p99"),
            output_tok_s=number(row, "output_tok_s_total"),
        ),
    )


def _kind(text: str, *, concurrency: float | None, rate: float | None, concurrency_text: str) -> Kind:
    if text in KINDS:
        return KINDS[text]
    if text:
        raise _wrong(f"kind {text!r} is not known")
    if rate is not None:
        return "open-loop"
    if concurrency is not None:
        return "closed-loop"
    if "offline" in concurrency_text.lower():
        return "offline"
    raise _wrong("neither concurrency nor request rate is stated")


_POOL = re.compile(r"^(\d+)x(\d+) ep(\d+)( dp)?$")


def pool(text: str) -> Pool:
    """`2x8 ep8 dp`: two workers of eight GPUs, experts over eight, attention data-parallel."""
    m = _POOL.match(text.strip())
    if not m:
        raise _wrong(f"prefill/decode layout {text!r} is not like '2x8 ep8 dp'")
    return Pool(int(m.group(1)), int(m.group(2)), int(m.group(3)) > 1, m.group(4) is not None)


def _silicon(row: Mapping[str, str | None]) -> Row:
    model = _text(row, "model_path", "model")
    if not model:
        raise _wrong("model_path is missing")
    factor = number(row, "length_factor")
    if factor is None:
        raise _wrong("length_factor is missing: join the row with its resolved layout")
    isl, osl = _positive(row, "isl"), _positive(row, "osl")
    concurrency = number(row, "concurrency")
    if not concurrency:
        raise _wrong("concurrency is missing")
    spec = _text(row, "spec")
    if spec in ("ambig", "unknown"):
        raise _wrong("whether speculation was on is not known")
    disagg = _text(row, "mode") == "disagg"
    prefill = decode = None
    tp, dp, ep = 1, 1, 1
    if disagg:
        if not _text(row, "prefill") or not _text(row, "decode"):
            raise _wrong("prefill/decode layout is not known")
        prefill, decode = pool(_text(row, "prefill")), pool(_text(row, "decode"))
    else:
        tp_here = count(row, "tp")
        if tp_here is None:
            raise _wrong("tensor parallelism is not known")
        tp, dp, ep = tp_here, count(row, "attention_dp", default=1) or 1, count(row, "ep", default=1) or 1
    source_text = _text(row, "silicon_data_source")
    ttft, tpot = number(row, "silicon_ttft_ms"), number(row, "silicon_tpot_ms")
    return Row(
        id=_text(row, "id"),
        model=model,
        gpu=gpu_id(_text(row, "system")),
        gpus=count(row, "gpus_total"),
        engine=engine_of(_text(row, "backend")),
        engine_version=_text(row, "backend_version"),
        date=m.group(1) if (m := _RUN.search(source_text)) else "",
        tp=tp,
        pp=1,
        dp=dp,
        ep=ep > 1,
        prefill=prefill,
        decode=decode,
        precision=_precision(_text(row, "weights", "precision"), model),
        kv=_kv(_text(row, "kv_dtype")),
        isl_tokens=isl * factor,
        osl_tokens=osl * factor,
        reserved_tokens=isl + osl,
        concurrency=concurrency,
        rate_rps=None,
        kind="closed-loop",
        speculation=spec.startswith("mtp"),
        admitted=False,
        source="silicon/" + (_text(row, "source") or "unknown"),
        note=source_text,
        measured=Measured(ttft_s=ttft * 1e-3 if ttft else None, tpot_s=tpot * 1e-3 if tpot else None),
    )
