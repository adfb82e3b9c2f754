"""Closed loop: a fixed number of clients, each sending its next request when the last one is done.

This is how most benchmarks are run, so measured rows can be simulated as they were measured: all clients start at
once, prompts queue behind each other in the first wave and spread out later as far as the lengths differ.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from planner.perf.pool import Drafting, PoolSpec, Scheduler
from planner.perf.table import StepTable
from planner.simulate.engine import INF, Replica
from planner.simulate.requests import Ledger, Request


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """What a client-side benchmark prints."""

    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    requests: int


def closed_loop_ttft(
    table: StepTable,
    *,
    concurrency: int,
    isl: int,
    osl: int,
    max_num_seqs: int = 1024,
    max_num_batched_tokens: int = 8192,
    kv_tokens: float = 1e12,
    length_spread: float = 0.0,
    requests: int | None = None,
    scheduler: Scheduler = "decode-first",
    drafting: Drafting | None = None,
    seed: int = 1,
) -> ClosedLoop:
    """Simulated TTFT of a closed loop. `length_spread`: lengths are uniform in mean x [1 - spread, 1 + spread].

    Without `requests` the run has about five waves, at least 64 and at most 600 requests (a few milliseconds); large
    concurrencies then see fewer waves, as their benchmarks do.
    """
    count = requests if requests is not None else min(max(5 * concurrency, 64), max(600, 2 * concurrency))
    width = 1 + (drafting.tokens if drafting is not None else 0)
    pool = PoolSpec(
        table,
        max_num_seqs,
        max(max_num_batched_tokens, max_num_seqs * width),
        kv_tokens,
        scheduler=scheduler,
        drafting=drafting,
    )
    rng = np.random.default_rng(seed)
    prompts = _lengths(rng, isl, length_spread, count)
    outputs = _lengths(rng, osl, length_spread, count)
    ledger = Ledger(1, 1, 0.0, 1e18)
    replica = Replica(pool, ledger)
    sent = 0
    # Clients that are ready, by when: a finished request frees its client at its last token.
    ready = [(0.0, i) for i in range(min(concurrency, count))]
    seen = 0
    while sent < count and (ready or replica.end_s < INF):
        if ready and ready[0][0] <= replica.end_s:
            at, _ = heapq.heappop(ready)
            replica.advance(at)
            replica.arrive(Request(sent, at, 0, prompts[sent], 0, outputs[sent], 0), at)
            sent += 1
        else:
            replica.advance(replica.end_s)
        while seen < ledger.finished:
            heapq.heappush(ready, (ledger.arrival_s[seen] + ledger.e2e_s[seen], seen))
            seen += 1
    replica.advance(1e17)
    ttft = np.array(ledger.ttft_s)
    e2e, out = np.array(ledger.e2e_s), np.array(ledger.output, dtype=np.float64)
    several = out > 1
    tpot = float(((e2e - ttft)[several] / (out[several] - 1)).mean()) if several.any() else 0.0
    return ClosedLoop(
        float(ttft.mean()), float(np.quantile(ttft, 0.5)), float(np.quantile(ttft, 0.99)), tpot, len(ttft)
    )


def _lengths(rng: np.random.Generator, mean: int, spread: float, count: int) -> list[int]:
    if spread <= 0:
        return [mean] * count
    found: list[int] = (
        np.maximum(np.rint(mean * rng.uniform(1 - spread, 1 + spread, count)), 1).astype(np.int64).tolist()
    )
    return found
