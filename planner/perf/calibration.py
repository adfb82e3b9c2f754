"""The constants of the step and serving model, as values; the shipped ones are data (`planner/catalog/calibrations/`).

Few constants transfer best, so every one has a physical meaning and multiplies a measured kernel table where one
exists. An engine generation has at most twenty fitted constants (`FITTED` in `planner.calibrate.parameters`).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import date
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
    int4_ratio: float = 0.8
    """Weight-only 4-bit products (dequantised in registers), on top of hbm_ratio and flop_ratio."""
    launch_ratio: float = 1.0
    """The engine's fixed time per kernel against the tables'."""
    attention_layer_s: float = 22e-6
    """Fixed time of an attention layer besides its products: attention's floor, norms, rope, cache, activation."""
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
    traffic_ratio: float = 1.0
    """Activation traffic over the counted one (unfused kernels move more)."""
    eager_kernel_s: float = 6e-6
    """Host time to issue one kernel where no CUDA graph replays it: the floor of a prefill step."""
    host_step_s: float = 0.5e-3
    """Scheduler, sampler and output handling per step."""
    host_seq_s: float = 5e-6
    """The same per running sequence."""
    request_s: float = 20e-3
    """HTTP, tokenising, scheduling of a request; part of its TTFT."""
    first_kernel_s: float = 10e-6
    """Latency of a prompt's first forward pass per kernel that no CUDA graph replays; seen by its own TTFT only."""
    stream_s: float = 0.3e-3
    """Front-end and client time per concurrent stream, added to TTFT."""
    handover_s: float = 0.29
    """Prefill/decode apart: fixed time from the end of the prefill to the first token the client sees."""
    mtp_tokens: float = 2.5
    """Tokens accepted per verification with multi-token prediction."""
    mtp_step_ratio: float = 1.2
    """A verification step (draft included) over a plain one."""
    dp_stall_ratio: float = 2.0
    """Attention DP: stalls by all ranks' prefills over those by its own (1: all prefill together; ranks: never)."""
    dp_wait_steps: float = 0.0
    """Attention DP: decode steps a prompt waits for the other ranks' prompts, where the scheduler aligns them."""
    lockstep_prompts: float = 3.0
    """Where all lengths are equal, clients finish together and a prompt waits for this many others beyond chance."""
    pace_ratio: float = 1.0
    """All step times: the median of public closed loops met exactly, times the drift of the release against the
    reference date (releases get faster), times measured corrections of the configuration."""


IDEAL = Constants(
    kernel_tables=False,
    smooth=math.inf,
    moe_flop_ratio=1.0,
    moe_tile_tokens=0.0,
    moe_narrow=0.0,
    moe_skew=1.0,
    int4_ratio=1.0,
    launch_ratio=0.0,
    attention_layer_s=0.0,
    mla_layer_s=0.0,
    sparse_layer_s=0.0,
    recurrent_layer_s=0.0,
    moe_layer_s=0.0,
    allreduce_ratio=0.0,
    alltoall_ratio=0.0,
    traffic_ratio=0.0,
    eager_kernel_s=0.0,
    host_step_s=0.0,
    host_seq_s=0.0,
    request_s=0.0,
    stream_s=0.0,
    first_kernel_s=0.0,
    dp_stall_ratio=1.0,
    lockstep_prompts=0.0,
    handover_s=0.0,
    mtp_tokens=1.0,
    mtp_step_ratio=1.0,
)


@dataclass(frozen=True, slots=True)
class Band:
    """Spread of log(measured / predicted): a configuration's offset and the rest (both sd), with quantiles."""

    offset_sd: float
    rest_sd: float
    low_ratio: float
    """10th percentile of measured / predicted."""
    high_ratio: float
    """90th percentile of measured / predicted."""
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Anchors:
    """Measured corrections: log(measured / predicted) by (key, metric), and how many rows each rests on."""

    entries: tuple[tuple[str, str, float, int], ...]
    _index: dict[tuple[str, str], tuple[float, int]] = field(
        default_factory=dict, repr=False, compare=False, hash=False
    )

    def __post_init__(self) -> None:
        self._index.update({(key, metric): (value, rows) for key, metric, value, rows in self.entries})

    def sum(self, metric: str, keys: Iterable[str]) -> float:
        """What the corrections with these keys add to the logarithm of a prediction."""
        return sum(self._index[k, metric][0] for k in keys if (k, metric) in self._index)

    def rows(self, metric: str, key: str) -> int:
        """Rows behind one correction; 0 where there is none."""
        return self._index.get((key, metric), (0.0, 0))[1]


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
    anchors: Anchors = field(default_factory=lambda: Anchors(()), repr=False, compare=False, hash=False)
    """Measured corrections of releases and configurations."""

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


def engine_family(engine: str) -> str:
    """An engine's name in measurement files and calibrations: trtllm and tensorrt-llm are one."""
    return _FAMILY.get(engine, engine)


@functools.lru_cache(maxsize=4096)
def _calibration(engine: str, generation: str, gpu_id: str, arch: str, gap_years: float) -> Calibration:
    return calibration_from(
        calibration_files()[generation], engine=engine, gpu_id=gpu_id, arch=arch, gap_years=gap_years
    )


def calibration_from(
    file: CalibrationFile, *, engine: str, gpu_id: str, arch: str, gap_years: float = 0.0
) -> Calibration:
    """A file's constants (shipped, or the user's own fit) for an engine on a GPU, `gap_years` after its reference."""
    family = _FAMILY.get(engine)
    section = file.engines.get(family or "")
    warnings = []
    engine_measured = section is not None
    if section is None:
        fallback = "vllm" if "vllm" in file.engines else sorted(file.engines)[0]
        section = file.engines[fallback]
        warnings.append(
            f"engine {engine!r} was never measured in generation {file.generation}: {fallback}'s constants stand in"
        )
    values: dict[str, Any] = dict(file.constants) | dict(section.constants) | dict(file.architectures.get(arch, {}))
    yearly, host = values.pop("yearly_ratio", 1.0), values.pop("host_yearly_ratio", 1.0)
    if arch not in file.measured_architectures:
        warnings.append(f"no GPU of architecture {arch} was measured in generation {file.generation}: wider bands")
    elif gpu_id not in file.measured_gpus:
        warnings.append(
            f"GPU {gpu_id} was never measured in generation {file.generation}; other {arch} GPUs were: wider bands"
        )
    constants = aged(Constants(**values), years=gap_years, yearly_ratio=yearly, host_yearly_ratio=host)
    return Calibration(
        name=f"{file.generation}/{family or engine} on {arch}",
        engine=family or engine,
        constants=constants,
        fit_date=file.fit_date,
        rows=section.rows,
        bands=tuple((k, Band(**b.model_dump())) for k, b in ({**file.bands, **section.bands}).items()),
        gpu_measured=gpu_id in file.measured_gpus,
        engine_measured=engine_measured,
        warning="; ".join(warnings) or None,
        prefill_first=section.prefill_first,
        reference_date=file.reference_date,
        gpus=file.measured_gpus,
        models=file.measured_models,
        anchors=Anchors(tuple((a.key, a.metric, a.log_ratio, a.rows) for a in section.anchors)),
    )


REFERENCE_DATE = "2026-03-01"
# First days on which public benchmark runs used a release (InferenceX sweeps, image tags), newest last; later ones
# from the engines' release notes. Only the distance to the reference date matters, and it is rounded to months.
_RELEASES: dict[str, tuple[tuple[str, str], ...]] = {
    "vllm": (
        ("0.10", "2025-08-01"),
        ("0.11", "2025-10-01"),
        ("0.12", "2025-12-01"),
        ("0.13", "2025-12-20"),
        ("0.14", "2026-01-15"),
        ("0.15", "2026-01-30"),
        ("0.16", "2026-02-20"),
        ("0.17", "2026-03-08"),
        ("0.18", "2026-03-25"),
        ("0.19", "2026-04-10"),
    ),
    "sglang": (
        ("0.5.1", "2025-08-25"),
        ("0.5.5", "2025-11-08"),
        ("0.5.6", "2025-12-05"),
        ("0.5.7", "2026-01-05"),
        ("0.5.8", "2026-01-25"),
        ("0.5.9", "2026-02-25"),
        ("0.5.10", "2026-04-05"),
    ),
    "tensorrt-llm": (
        ("1.0.0", "2025-08-01"),
        ("1.1.0", "2025-10-15"),
        ("1.2.0", "2026-01-01"),
        ("1.3.0", "2026-03-01"),
        ("0.8.1", "2026-02-01"),
        ("0.7.0", "2025-12-15"),
    ),
}
_FURTHEST_YEARS = 0.5
# Newest measured releases; anything newer counts as of the last runs in the data, no better.
_NEWEST = {"vllm": "0.19", "sglang": "0.5.10", "tensorrt-llm": "1.3"}
NEWEST_DATE = "2026-07-01"


def release_date(engine: str, engine_version: str) -> str:
    """Day a release came into use, or empty where it is not known: the reference date then stands for it."""
    version = engine_version.lower().lstrip("v")
    found = ""
    family = _FAMILY.get(engine, engine)
    for prefix, day in _RELEASES.get(family, ()):
        if version.startswith(prefix) and not version[len(prefix) : len(prefix) + 1].isdigit():
            found = day
    number = re.match(r"\d+(?:\.\d+)+", version)
    if not found and number and family in _NEWEST and _parts(number.group()) > _parts(_NEWEST[family]):
        return NEWEST_DATE
    return found


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(x) for x in version.split("."))


def years(day: str) -> float:
    """Years from the reference date to a day, held within half a year: no drift is extrapolated further."""
    gap = (date.fromisoformat(day) - date.fromisoformat(REFERENCE_DATE)).days / 365.25
    return min(max(gap, -_FURTHEST_YEARS), _FURTHEST_YEARS)


def aged(c: Constants, *, years: float, yearly_ratio: float, host_yearly_ratio: float) -> Constants:
    """The constants of a release `years` after the reference date: steps and front end get faster at their own pace."""
    if years == 0.0 or (yearly_ratio == 1.0 and host_yearly_ratio == 1.0):
        return c
    host = host_yearly_ratio**years
    return replace(
        c,
        pace_ratio=c.pace_ratio * yearly_ratio**years,
        request_s=c.request_s * host,
        stream_s=c.stream_s * host,
        first_kernel_s=c.first_kernel_s * host,
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


def calibration_for(engine: str, engine_version: str, hardware: Hardware, *, date: str = "") -> Calibration:
    """The shipped constants for an engine release on a GPU, or the nearest relative's with a warning.

    `date`: the day of a run, where its release is not known (measurement files).
    """
    day = date or release_date(engine, engine_version)
    gap = round(years(day) * 12) / 12 if day else 0.0
    generation = generation_of(engine, engine_version, hardware)
    return _calibration(engine, generation, hardware.gpu_id, hardware.arch, gap if generation == "modern" else 0.0)
