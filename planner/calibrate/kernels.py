"""Condense measured kernel tables into `planner/catalog/efficiency/kernels.yaml`.

The tables are NVIDIA's own kernel measurements (aiconfigurator-core 0.12.0, Apache-2.0), recomputed as efficiencies.
What is kept per GPU is what the step model can use: a matrix product is a fixed time plus bytes over a share of
the memory bandwidth, or FLOP over a share of the peak; an all-reduce is alpha + gamma sqrt(bytes) + bytes / beta.

Left out, because they mislead: vLLM's fp8_block products (collected without CUDA graphs), fits whose fixed time is
negative (L2 hits on L40S), GB200's bf16 products of vLLM at m = 16384.

    python -m planner.calibrate.kernels --tables DIR > planner/catalog/efficiency/kernels.yaml
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from planner.catalog.gpus import find_gpu
from planner.documents import dump_yaml

SYSTEMS = {
    "a100_sxm": "a100-80-sxm",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000-server",
}
# Peaks the tables are shares of (README of the tables): HBM bytes/s, then FLOP/s by format.
PEAKS: dict[str, dict[str, float]] = {
    "a100_sxm": {"hbm": 2.039e12, "bf16": 312e12, "int8": 624e12},
    "h100_sxm": {"hbm": 3.35e12, "bf16": 989e12, "fp8": 1978e12},
    "h200_sxm": {"hbm": 4.8e12, "bf16": 989e12, "fp8": 1978e12},
    "b200_sxm": {"hbm": 7.7e12, "bf16": 2250e12, "fp8": 4500e12, "fp4": 9000e12},
    "b300_sxm": {"hbm": 7.75e12, "bf16": 2250e12, "fp8": 4500e12, "fp4": 14000e12},
    "gb200": {"hbm": 8.0e12, "bf16": 2500e12, "fp8": 5000e12, "fp4": 10000e12},
    "gb300": {"hbm": 8.0e12, "bf16": 2500e12, "fp8": 5000e12, "fp4": 15000e12},
    "l40s": {"hbm": 0.864e12, "bf16": 362e12, "fp8": 733e12},
    "rtx_pro_6000_server": {"hbm": 1.792e12, "bf16": 468e12, "fp8": 936e12, "fp4": 1871e12},
}
FORMATS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "fp4", "sq": "int8"}
SOURCE = "aiconfigurator-core 0.12.0 (PyPI, Apache-2.0) systems/data, kernel times recomputed as shares of the peak"


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as f:
        return list(csv.DictReader(f))


def _round(value: float) -> float:
    return float(f"{value:.3g}")


def _median(values: Iterable[float]) -> float:
    return float(f"{statistics.median(values):.3g}")


def rescale(system: str, what: str) -> float:
    """The tables' peak over the catalogue's: shares are kept as shares of the catalogue's figure."""
    gpu = find_gpu(SYSTEMS[system])
    ours = gpu.memory.bandwidth if what == "hbm" else getattr(gpu, what.removesuffix("_block")).dense
    return PEAKS[system][what.removesuffix("_block")] / ours if ours else 1.0


def gemm(tables: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Per GPU and format: share of the peak (m, n, k >= 4096), fixed seconds, share of the HBM bandwidth (m = 8)."""
    found: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    large, small = read(tables / "efficiency_gemm_large.csv"), read(tables / "efficiency_gemm_decode_fit.csv")
    for system, gpu in SYSTEMS.items():
        for name, label in FORMATS.items():
            mfu = [
                float(r["mfu_median"])
                for r in large
                if r["system"] == system and r["dtype"] == name and not (name == "fp8_block" and r["engine"] == "vllm")
            ]
            fits = [
                r
                for r in small
                if r["system"] == system
                and r["dtype"] == name
                and float(r["t0_us"]) > 0
                and not (name == "fp8_block" and r["engine"] == "vllm")
            ]
            if not mfu:
                continue
            entry = {"flop_ratio": _round(statistics.median(mfu) * rescale(system, label))}
            if fits:
                entry |= {
                    "fixed_s": _median(float(r["t0_us"]) * 1e-6 for r in fits),
                    "hbm_ratio": _round(
                        statistics.median(min(float(r["bw_frac"]), 0.95) for r in fits) * rescale(system, "hbm")
                    ),
                }
            found[gpu][label] = entry
    return found


def attention(tables: Path) -> dict[str, dict[str, float]]:
    """Decode: floor of one layer's kernel and share of the bandwidth above 1 GB of KV.

    Prefill: 1 / MFU = 1 / large + waste / length.
    """
    found: dict[str, dict[str, float]] = defaultdict(dict)
    decode, prefill = read(tables / "efficiency_attn_decode.csv"), read(tables / "efficiency_attn_prefill.csv")
    for system, gpu in SYSTEMS.items():
        rows = [
            r
            for r in decode
            if r["system"] == system and r["kv_dtype"] == "bfloat16" and r["heads"] == "32" and r["kv_heads"] == "8"
        ]
        floor = [float(r["latency_us_median"]) * 1e-6 for r in rows if r["kv_MB_bin"] == "<1"]
        big = [float(r["membw_frac_median"]) for r in rows if r["kv_MB_bin"] == ">1024"]
        if floor and big:
            found[gpu] |= {
                "decode_floor_s": _median(floor),
                "decode_hbm_ratio": _round(statistics.median(big) * rescale(system, "hbm")),
            }
        curve = [
            (float(r["isl"]), float(r["mfu_causal_median"]))
            for r in prefill
            if r["system"] == system
            and r["attn_dtype"] == "bfloat16"
            and r["heads"] == "32"
            and r["kv_heads"] == "8"
            and float(r["isl"]) >= 512
        ]
        if len(curve) >= 4:
            x = np.array([[1.0, 1 / isl] for isl, _ in curve])
            y = np.array([1 / mfu for _, mfu in curve])
            # Relative errors count alike at every length: weight by 1 / y.
            a, b = np.linalg.lstsq(x / y[:, None], np.ones(len(y)), rcond=None)[0]
            found[gpu] |= {
                "prefill_flop_ratio": _round(rescale(system, "bf16") / a),
                "prefill_waste_tokens": float(f"{max(b / a, 0.0):.3g}"),
            }
    return found


def _curve(points: list[tuple[float, float]]) -> dict[str, float]:
    """Least squares in relative error for t = alpha + gamma sqrt(bytes) + bytes / beta, all non-negative."""
    x = np.array([b for b, _ in points])
    y = np.array([t for _, t in points])
    basis = np.stack([np.ones_like(x), np.sqrt(x), x], axis=1) / y[:, None]
    active = [0, 1, 2]
    while True:
        c = np.linalg.lstsq(basis[:, active], np.ones(len(y)), rcond=None)[0]
        if (c >= 0).all():
            break
        active.pop(int(np.argmin(c)))
    full = [0.0, 0.0, 0.0]
    for i, v in zip(active, c, strict=True):
        full[i] = float(f"{v:.3g}")
    return {"alpha_s": full[0], "gamma_s_per_sqrt_byte": full[1], "s_per_byte": full[2]}


def collectives(tables: Path) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Best measured implementation at each size: what an engine picks under CUDA graphs."""
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = defaultdict(lambda: defaultdict(dict))
    for r in read(tables / "efficiency_allreduce_fit.csv"):
        points = [
            (k * 1024.0, float(r[f"us@{n}"]) * 1e-6)
            for k, n in (
                (16, "16KiB"),
                (128, "128KiB"),
                (512, "512KiB"),
                (2048, "2MiB"),
                (8192, "8MiB"),
                (32768, "32MiB"),
            )
            if r[f"us@{n}"]
        ]
        found[SYSTEMS[r["system"]]]["allreduce"][str(r["gpus"])] = _curve(points)
    best: dict[tuple[str, int, float], float] = {}
    for r in read(tables / "efficiency_comm.csv"):
        if r["op"] == "alltoall" and r["system"] in SYSTEMS:
            key = (SYSTEMS[r["system"]], int(r["num_gpus"]), float(r["message_size_elems"]) * 2)
            best[key] = min(best.get(key, math.inf), float(r["latency_us"]) * 1e-6)
    groups: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for (gpu, n, size), t in sorted(best.items()):
        if 8192 <= size <= 2**27:
            groups[gpu, n].append((size, t))
    for (gpu, n), points in sorted(groups.items()):
        if len(points) >= 4:
            found[gpu]["alltoall"][str(n)] = _curve(points)
    return found


def condense(tables: Path) -> dict[str, Any]:
    """Everything, as the YAML says it."""
    g, a, c = gemm(tables), attention(tables), collectives(tables)
    return {
        "source": SOURCE,
        "gpus": {
            gpu: {"gemm": g.get(gpu, {}), "attention": a.get(gpu, {}), **dict(c.get(gpu, {}).items())}
            for gpu in SYSTEMS.values()
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="condense kernel tables into the catalogue's efficiency file")
    parser.add_argument("--tables", type=Path, required=True)
    sys.stdout.write(
        "# Generated by: python -m planner.calibrate.kernels. Shares of spec-sheet peaks; seconds and bytes.\n"
    )
    sys.stdout.write(dump_yaml(condense(parser.parse_args().tables)))
