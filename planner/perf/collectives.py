"""What GPUs of a replica exchange: all-reduce, all-to-all, pipeline hops.

    t = alpha + gamma sqrt(bytes) + bytes x s_per_byte        (measured per GPU and group size, NVLink and PCIe)

A group wider than the fast link's domain adds a second stage over the NICs: reduce inside each node first, then
between nodes, where every GPU carries its own share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.catalog.kernels import Collective, kernels_for
from planner.perf.deployment import Hardware

# RDMA round and the rendezvous of a second stage between nodes; one order above NVLink's, as NCCL's own tables show.
NIC_ALPHA_S = 20e-6
HOP_ALPHA_S = 10e-6
# A NIC's usable share; and a PCIe x16's in a ring (RTX PRO 6000 tables: 24 to 38 GB/s of 64; the L40S table's 2 to
# 20 GB/s of 32 come from one host across sockets, and serving results on L40S contradict them).
NIC_RATIO = 0.8
PCIE_RATIO = 0.45


@dataclass(frozen=True, slots=True)
class Cost:
    """t(bytes) = alpha + gamma sqrt(bytes) + bytes x s_per_byte."""

    alpha_s: float = 0.0
    gamma: float = 0.0
    s_per_byte: float = 0.0

    def __call__(self, size_bytes: float) -> float:
        return self.alpha_s + self.gamma * math.sqrt(size_bytes) + self.s_per_byte * size_bytes


def _at(table: dict[int, Collective], gpus: int) -> Collective | None:
    """The measured group size, or between and beyond the measured ones by log2 of the size."""
    if not table:
        return None
    if gpus in table:
        return table[gpus]
    sizes = sorted(table)
    low = max((n for n in sizes if n < gpus), default=sizes[0])
    high = min((n for n in sizes if n > gpus), default=sizes[-1])
    if low == high:
        # Beyond the largest: latency grows with log2(n), the bytes per GPU approach a constant.
        c = table[low]
        factor = max(1.0, math.log2(gpus) / math.log2(low))
        return Collective(
            alpha_s=c.alpha_s * factor, gamma_s_per_sqrt_byte=c.gamma_s_per_sqrt_byte * factor, s_per_byte=c.s_per_byte
        )
    w = (math.log2(gpus) - math.log2(low)) / (math.log2(high) - math.log2(low))
    a, b = table[low], table[high]
    return Collective(
        alpha_s=(1 - w) * a.alpha_s + w * b.alpha_s,
        gamma_s_per_sqrt_byte=(1 - w) * a.gamma_s_per_sqrt_byte + w * b.gamma_s_per_sqrt_byte,
        s_per_byte=(1 - w) * a.s_per_byte + w * b.s_per_byte,
    )


def _ring(hardware: Hardware, gpus: int, factor: float) -> Cost:
    """From link speed alone, where no table fits: two NVLink latencies and the ring's bytes at 70% of the link."""
    fast = hardware.scale_up_gpus > 1 and "pcie" not in hardware.scale_up_kind.lower()
    link = hardware.scale_up_bytes_per_s * 0.7 if fast else hardware.pcie_bytes_per_s * PCIE_RATIO
    # (PCIE_RATIO is what a ring reaches when every GPU sends and receives through the host at once.)
    return Cost(6e-6 if fast else 15e-6, 5e-9 if fast else 2e-8, factor * (gpus - 1) / gpus / link)


def _intra(hardware: Hardware, gpus: int, kind: str) -> Cost:
    factor = 2.0 if kind == "allreduce" else 1.0
    kernels = kernels_for(hardware.gpu_id, hardware.arch)
    table = kernels.table.allreduce if kind == "allreduce" else kernels.table.alltoall
    measured = _at(dict(table), gpus)
    pcie_table = kernels.gpu_id == "rtx-pro-6000-server"
    pcie_here = "pcie" in hardware.scale_up_kind.lower()
    if measured is None or pcie_table != pcie_here or kernels.gpu_id == "l40s":
        return _ring(hardware, gpus, factor)
    # The table's bytes at the table's own link, rescaled where this GPU's link differs (NVL bridges, H800, AMD meshes).
    scale = 1.0 if kernels.measured else _LINK[kernels.gpu_id] / max(hardware.scale_up_bytes_per_s, 1.0)
    return Cost(measured.alpha_s, measured.gamma_s_per_sqrt_byte, measured.s_per_byte * scale)


_LINK = {
    "a100-80-sxm": 300e9,
    "h100-sxm": 450e9,
    "h200-sxm": 450e9,
    "b200-sxm": 900e9,
    "b300-sxm": 900e9,
    "l40s": 32e9,
    "rtx-pro-6000-server": 64e9,
}


def domain(hardware: Hardware) -> int:
    """GPUs that reach each other without a NIC."""
    return max(hardware.scale_up_gpus, hardware.gpus_per_node)


def allreduce(hardware: Hardware, gpus: int) -> Cost:
    """One all-reduce over `gpus` ranks."""
    if gpus <= 1:
        return Cost()
    inside = min(gpus, domain(hardware))
    cost = _intra(hardware, inside, "allreduce")
    if gpus <= inside:
        return cost
    nodes = math.ceil(gpus / inside)
    nic = max(hardware.nic_bytes_per_s * NIC_RATIO, 1e9)
    return Cost(
        cost.alpha_s + NIC_ALPHA_S * math.log2(nodes),
        cost.gamma,
        cost.s_per_byte + 2.0 * (nodes - 1) / nodes / inside / nic,
    )


def alltoall(hardware: Hardware, gpus: int) -> Cost:
    """One exchange in which every rank sends `bytes` in all, spread over the others."""
    if gpus <= 1:
        return Cost()
    inside = min(gpus, domain(hardware))
    cost = _intra(hardware, inside, "alltoall")
    if gpus <= inside:
        return cost
    nodes = math.ceil(gpus / inside)
    nic = max(hardware.nic_bytes_per_s * NIC_RATIO, 1e9)
    return Cost(cost.alpha_s + NIC_ALPHA_S, cost.gamma, cost.s_per_byte + (nodes - 1) / nodes / nic)


def hop(hardware: Hardware, *, tp: int) -> Cost:
    """One pipeline hop: over the fast link while two stages share a domain, else over the NIC."""
    link = hardware.scale_up_bytes_per_s * 0.7 if 2 * tp <= domain(hardware) else hardware.nic_bytes_per_s * NIC_RATIO
    return Cost(HOP_ALPHA_S, 0.0, 1.0 / max(link, 1e9))
