"""Where a step's time goes: the step model's own terms, one row per group of operations.

The rows add up to `step.step_s` (a test says so). What the model computes as one sum (collectives, activations,
launches) is split by taking that term out and looking at the difference, so that no formula stands twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.perf.calibration import Calibration, Constants
from planner.perf.deployment import Deployment
from planner.perf.groups import Operations, operations
from planner.perf.step import coefficients, rates, smooth_max, step_s
from planner.perf.table import chunk_pairs

NAMES = {
    "attn": "attention projections",
    "linear_attn": "linear-attention projections",
    "indexer": "sparse indexer",
    "dense_mlp": "dense MLP",
    "shared_expert": "shared experts",
    "routed_expert": "routed experts",
    "router": "router",
    "lm_head": "LM head",
    "embed": "embedding",
}


@dataclass(frozen=True, slots=True)
class OpGroup:
    """One group of operations in one step of one GPU."""

    name: str
    seconds: float
    read_bytes: float
    flop: float
    roof: str
    """What binds: `memory`, `compute`, `link`, `launch`, `host`."""
    efficiency: float | None
    """Of the binding roof's peak that the group reaches; none where no roof applies."""
    source: str
    memory_s: float = 0.0
    """Time of moving the bytes alone; with `compute_s`, the two that the smooth maximum joins."""
    compute_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """One step."""

    seconds: float
    groups: tuple[OpGroup, ...]
    mbu: float
    """HBM bytes of the step over what the bandwidth could have moved."""
    mfu: float
    """FLOP of the step over what the bf16 peak (or the format's own) could have done."""


def step_groups(
    d: Deployment,
    calib: Calibration,
    *,
    decode_seqs: float,
    context_tokens: float,
    prefill_tokens: float = 0.0,
    prefill_pairs: float = 0.0,
) -> StepBreakdown:
    """Every group of one step. `context_tokens` is the sum over the decoding sequences."""
    k, ops, c = coefficients(d, calib), operations(d), calib.constants
    hw = d.hardware
    m = (decode_seqs + prefill_tokens) / k.pp
    mean = context_tokens / max(decode_seqs, 1e-9)
    sampled = min(m, 32.0) if prefill_tokens else m
    found: list[OpGroup] = []
    for i, op in enumerate(ops.matrices):
        width = sampled if op.head else m
        touched = float(-np.expm1(k.log_miss[i] * max(m, 1.0)))
        memory_s = float(k.mem_s[i]) * touched
        compute_s = float(k.flop_s[i]) * width + float(k.tile_s[i]) * touched
        seconds = float(smooth_max(np.array(memory_s), np.array(compute_s), k.smooth))
        r = rates(op, hw, c)
        bound = "memory" if memory_s >= compute_s else "compute"
        peak = hw.peak(op.rate) or hw.peak("bf16") or 1.0
        efficiency = r.bytes_per_s / hw.hbm_bytes_per_s if bound == "memory" else r.flop_per_s / peak
        name = NAMES.get(op.group, op.group) + ("" if op.rate == "bf16" else f" ({op.rate})")
        found.append(
            OpGroup(
                name,
                seconds,
                op.weight_bytes * touched,
                op.flop_per_token * width,
                bound,
                efficiency,
                r.source,
                memory_s,
                compute_s,
            )
        )
    found += _attention(d, calib, ops, decode_seqs=decode_seqs, mean_context=mean, prefill_pairs=prefill_pairs)
    if ops.state_bytes_per_seq and decode_seqs:
        moved = ops.state_bytes_per_seq * decode_seqs / k.pp
        found.append(
            OpGroup("recurrent state", float(k.state_s * decode_seqs / k.pp), moved, 0.0, "memory", None, "fit")
        )

    def without(changes: Constants) -> float:
        changed = replace(calib, constants=changes)
        return step_s(
            d,
            changed,
            decode_seqs=decode_seqs,
            context_tokens=context_tokens,
            prefill_tokens=prefill_tokens,
            prefill_pairs=prefill_pairs,
        )

    total = without(c)
    if d.shape.gpus > 1:
        link = total - without(replace(c, allreduce_ratio=0.0, alltoall_ratio=0.0))
        found.append(OpGroup("collectives", link, 0.0, 0.0, "link", None, "collective tables x fit"))
    traffic = total - without(replace(c, traffic_ratio=0.0))
    # Where activations cost no time (the pure roofline) their bytes are not part of the picture either.
    moved = ops.traffic_bytes_per_token * m if c.traffic_ratio else 0.0
    found.append(OpGroup("activations", traffic, moved, 0.0, "memory", None, "fit"))
    host = total - without(replace(c, host_step_s=0.0, host_seq_s=0.0))
    found.append(OpGroup("host: scheduler, sampling", host, 0.0, 0.0, "host", None, "fit"))
    rest = total - sum(g.seconds for g in found)
    found.append(OpGroup("launches and layer overheads", rest, 0.0, 0.0, "launch", None, "kernel tables x fit"))
    read = sum(g.read_bytes for g in found)
    flop = sum(g.flop for g in found)
    rate = _peak(ops, d)
    return StepBreakdown(
        total,
        tuple(found),
        mbu=read / (total * hw.hbm_bytes_per_s) if total else 0.0,
        mfu=flop / (total * rate) if total else 0.0,
    )


def _peak(ops: Operations, d: Deployment) -> float:
    """Peak of the number format that most of the arithmetic runs in."""
    by_format: dict[str, float] = {}
    for op in ops.matrices:
        by_format[op.rate] = by_format.get(op.rate, 0.0) + op.flop_per_token
    main = max(sorted(by_format), key=lambda f: by_format[f]) if by_format else "bf16"
    return d.hardware.peak(main) or d.hardware.peak("bf16") or 1.0


def _attention(
    d: Deployment, calib: Calibration, ops: Operations, *, decode_seqs: float, mean_context: float, prefill_pairs: float
) -> list[OpGroup]:
    k, hw, c = coefficients(d, calib), d.hardware, calib.constants
    found = []
    for j, a in enumerate(ops.contexts):
        seen = min(mean_context, float(k.cap[j]))
        seconds = decode_seqs / k.pp * float(k.context_s[j]) * seen
        moved = decode_seqs / k.pp * a.kv_bytes_per_token * seen / a.per_tokens
        work = decode_seqs / k.pp * a.decode_flop_per_token * seen / a.per_tokens
        name = "sparse indexer" if a.group == "indexer" else "attention over context"
        if a.cap_tokens != float("inf"):
            name += f" (at most {a.cap_tokens:,.0f} tokens)"
        if seconds > 0:
            peak = hw.peak("bf16") or 1.0
            memory = moved / hw.hbm_bytes_per_s >= work / peak
            reached = (moved / hw.hbm_bytes_per_s if memory else work / peak) / seconds
            found.append(
                OpGroup(f"{name}: decode", seconds, moved, work, "memory" if memory else "compute", reached, _source(c))
            )
        if prefill_pairs > 0:
            length = (2 * prefill_pairs) ** 0.5
            cap = float(k.cap[j])
            pairs = length * cap - cap**2 / 2 if length > cap else prefill_pairs
            spent = float(k.pair_s[j]) * pairs / k.pp
            done = a.pair_flop * pairs / a.per_tokens / k.pp
            reached = done / (hw.peak("bf16") or 1.0) / spent if spent else 0.0
            found.append(OpGroup(f"{name}: prefill", spent, 0.0, done, "compute", reached, _source(c)))
    return found


def _source(c: Constants) -> str:
    return "attention kernel tables x fit" if c.kernel_tables else "spec sheet"


def utilisation(
    d: Deployment, calib: Calibration, *, decode_seqs: int, context_tokens: float, chunk_tokens: int
) -> tuple[float, float]:
    """(MBU of a mean decode step, MFU of a step full of prompt). `context_tokens` is the mean per sequence."""
    decode = step_groups(d, calib, decode_seqs=decode_seqs, context_tokens=decode_seqs * context_tokens)
    chunk = step_groups(
        d,
        calib,
        decode_seqs=0,
        context_tokens=0,
        prefill_tokens=chunk_tokens,
        prefill_pairs=chunk_pairs(start_tokens=0, chunk_tokens=chunk_tokens),
    )
    return decode.mbu, chunk.mfu
