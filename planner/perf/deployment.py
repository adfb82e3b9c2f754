"""What runs on one replica: a model's arithmetic, its weights and cache, GPUs and layout, and the engine.

The one value that memory, rules, step times, load model and simulation all take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.catalog.gpus import Gpu
from planner.errors import UserError
from planner.intent.fleet import GpuOverride
from planner.perf.arch import ModelArch, Shape, WeightPlan

KvDtype = Literal["bf16", "fp8"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU and its links as numbers, catalogue figures with the fleet's overrides applied.

    `peak_flop_per_s` holds dense rates for `bf16 fp8 int8 fp4`; a format the GPU does not run natively is absent.
    Bandwidths are one direction, per GPU.
    """

    gpu_id: str
    arch: str
    vendor: str
    capability: tuple[int, int] | None
    memory_bytes: float
    hbm_bytes_per_s: float
    peak_flop_per_s: tuple[tuple[str, float], ...]
    scale_up_bytes_per_s: float
    scale_up_gpus: int
    """GPUs that share the fast link: a node's, or the rack's for NVL72."""
    scale_up_kind: str
    pcie_bytes_per_s: float
    gpus_per_node: int
    nic_bytes_per_s: float
    rdma: bool

    def peak(self, number_format: str) -> float | None:
        """Dense FLOP/s of a number format, or None where it is not native."""
        return dict(self.peak_flop_per_s).get(number_format)


def hardware(
    gpu: Gpu,
    *,
    override: GpuOverride | None = None,
    gpus_per_node: int | None = None,
    nic_bytes_per_s: float | None = None,
    rdma: bool = False,
) -> Hardware:
    """Catalogue GPU + what the fleet knows better -> numbers."""
    o = override or GpuOverride()
    peaks = []
    for name in ("bf16", "fp8", "int8", "fp4"):
        rate = getattr(gpu, name)
        own = getattr(o, name)
        if own is not None:
            peaks.append((name, own))
        elif rate.native and rate.dense is not None:
            peaks.append((name, rate.dense))
    memory_bytes = o.memory or gpu.memory.reported
    if memory_bytes is None:
        raise UserError(
            "gpu-memory-unknown",
            f"nobody has seen yet what the driver reports as the memory of {gpu.id}",
            None,
            (f"the vendor says {gpu.memory.marketing / 1e9:g}GB; drivers report less",),
            ("write override: {memory: ...} in the fleet's pool",),
        )
    per_node = gpus_per_node or gpu.node.gpus
    pcie = gpu.pcie or 32e9
    domain = o.scale_up_domain or gpu.scale_up.domain_gpus
    return Hardware(
        gpu_id=gpu.id,
        arch=gpu.arch,
        vendor=gpu.vendor,
        capability=gpu.capability,
        memory_bytes=memory_bytes,
        hbm_bytes_per_s=o.hbm_bandwidth or gpu.memory.bandwidth,
        peak_flop_per_s=tuple(peaks),
        scale_up_bytes_per_s=o.scale_up or gpu.scale_up.bandwidth or pcie,
        scale_up_gpus=domain,
        scale_up_kind=gpu.scale_up.kind,
        pcie_bytes_per_s=pcie,
        gpus_per_node=per_node,
        nic_bytes_per_s=nic_bytes_per_s or gpu.node.nic or 0.0,
        rdma=rdma,
    )


@dataclass(frozen=True, slots=True)
class Deployment:
    """One replica."""

    arch: ModelArch
    weights: WeightPlan
    precision: str
    """The checkpoint's label: bf16, fp8, int8, int4, nvfp4, mxfp4."""
    kv_dtype: KvDtype
    hardware: Hardware
    shape: Shape
    engine: str
    engine_version: str
    role: Literal["aggregated", "prefill", "decode"] = "aggregated"
    weights_bytes_measured: float | None = None
    """Size of the checkpoint where it was measured; beats the formula."""
