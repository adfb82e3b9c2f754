"""Measured kernel efficiencies by GPU (`efficiency/kernels.yaml`), each a share of the catalogue's spec-sheet peak.

A GPU that nobody measured takes the table of the measured GPU nearest to it; `measured` then says so.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from pydantic import Field

from planner.data import catalog_data
from planner.documents import Strict, load_yaml, read_as


class Gemm(Strict):
    """A matrix product: share of the peak when large; fixed seconds and share of the bandwidth when small."""

    flop_ratio: float
    fixed_s: float | None = None
    hbm_ratio: float | None = None


class AttentionKernels(Strict):
    """Decode: floor per layer, share of the bandwidth. Prefill: 1 / MFU = (1 + waste / length) / flop_ratio."""

    decode_floor_s: float
    decode_hbm_ratio: float
    prefill_flop_ratio: float
    prefill_waste_tokens: float


class Collective(Strict):
    """t = alpha + gamma sqrt(bytes) + bytes x s_per_byte."""

    alpha_s: float
    gamma_s_per_sqrt_byte: float
    s_per_byte: float


class GpuKernels(Strict):
    """One GPU's table."""

    gemm: dict[str, Gemm]
    attention: AttentionKernels
    allreduce: dict[int, Collective] = Field(default_factory=dict)
    alltoall: dict[int, Collective] = Field(default_factory=dict)


class KernelFile(Strict):
    """The file."""

    source: str
    gpus: dict[str, GpuKernels]


@dataclass(frozen=True, slots=True)
class Kernels:
    """The table to use for a GPU, and whose it is."""

    table: GpuKernels
    gpu_id: str
    measured: bool
    source: str


@functools.cache
def kernel_file() -> KernelFile:
    """The shipped tables."""
    return read_as(
        KernelFile, load_yaml(catalog_data("efficiency/kernels.yaml"), what="kernel table"), what="a kernel table"
    )


# Architecture (and whether the fast link is PCIe) -> the measured GPU that stands for it.
_NEAREST = {
    "Ampere": "a100-80-sxm",
    "Ada": "l40s",
    "Hopper": "h100-sxm",
    "Blackwell": "b200-sxm",
    "Rubin": "b200-sxm",
}
_SAME_SILICON = {"h200-nvl": "h200-sxm", "h100-nvl": "h100-sxm", "gh200-96": "h100-sxm", "h800-sxm": "h100-sxm"}


@functools.cache
def kernels_for(gpu_id: str, arch: str) -> Kernels:
    """The measured table of this GPU or of its nearest relative."""
    file = kernel_file()
    if gpu_id in file.gpus:
        return Kernels(file.gpus[gpu_id], gpu_id, True, file.source)
    near = _SAME_SILICON.get(gpu_id) or _NEAREST.get(arch, "h100-sxm")
    return Kernels(file.gpus[near], near, False, file.source)
