"""A step-by-step scheduler to hold the jumping one against: slow, short, obviously right."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.perf.pool import PoolSpec


@dataclass
class Job:
    at: float
    prompt: int
    cached: int
    output: int
    priority: int = 0
    """Lower is served first."""
    prefilled: int = 0
    tokens: int = 0
    first: float = -1.0
    last: float = -1.0
    gaps: list[float] = field(default_factory=list)


def run(pool: PoolSpec, jobs: list[Job]) -> None:
    """Decode-first (or prefill-first) batching without a cache limit; every step is simulated."""
    waiting: list[Job] = []
    partial: Job | None = None
    running: list[Job] = []
    pending = sorted(jobs, key=lambda j: j.at)
    now = 0.0
    table = pool.table
    while pending or waiting or partial or running:
        while pending and pending[0].at <= now + 1e-12:
            waiting.append(pending.pop(0))
        waiting.sort(key=lambda j: (j.priority, j.at))
        if not (waiting or partial or running):
            now = pending[0].at
            continue
        alone = pool.scheduler == "prefill-first"
        budget = pool.max_num_batched_tokens - (0 if alone else len(running))
        tokens, pairs, done = 0, 0.0, []
        while budget > 0:
            if partial is None:
                if not waiting or len(running) + len(done) >= pool.max_num_seqs:
                    break
                partial = waiting.pop(0)
                partial.prefilled = min(partial.cached, partial.prompt - 1)
            take = min(budget, partial.prompt - partial.prefilled)
            pairs += take * partial.prefilled + take * (take + 1) / 2
            tokens += take
            budget -= take
            partial.prefilled += take
            if partial.prefilled < partial.prompt:
                break
            done.append(partial)
            partial = None
        decoding = [] if alone and tokens else list(running)
        context = sum(j.prompt + j.tokens for j in decoding)
        now += table.step_s(
            decode_seqs=len(decoding), context_tokens=context, prefill_tokens=tokens, prefill_pairs=pairs
        )
        for j in decoding:
            j.tokens += 1
            j.gaps.append(now - j.last)
            j.last = now
            if j.tokens == j.output:
                running.remove(j)
        for j in done:
            j.tokens, j.first, j.last = 1, now, now
            if j.output > 1:
                running.append(j)
