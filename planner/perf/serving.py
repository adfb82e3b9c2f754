"""From step times to what a benchmark measures: closed loops, offline runs, static batches, Poisson arrivals.

Closed form, vectorised over rows (one row = one measured point of one replica or attention-DP rank). For a closed
loop of C clients, with N of them decoding and prompts' prefill work P riding in decode steps (or between them):

    R    = TTFT + (osl - 1) TPOT                      one client's cycle
    TPOT = decode_step(N) + (C - 1) P(N) TPOT / R      prefills of others that fall into one's decode phase
    N    = C (osl - 1) TPOT / R
    TTFT = front end + own prefill + wait for others' prefills (waves.py) + half a step

solved by damped iteration. Saturated runs replace C by what the KV cache admits. Queueing for a slot is never part
of a light-load TTFT. Percentiles other than the waves' p99 of TTFT are the simulation's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.perf.calibration import Constants
from planner.perf.step import Array, Stack, decode_attention_s, linear_s, prefill_attention_s
from planner.perf.waves import waves

_ROUNDS = 24
# Verification of multi-token prediction runs this many tokens per sequence: three drafts and the real one, as the
# public launch scripts of DeepSeek set it. Its prompts take longer to the first token, for the drafts of a prompt are
# prepared with it (paired public runs: 1.3 to 2.2 times where prefill and decode share GPUs).
VERIFIED_TOKENS = 4.0
MTP_TTFT_RATIO = 1.7

# The cache's size is known to some 10%: a run is called saturated where the clients exceed it by more.
CAPACITY_SLACK = 1.1

CLOSED, OFFLINE, STATIC, OPEN = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Cases:
    """Loads of many replicas. Arrays over rows; tokens, seconds, requests/s."""

    isl: Array
    osl: Array
    clients: Array
    """Concurrency per rank; infinity where everything is queued at once."""
    rate: Array
    """Poisson arrivals per rank, for open loops."""
    admitted: Array
    """Sequences that the cap and the cache of one rank admit at these lengths."""
    chunk: Array
    """Prefill tokens per step at most (`max_num_batched_tokens`, chunked prefill size)."""
    prefill_first: NDArray[np.bool_]
    kind: NDArray[np.intp]
    speculation: NDArray[np.bool_]
    spread: NDArray[np.bool_]
    """True where lengths vary from request to request."""
    dp: Array
    """Attention-DP ranks that advance in lock-step."""


@dataclass(frozen=True, slots=True)
class Overheads:
    """Constants of the serving layer per row."""

    request_s: Array
    stream_s: Array
    handover_s: Array
    mtp_tokens: Array
    mtp_step_ratio: Array
    dp_stall_ratio: Array
    dp_wait_steps: Array
    lockstep_prompts: Array


def overheads(constants: list[Constants]) -> Overheads:
    """One row per calibration."""
    return Overheads(*(np.array([getattr(c, f) for c in constants]) for f in Overheads.__dataclass_fields__))


@dataclass(frozen=True, slots=True)
class Served:
    """What the benchmark would measure, per rank. NaN where the kind of run does not define it."""

    ttft_s: Array
    tpot_s: Array
    output_tok_s: Array
    running: Array
    ttft_p99_s: Array
    saturated: NDArray[np.bool_]
    """True where more clients wait than the cache or the cap admits: TTFT is then queueing, not service."""


def decode_step_s(k: Stack, c: Cases, o: Overheads, running: Array, context: Array) -> Array:
    """A decode step's seconds per output token of one sequence."""
    seqs = np.maximum(running, 1.0)
    width = np.where(c.speculation, VERIFIED_TOKENS, 1.0)
    t = linear_s(k, seqs * width, mixed=False) + decode_attention_s(k, seqs, context)
    return np.asarray(np.where(c.speculation, t * o.mtp_step_ratio / o.mtp_tokens, t))


@dataclass(frozen=True, slots=True)
class Prefill:
    """What one prompt costs."""

    work_s: Array
    """Time it takes from decoding sequences: marginal where mixed into their steps, whole where run first."""
    own_s: Array
    """Its own latency with nobody waiting."""
    backlog_s: Array
    """Time between two prompts' completions while others wait."""


def prefill(k: Stack, c: Cases, running: Array, step_s: Array, decoding_s: Array) -> Prefill:
    """Cost of one prompt beside `running` decoding sequences.

    Mixed: the marginal time that a chunk adds to the step it rides in. First (SGLang): whole steps of its own.
    `step_s` is the decode step, `decoding_s` its attention part.
    """
    one = np.minimum(c.chunk, c.isl)
    pairs = prefill_attention_s(k, c.isl**2 / 2.0)
    seqs = np.maximum(running, 0.0)
    chunks = c.isl / one
    alone = linear_s(k, one, mixed=True)
    full = linear_s(k, c.chunk, mixed=True)
    beside = linear_s(k, seqs + one, mixed=True)
    base = np.where(seqs > 0.5, linear_s(k, np.maximum(seqs, 1.0), mixed=False), 0.0)
    first_work = alone * chunks + pairs
    mixed_work = np.maximum(beside - base, 0.0) * chunks + pairs
    per_token = np.minimum(full / c.chunk, alone / one)
    work = np.where(c.prefill_first, first_work, mixed_work)
    own = np.where(c.prefill_first, first_work, mixed_work + np.where(seqs > 0.5, step_s, 0.0) * chunks)
    beside_full = linear_s(k, seqs + c.chunk, mixed=True) + decoding_s
    backlog = np.where(
        c.prefill_first,
        per_token * c.isl + pairs,
        np.minimum(beside_full / c.chunk, own / c.isl) * c.isl + pairs * (own > 0),
    )
    return Prefill(work, own, np.minimum(backlog, own))


def closed_loop(k: Stack, c: Cases, o: Overheads) -> Served:
    """C clients in turns."""
    limit = c.admitted
    clients = np.minimum(c.clients, limit)
    saturated = c.clients > limit * CAPACITY_SLACK
    context = c.isl + c.osl / 2.0
    gaps = np.maximum(c.osl - 1.0, 1.0)
    running = np.maximum(clients * 0.9, 1.0)
    tpot = decode_step_s(k, c, o, running, context)
    ttft = np.zeros_like(tpot)
    wait = np.zeros_like(tpot)
    table = waves()
    together = np.where(c.spread, 0.0, np.minimum(o.lockstep_prompts, (clients - 1.0) / 2.0))
    stall = np.where(c.dp > 1, np.minimum(o.dp_stall_ratio, c.dp), 1.0)
    ranks_wait = np.where(c.dp > 1, o.dp_wait_steps, 0.0)
    p = None
    for i in range(_ROUNDS):
        step = decode_step_s(k, c, o, running, context)
        if p is None or i % 4 == 0:
            p = prefill(k, c, np.where(clients > 1, running, 0.0), step, decode_attention_s(k, running, context))
        think = gaps * tpot / np.maximum(clients * p.backlog_s, 1e-12)
        wait = table(clients=clients, think_ratio=think) * p.backlog_s + together * p.backlog_s
        service = p.own_s + wait + np.where(clients > 1, step / 2.0, 0.0) + ranks_wait * tpot
        ttft = (o.request_s + k.first_s + o.stream_s * clients + service) * np.where(c.speculation, MTP_TTFT_RATIO, 1.0)
        cycle = ttft + gaps * tpot
        new = step + (clients * stall - 1.0) * p.work_s * tpot / cycle
        tpot = 0.5 * tpot + 0.5 * new
        running = 0.5 * running + 0.5 * np.maximum(clients * gaps * tpot / cycle, 1.0)
    assert p is not None
    think = gaps * tpot / np.maximum(clients * p.backlog_s, 1e-12)
    p99 = ttft - wait + table(clients=clients, think_ratio=think, p99=True) * p.backlog_s
    cycle = ttft + gaps * tpot
    output = clients * c.osl / cycle
    # Clients beyond the limit wait for a slot: their cycle is what the throughput says.
    queued = np.where(saturated, c.clients * c.osl / output - gaps * tpot, ttft)
    return Served(queued, tpot, output, running, np.where(saturated, np.nan, p99), saturated)


def offline(k: Stack, c: Cases, o: Overheads) -> Served:
    """Everything queued at once: as many sequences as fit, each replaced when it ends."""
    slots = np.minimum(c.admitted, c.clients)
    context = c.isl + c.osl / 2.0
    running = slots
    for _ in range(6):
        step = decode_step_s(k, c, o, running, context)
        p = prefill(k, c, running, step, decode_attention_s(k, running, context))
        # One request costs its share of decode steps and its prefill; slots in prefill do not decode.
        stall = np.where(c.dp > 1, np.minimum(o.dp_stall_ratio, c.dp), 1.0)
        per_request = c.osl * step / running + p.work_s * stall
        running = np.maximum(slots - np.where(c.prefill_first, 0.0, 1.0) * p.own_s / per_request, slots * 0.3)
        running = np.maximum(running, 1.0)
    output = c.osl / per_request
    tpot = slots / output
    nan = np.full_like(tpot, np.nan)
    return Served(nan, tpot, output, running, nan, np.ones(len(tpot), dtype=bool))


def static_batch(k: Stack, c: Cases, o: Overheads) -> Served:
    """One batch: all prompts, then all answers; nobody joins."""
    slots = np.minimum(c.clients, c.admitted)
    waves_needed = np.ceil(c.clients / np.maximum(slots, 1.0))
    tokens = np.minimum(slots * c.isl, c.chunk)
    first = linear_s(k, tokens, mixed=True) * np.maximum(slots * c.isl / tokens, 1.0) + slots * prefill_attention_s(
        k, c.isl**2 / 2.0
    )
    step = decode_step_s(k, c, o, slots, c.isl + c.osl / 2.0)
    ttft = first + o.request_s + k.first_s
    total = (ttft + np.maximum(c.osl - 1.0, 0.0) * step) * waves_needed
    return Served(ttft, step, c.clients * c.osl / total, slots, ttft, waves_needed > 1)


def open_loop(k: Stack, c: Cases, o: Overheads) -> Served:
    """Poisson arrivals: N from Little's law, the wait of an M/D/1 prefill queue."""
    limit = c.admitted
    context = c.isl + c.osl / 2.0
    gaps = np.maximum(c.osl - 1.0, 1.0)
    running = np.ones_like(c.isl)
    tpot = decode_step_s(k, c, o, running, context)
    ttft = np.zeros_like(tpot)
    for i in range(_ROUNDS * 2):
        step = decode_step_s(k, c, o, running, context)
        if i % 4 == 0:
            p = prefill(k, c, np.where(running > 1.0, running, 0.0), step, decode_attention_s(k, running, context))
        busy = np.minimum(c.rate * p.work_s, 0.97)
        queue = np.minimum(c.rate * p.backlog_s, 0.97)
        tpot = 0.5 * tpot + 0.5 * np.minimum(step / (1.0 - busy), 100.0)
        running = np.clip(0.5 * running + 0.5 * c.rate * gaps * tpot, 1.0, limit)
        ttft = (
            o.request_s
            + k.first_s
            + o.stream_s * running
            + p.own_s
            + p.backlog_s * queue / (2.0 * (1.0 - queue))
            + step / 2.0
        )
    best = offline(k, c, o).output_tok_s
    saturated = c.rate * c.osl > best
    output = np.minimum(c.rate * c.osl, best)
    return Served(ttft, tpot, output, running, np.full_like(tpot, np.nan), saturated)


_MODELS = {CLOSED: closed_loop, OFFLINE: offline, STATIC: static_batch, OPEN: open_loop}


def _over(o: Overheads, index: NDArray[np.intp]) -> Overheads:
    return Overheads(*(getattr(o, f)[index] for f in Overheads.__dataclass_fields__))


def _rows(c: Cases, index: NDArray[np.intp]) -> Cases:
    return Cases(*(getattr(c, f)[index] for f in Cases.__dataclass_fields__))


def hand_over(k: Stack, c: Cases, o: Overheads, decoded: Served, *, ranks: Array, prefill_ranks: Array) -> Array:
    """TTFT with prefill apart: the prefill pool's own time and queue, then the fixed time of the hand-over.

    `k` holds the prefill workers. Clients turn between the pools: what they do while not in prefill is think time.
    """
    zero = np.zeros_like(c.isl)
    alone = Cases(
        **{**{f: getattr(c, f) for f in Cases.__dataclass_fields__}, "prefill_first": np.ones(len(c.isl), dtype=bool)}
    )
    p = prefill(k, alone, zero, zero, zero)
    clients = np.maximum(c.clients * ranks / np.maximum(prefill_ranks, 1.0), 1.0)
    think = (np.maximum(c.osl - 1.0, 1.0) * decoded.tpot_s + o.handover_s) / np.maximum(clients * p.backlog_s, 1e-12)
    wait = waves()(clients=clients, think_ratio=think) * p.backlog_s
    return np.asarray(o.request_s + k.first_s + o.handover_s + p.own_s + wait)


def decode_pool(k: Stack, c: Cases, o: Overheads, ttft_s: Array) -> Served:
    """A decode worker's rank: no prefill in its steps; clients are away while their prompts are prefilled."""
    limit = c.admitted
    context, gaps = c.isl + c.osl / 2.0, np.maximum(c.osl - 1.0, 1.0)
    running = np.minimum(np.maximum(c.clients, 1.0), limit)
    tpot = decode_step_s(k, c, o, running, context)
    for _ in range(8):
        away = np.minimum(c.clients * gaps * tpot / (ttft_s + gaps * tpot), limit)
        running = 0.5 * running + 0.5 * np.maximum(away, 1.0)
        tpot = decode_step_s(k, c, o, running, context)
    output = running / tpot * c.osl / gaps
    return Served(ttft_s, tpot, output, running, np.full_like(tpot, np.nan), c.clients > limit * CAPACITY_SLACK)


def serve(
    k: Stack,
    c: Cases,
    o: Overheads,
    *,
    prefill_stack: Stack | None = None,
    disaggregated: NDArray[np.bool_] | None = None,
    ranks: Array | None = None,
    prefill_ranks: Array | None = None,
) -> Served:
    """Each row by its own kind of run. Rows with prefill apart need the prefill workers' stack and both rank counts."""
    n = len(c.isl)
    out = {f: np.full(n, np.nan) for f in Served.__dataclass_fields__}
    apart = np.zeros(n, dtype=bool) if disaggregated is None else disaggregated
    for kind, model in _MODELS.items():
        index = np.flatnonzero((c.kind == kind) & ~apart)
        if len(index) == 0:
            continue
        served = model(k.take(index), _rows(c, index), _over(o, index))
        for f, values in out.items():
            values[index] = getattr(served, f)
    index = np.flatnonzero(apart)
    if len(index):
        assert prefill_stack is not None
        assert ranks is not None
        assert prefill_ranks is not None
        cases, over, decode = _rows(c, index), _over(o, index), k.take(index)
        served = decode_pool(decode, cases, over, np.full(len(index), 0.5))
        for _ in range(2):
            ttft = hand_over(
                prefill_stack.take(index), cases, over, served, ranks=ranks[index], prefill_ranks=prefill_ranks[index]
            )
            served = decode_pool(decode, cases, over, ttft)
        for f, values in out.items():
            values[index] = getattr(served, f)
    return Served(**{f: (v > 0.5 if f == "saturated" else v) for f, v in out.items()})  # type: ignore[arg-type]
