"""TTFT of a closed loop by event simulation, for `plan estimate --simulate`."""

from __future__ import annotations

from planner.estimate.resolve import Resolved
from planner.estimate.rows import Row
from planner.perf.calibration import Calibration
from planner.perf.steptable import build_step_table
from planner.simulate.closed import closed_loop_ttft


def simulated_ttft(row: Row, resolved: Resolved, calibration: Calibration) -> float | None:
    """Seconds, or None where the simulation has nothing to say (apart, speculation, no fixed concurrency)."""
    if row.kind != "closed-loop" or row.concurrency is None or resolved.prefill is not None or row.speculation:
        return None
    each = max(1, round(row.concurrency / max(resolved.ranks, 1.0)))
    seqs = max(1, min(int(resolved.max_seqs), 2048))
    budget = max(int(resolved.chunk_tokens), seqs + 1)
    table = build_step_table(resolved.deployment, calibration, max_num_seqs=seqs, max_num_batched_tokens=budget)
    found = closed_loop_ttft(
        table,
        concurrency=each,
        isl=max(1, round(row.isl_tokens)),
        osl=max(1, round(row.osl_tokens)),
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        kv_tokens=resolved.kv_tokens,
        length_spread=0.11,
        scheduler="prefill-first" if calibration.prefill_first else "decode-first",
    )
    return found.ttft_mean_s
