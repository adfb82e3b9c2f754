"""The constants of the step and serving model, as values; the shipped ones are data (`planner/catalog/calibrations/`).

Few constants transfer best, so every one has a physical meaning and multiplies a measured kernel table where one
exists. An engine generation has at most twenty fitted constants (`FITTED` in `planner.calibrate.parameters`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any

from planner.catalog.calibrations import CalibrationFile, calibration_files
from planner.perf.deployment import Hardware


@dataclass(frozen=True, slots=True)
class Constants:
    """What turns bytes and FLOP into seconds. Ratios multiply the GPU's kernel table (`planner.catalog.kernels`)."""

    kernel_tables: bool = True
    """False: every efficiency is one, which leaves the pure roofline."""
    smooth: float = 2.7
    """p of the smooth maximum (a^p + b^p)^(1/p) of memory and arithmetic time; infinity is the hard maximum."""
    hbm_ratio: float = 1.0
    """Streaming of dense weights."""
    flop_ratio: float = 1.0
    """Large matrix products."""
    moe_hbm_ratio: float = 1.0
    """Streaming of expert weights, on top of hbm_ratio."""
    moe_flop_ratio: float = 0.6
    """Grouped products of experts, on top of flop_ratio."""
    moe_fp8_ratio: float = 1.0
    """FP8 experts (block scales) against what the format promises; bytes and FLOP alike."""
    moe_tile_tokens: float = 32.0
    """Tokens of padding each touched expert computes: its tile is never full."""
    moe_narrow: float = 110.0
    """Width n of an expert slice costs efficiency n / (n + this)."""
    moe_skew: float = 0.76
    """Routing is uneven: B tokens touch as many experts as skew x B evenly routed ones."""
    ep_imbalance_ratio: float = 1.0
    """Work of the busiest expert-parallel rank over the mean."""
    int4_hbm_ratio: float = 0.8
    """Streaming of weight-only 4-bit weights (dequantised in registers), on top of hbm_ratio."""
    launch_ratio: float = 1.0
    """The engine's fixed time per kernel against the tables'."""
    attention_layer_s: float = 22e-6
    """Fixed time of an attention layer besides its products: attention's floor, norms, rope, cache write, MLP's activation."""
    mla_layer_s: float = 35e-6
    """The same for a latent-attention layer (absorbed products, more small kernels)."""
    sparse_layer_s: float = 25e-6
    """What a sparse indexer adds."""
    recurrent_layer_s: float = 25e-6
    """Fixed time of a linear-attention or state-space layer."""
    moe_layer_s: float = 20e-6
    """What an MoE layer adds: routing, sorting, gathering."""
    kv_ratio: float = 1.0
    """Reading the KV cache in decode."""
    prefill_attention_ratio: float = 1.0
    allreduce_ratio: float = 1.0
    """All-reduce time over the measured kernel's (divides where the engine fuses it with the norm)."""
    alltoall_ratio: float = 1.0
    elementwise_vectors: float = 12.0
    """Hidden-sized vectors of 2 bytes that norms, rope, activations and residuals move per token and layer."""
    host_step_s: float = 0.5e-3
    """Scheduler, sampler and output handling per step."""
    host_seq_s: float = 5e-6
    """The same per running sequence."""
    request_s: float = 20e-3
    """HTTP, tokenising, scheduling of a request; part of its TTFT."""
    stream_s: float = 0.3e-3
    """Front-end and client time per concurrent stream, added to TTFT."""
    handover_s: float = 0.29
    """Prefill/decode apart: fixed time from the end of the prefill to the first token the client sees."""
    mtp_tokens: float = 2.2
    """Tokens accepted per verification with multi-token prediction."""
    mtp_step_ratio: float = 1.25
    """A verification step (draft included) over a plain one."""
    wave_ratio: float = 0.1
    """Share of requests that belong to the first wave, when all clients start at once."""
    drift_per_year: float = 0.0
    """How much faster (log) the same engine gets per year of releases."""


IDEAL = Constants(
    kernel_tables=False, smooth=math.inf, moe_flop_ratio=1.0, moe_tile_tokens=0.0, moe_narrow=0.0, moe_skew=1.0, int4_hbm_ratio=1.0,
    launch_ratio=0.0, attention_layer_s=0.0, mla_layer_s=0.0, sparse_layer_s=0.0, recurrent_layer_s=0.0, moe_layer_s=0.0,
    allreduce_ratio=0.0, alltoall_ratio=0.0, elementwise_vectors=0.0, host_step_s=0.0, host_seq_s=0.0, request_s=0.0, stream_s=0.0,
    handover_s=0.0, mtp_tokens=1.0, mtp_step_ratio=1.0, wave_ratio=0.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Band:
    """Spread of log(measured / predicted): per-configuration offset and the rest, as standard deviations, with quantiles."""

    offset_sd: float
    rest_sd: float
    low_ratio: float
    """10th percentile of measured / predicted."""
    high_ratio: float
    """90th percentile of measured / predicted."""
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants for one engine generation on one GPU, and how far to trust them."""

    name: str
    """File and section they come from, e.g. `modern/vllm on Hopper`."""
    engine: str
    constants: Constants
    fit_date: str
    rows: int
    bands: tuple[tuple[str, Band], ...] = ()
    """(metric, level) joined by `/`: `tpot/seen`, `tpot/model-unseen`, `tpot/gpu-unseen`, `ttft/...`."""
    gpu_measured: bool = True
    engine_measured: bool = True
    warning: str | None = None
    prefill_first: bool = False
    """The engine runs prefill steps of their own before decode steps (SGLang), instead of mixing chunks in."""
    reference_date: str = ""
    """Release date at which the drift term is zero."""
    gpus: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    anchors: tuple[tuple[str, float, int], ...] = field(default=(), repr=False)
    """Measured corrections: (key, log offset, rows)."""

    def band(self, key: str) -> Band | None:
        """The band of `metric/level`, if it was measured."""
        return dict(self.bands).get(key)


def ideal() -> Calibration:
    """The pure roofline: spec-sheet peaks, no overheads. What the seeds' arithmetic uses."""
    return Calibration(name="ideal", engine="none", constants=IDEAL, fit_date="", rows=0)


def textbook() -> Calibration:
    """0.8 of the bandwidth, 0.4 of the peak, no overheads: the constants of the usual back-of-envelope estimate.

    Hard maximum, constants as the first study used them; it is what the accuracy tables compare with.
    """
    return Calibration(
        name="textbook",
        engine="none",
        constants=replace(IDEAL, hbm_ratio=0.8, flop_ratio=0.4, kv_ratio=0.8, prefill_attention_ratio=0.4),
        fit_date="",
        rows=0,
    )


_FAMILY = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "tensorrt-llm",
    "tensorrt-llm": "tensorrt-llm",
    "dynamo": "vllm",
}


@functools.lru_cache(maxsize=512)
def _calibration(engine: str, generation: str, gpu_id: str, arch: str) -> Calibration:
    files = calibration_files()
    file = files[generation]
    family = _FAMILY.get(engine)
    section = file.engines.get(family or "")
    warnings = []
    engine_measured = section is not None
    if section is None:
        fallback = "vllm" if "vllm" in file.engines else sorted(file.engines)[0]
        section = file.engines[fallback]
        warnings.append(
            f"engine {engine!r} was never measured in generation {generation}: {fallback}'s constants stand in"
        )
    values: dict[str, Any] = dict(file.constants) | dict(section.constants) | dict(file.architectures.get(arch, {}))
    if arch not in file.measured_architectures:
        warnings.append(f"no GPU of architecture {arch} was measured in generation {generation}: wider bands")
    elif gpu_id not in file.measured_gpus:
        warnings.append(f"GPU {gpu_id} was never measured in generation {generation}; other {arch} GPUs were")
    return Calibration(
        name=f"{generation}/{family or engine} on {arch}",
        engine=family or engine,
        constants=Constants(**values),
        fit_date=file.fit_date,
        rows=section.rows,
        bands=tuple((k, Band(**b.model_dump())) for k, b in file.bands.items()),
        gpu_measured=gpu_id in file.measured_gpus,
        engine_measured=engine_measured,
        warning="; ".join(warnings) or None,
        prefill_first=section.prefill_first,
        reference_date=file.reference_date,
        gpus=tuple(file.measured_gpus),
        models=tuple(file.measured_models),
        anchors=tuple((a.key, a.log_ratio, a.rows) for a in section.anchors),
    )


def generation_of(engine: str, engine_version: str, hardware: Hardware) -> str:
    """Which set of constants an engine release on a GPU belongs to.

    Hopper and Blackwell run today's engines (2025-26); Ampere, Ada and AMD rows were measured with 2024's, and no
    newer ones exist, so those GPUs keep the older generation whatever release is asked for.
    """
    version = engine_version.lower()
    if hardware.vendor == "amd":
        return "amd"
    if "2023" in version or "splitwise" in version:
        return "vllm-2023"
    if any(mark in version for mark in ("0.14", "0.17")) and engine in ("tensorrt-llm", "trtllm"):
        return "trtllm-2024"
    if (
        "2024" in version
        or version.startswith(("0.4", "v0.4"))
        or (engine == "vllm" and version.startswith(("0.5", "0.6")))
    ):
        return "trtllm-2024" if engine in ("tensorrt-llm", "trtllm") else "vllm-2024"
    return "modern"


def calibration_for(engine: str, engine_version: str, hardware: Hardware) -> Calibration:
    """The shipped constants for an engine release on a GPU, or the nearest relative's with a warning."""
    return _calibration(engine, generation_of(engine, engine_version, hardware), hardware.gpu_id, hardware.arch)


def calibration_from(file: CalibrationFile, *, engine: str, hardware: Hardware) -> Calibration:
    """The same from a file in hand (the user's own fit)."""
    section = file.engines.get(engine) or next(iter(file.engines.values()))
    values: dict[str, Any] = (
        dict(file.constants) | dict(section.constants) | dict(file.architectures.get(hardware.arch, {}))
    )
    return Calibration(
        name=f"{file.generation}/{engine}", engine=engine, constants=Constants(**values), fit_date=file.fit_date, rows=section.rows,
        bands=tuple((k, Band(**b.model_dump())) for k, b in file.bands.items()), prefill_first=section.prefill_first,
        reference_date=file.reference_date, gpus=tuple(file.measured_gpus), models=tuple(file.measured_models),
        anchors=tuple((a.key, a.log_ratio, a.rows) for a in section.anchors),
    )  # fmt: skip
