"""Prefill and decode apart: how the cache moves, and how a promise is divided between the two sides.

The solver chooses both sides independently (any TP, any counts), so each must hold its own part:

    TTFT:      prefill's TTFT <= limit - (moving a p99 prompt's cache) - (two decode steps to be admitted)
    ITL, TPOT: the decode side alone
    E2E, TTFA: a quarter of the limit for prefill, three quarters for decode; of a percentile q each at (1 + q) / 2,
               which holds for the sum whatever the two have to do with each other (union bound)
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.candidates.ask import Ask
from planner.intent.slo import Slo
from planner.perf.calibration import calibration_for
from planner.perf.deployment import Deployment
from planner.perf.pool import Handover
from planner.perf.quantities import kv_bytes_per_token, state_bytes_per_sequence
from planner.perf.table import StepTable
from planner.perf.traffic import ClassLoad

PREFILL_SHARE = 0.25


def handover_between(prefill: Deployment, decode: Deployment) -> Handover:
    """The cache's way: all GPUs of the smaller side move their shards at once, over the slower NIC."""
    bandwidth = min(
        prefill.hardware.nic_bytes_per_s * prefill.shape.gpus, decode.hardware.nic_bytes_per_s * decode.shape.gpus
    )
    calibration = calibration_for(prefill.engine, prefill.engine_version, prefill.hardware)
    return Handover(
        bytes_per_token=kv_bytes_per_token(prefill.arch, prefill.kv_dtype),
        bytes_per_s=bandwidth,
        bytes_per_sequence=state_bytes_per_sequence(prefill.arch),
        latency_s=calibration.constants.handover_s,
        rdma=prefill.hardware.rdma and decode.hardware.rdma,
    )


def after_prefill_s(d: Deployment, table: StepTable, classes: Sequence[ClassLoad], *, decode_seqs: int) -> float:
    """Seconds that hand-over and admission add to a TTFT, for a prompt at the 99th percentile."""
    prompt = context = 0.0
    for c in classes:
        grid = c.grid()
        longest = float(grid.input_tokens[grid.weights > 0].max()) if c.lengths.rows else c.lengths.input.quantile(0.99)
        prompt = max(prompt, longest)
        context = max(context, grid.mean(grid.input_tokens) + grid.mean(grid.output_tokens) / 2)
    calibration = calibration_for(d.engine, d.engine_version, d.hardware)
    moved = state_bytes_per_sequence(d.arch) + kv_bytes_per_token(d.arch, d.kv_dtype) * prompt
    step = table.step_s(decode_seqs=decode_seqs, context_tokens=decode_seqs * context)
    return calibration.constants.handover_s + moved / (d.hardware.nic_bytes_per_s * d.shape.gpus) + 2 * step


def prefill_slos(
    d: Deployment, table: StepTable, classes: Sequence[ClassLoad], *, decode_seqs: int
) -> dict[str, tuple[Slo, ...]] | None:
    """The prefill side's part; None where nothing of a TTFT limit is left for it."""
    taken = after_prefill_s(d, table, classes, decode_seqs=decode_seqs)
    found: dict[str, tuple[Slo, ...]] = {}
    for c in classes:
        own = []
        for s in c.slos:
            if s.metric == "ttft":
                own.append(Slo("ttft", s.stat, s.limit_s - taken))
            elif s.metric in ("e2e", "ttfa"):
                own.append(Slo("ttft", halfway(s), s.limit_s * PREFILL_SHARE - taken))
        if any(s.limit_s <= 0 for s in own):
            return None
        found[c.name] = tuple(own)
    return found


def decode_slos(classes: Sequence[ClassLoad]) -> dict[str, tuple[Slo, ...]]:
    """The decode side's part."""
    return {
        c.name: tuple(
            Slo(s.metric, halfway(s), s.limit_s * (1 - PREFILL_SHARE)) if s.metric in ("e2e", "ttfa") else s
            for s in c.slos
            if s.metric != "ttft"
        )
        for c in classes
    }


def halfway(slo: Slo) -> str:
    """The percentile that two parts must each hold so that their sum holds the promise.

    >>> halfway(Slo("e2e", "p99", 10.0)), halfway(Slo("e2e", "mean", 10.0))
    ('p99.5', 'mean')
    """
    q = slo.quantile
    return "mean" if q is None else f"p{50 * (1 + q):g}"


def handover_needs(ask: Ask) -> bool:
    """Whether the service lets prefill and decode stand apart."""
    return (ask.service.fixed.pools or ask.service.pools) != "aggregated"
