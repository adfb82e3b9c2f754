"""What clients see of a replica at a rate: gaps, first tokens, mean gaps of requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.perf.firsttoken import first_token, first_token_ranked, first_token_ranks
from planner.perf.lengths import Floats
from planner.perf.nodes import (
    exponential_nodes,
    level_nodes,
    sorted_by,
    spread_nodes,
    strata_of,
)
from planner.perf.priority import ahead_of, slot_nodes
from planner.perf.prompts import dearest
from planner.perf.queue import Backlog, Running
from planner.perf.replica import ReplicaModel
from planner.perf.spread import Spread, spread
from planner.perf.stalls import Stalls
from planner.perf.traffic import Requests

_Z = np.array([-2.33, -1.28, -0.67, 0.0, 0.67, 1.28, 2.33])
_Z_WEIGHTS = np.array([0.04, 0.16, 0.2, 0.2, 0.2, 0.16, 0.04])
_LEAST = 0.02
"""Share of the time that decodes have, at least."""
TTFT_SAFETY = 1.15
"""TTFT is stated a seventh longer than the chain says: with it nine of ten p99 lie on the safe side of the
simulation up to the default load cap (benchmarks/load.py; without it the median error is -2%)."""


def gap_spread(model: ReplicaModel, run: Running, backlog: Backlog | None, rate: float) -> Spread:
    """All gaps pooled: decode steps at the running batch, with and without prompt chunks in them."""
    if model.mean_steps == 0:
        return spread([0.0, 0.0], [1.0, 1.0], "no gaps", mean=0.0)
    nodes, base, weights = model.step_nodes(run)
    per_step, token_s = model.per_step, model.pool.table.token_s
    little = run.mean / (rate * model.mean_steps)
    if backlog is None:
        values, w = base, weights
    elif model.batch.stands:
        found = model.batch.stalls(rate, run.mean, batch_mean=backlog.batch_mean, chain=backlog.ranks)
        if backlog.ranks is not None:
            # Other ranks' prompts lengthen the own decode steps.
            base = np.maximum(base[:, None], backlog.ranks.step_s).ravel()
            weights = (weights[:, None] * backlog.ranks.others_idle).ravel()
        values, w = stalls(model, base, weights, found)
    else:
        alone = backlog.step_s if backlog.ranks is None else backlog.ranks.step_s
        shares = backlog.chunks if backlog.ranks is None else backlog.ranks.steps
        added = alone - alone[0]
        where, where_w = model.prompts.positions(run.mean)
        if backlog.ranks is not None:
            where, where_w = where - backlog.ranks.dearer_s, dearest(where_w, backlog.ranks.crowd)
        tokens: Floats = np.arange(backlog.chunk_levels + 1.0) * backlog.level_tokens
        # Beside other decodes than the mean number a chunk adds more or less, and the budget leaves it less or more.
        each = model.prompts.added_s(np.append(nodes, max(run.mean, 1.0)), tokens)
        extra = added * each[:-1] / np.maximum(each[-1], 1e-12)
        values = base[:, None, None] + extra[:, :, None] + np.outer(tokens, where)
        # Longer steps at a larger batch meet more prompts: f is the chain's at the mean batch, f T / T_mean here.
        mixed = float(shares[1:].sum())
        longer = base / model.step_at(run.mean)
        here = mixed * longer / (1 + mixed * (longer - 1))
        chunks = np.outer(here / max(mixed, 1e-12), shares)
        chunks[:, 0] = 1 - here
        w = weights[:, None, None] * chunks[:, :, None] * where_w[None, None, :]
    # The chain's mean (Little's law) is the better one: keep it, and let the percentiles be the mixture's.
    if per_step > 1:
        # A verified step yields several tokens at once: one gap of a step, the others of nothing.
        values, w = (
            np.concatenate([np.ravel(values), [0.0]]),
            np.concatenate([np.ravel(w) / np.sum(w) / per_step, [1 - 1 / per_step]]),
        )
    return spread(values, w, "mixed-step mixture", mean=little / per_step).shifted(token_s)


def stalls(model: ReplicaModel, base: Floats, weights: Floats, found: Stalls) -> tuple[Floats, Floats]:
    """Gaps under a prefill-first scheduler: a decode step, and the prompts alone that ran before it.

    A sequence's first gap is the rest of the stall that its own prompt was in: one gap of each request.
    """
    first = 1 / max(model.mean_steps, 1.0)
    some = found.begun(base)
    values = np.concatenate([base, (base[:, None] + found.times_s).ravel(), (base[:, None] + found.joined_s).ravel()])
    w = np.concatenate(
        [
            weights * (1 - some) * (1 - first),
            ((weights * some)[:, None] * found.weights).ravel() * (1 - first),
            (weights[:, None] * found.joined_weights).ravel() * first,
        ]
    )
    return values, w


def ttft_spread(
    model: ReplicaModel,
    grid: Requests,
    run: Running,
    backlogs: Sequence[Backlog],
    *,
    level: tuple[int, float] | None = None,
) -> Spread:
    """Wait for a slot, for the step under way, for the prompts ahead, and the own prompt's steps.

    Three backlogs stand for a small, the mean and a large running batch (weights 1, 2, 1). Values carry TTFT_SAFETY.
    `level`: the class's priority and the rate of all classes (one rank's), where classes differ in priority.
    """
    host = model.pool.table.request_s + model.pool.table.token_s
    if level is None:
        slot, slot_w = exponential_nodes(run.queue_ratio, run.queue_rate_per_s)
    else:
        slot, slot_w = slot_nodes(model, run, *level)
    if not backlogs:
        # A decode pool: admission at the next step boundary, then one step.
        nodes, w = model.running_nodes(run)
        step = np.interp(nodes, np.arange(1, len(model.step) + 1), model.step)
        values = step[:, None, None] * (1 + np.array([1, 3, 5]) / 6)[None, :, None] + slot[None, None, :] + host
        return spread(
            values,
            w[:, None, None] * np.full(3, 1 / 3)[None, :, None] * slot_w[None, None, :],
            "next step, slot wait",
        )
    if level is None:
        parts = [
            first_token(model, grid, b) if b.ranks is None else first_token_ranks(model, grid, b, b.ranks)
            for b in backlogs
        ]
    else:
        parts = [first_token_ranked(model, grid, ahead_of(model, level[0], b, level[1])) for b in backlogs]
    first = spread(
        np.concatenate([p.values for p in parts]),
        np.concatenate([w * np.diff(p.cumulative, prepend=0.0) for w, p in zip((1, 2, 1), parts, strict=False)]),
        parts[0].method,
    )
    if len(slot) > 1:
        nodes, nodes_w = spread_nodes(first, 40)
        first = spread(nodes[:, None] + slot[None, :], nodes_w[:, None] * slot_w[None, :], f"{first.method}, slot wait")
    return first.scaled(TTFT_SAFETY).shifted(host + model.pool.table.stream_s * (run.mean + 1))


def speed_nodes(model: ReplicaModel, run: Running, itl: Spread) -> tuple[Floats, Floats]:
    """Mean gaps of long answers: the batch they meet, half of whose variance averages out while they run."""
    if model.mean_steps == 0:
        return np.array([0.0]), np.array([1.0])
    nodes, weights = model.running_nodes(run)
    base = np.interp(nodes, np.arange(1, len(model.step) + 1), model.step)
    return itl.mean * (1 + 0.7 * (base / float(weights @ base) - 1)), weights


def tpot_spread(
    model: ReplicaModel, grid: Requests, run: Running, backlog: Backlog | None, *, itl: Spread, rate: float
) -> Spread:
    """A request's mean gap: the mean at its batch, and the luck of how many prompts it met."""
    if model.mean_steps == 0:
        return spread([0.0, 0.0], [1.0, 1.0], "no gaps", mean=0.0)
    nodes, weights = model.running_nodes(run)
    base = np.interp(nodes, np.arange(1, len(model.step) + 1), model.step)
    gaps = np.maximum(grid.output_tokens - 1, 0.0)
    keep = gaps >= 1
    if not keep.any():
        return spread([0.0, 0.0], [1.0, 1.0], "no gaps", mean=0.0)
    o, o_w = strata_of(*sorted_by(gaps[keep], grid.weights[keep]), 9)
    # o steps of work x = o t / E take a busy period of the prompts that come meanwhile, after those there already:
    # mean (x + W) / (1 - rho), variance (x + W) lambda E[S^2] / (1 - rho)^3, as a gamma.
    x = o[None, :] * base[:, None] / model.per_step
    if backlog is None:
        mean, sd = x[:, :, None], np.zeros_like(x)[:, :, None]
        wait_w = np.ones(1)
    else:
        # W is what a prompt leaves behind, in time added to steps: as much as it found (nodes of the backlog).
        levels, wait_w = level_nodes(backlog.at_arrivals, 7)
        chain = backlog.ranks
        if chain is None:
            beside = 0.0 if model.batch.stands else backlog.step_s[0]
            wait = levels * (backlog.step_s[-1] - beside) / backlog.chunk_levels
            work, work2 = model.work(run.mean)
            rho = min(rate * work, 0.95)
            start = x[:, :, None] + wait[None, None, :]
            mean = start / (1 - rho)
            sd = np.sqrt(start * rate * work2 / (1 - rho) ** 3)
        else:
            # Steps of all ranks, as many as the answer has; own prompts stop them too where they run alone.
            stretch = (
                chain.mean_s / (max(1 - chain.own, _LEAST) if model.batch.stands else 1.0) / model.step_at(run.mean)
            )
            mean = (x * stretch)[:, :, None]
            sd = np.sqrt(mean * stretch * chain.variance_s2 / chain.mean_s)
            wait_w = np.ones(1)
    k = np.maximum((mean / np.maximum(sd, 1e-12)) ** 2, 1e-3)[..., None]
    cube = np.maximum(1 - 1 / (9 * k) + _Z / (3 * np.sqrt(k)), 0.0) ** 3
    values = np.maximum(mean[..., None] * cube, x[:, :, None, None]) / o[None, :, None, None]
    if backlog is not None and model.pool.scheduler == "decode-first":
        # No gap is longer than a step with a full chunk.
        alone = backlog.step_s if backlog.ranks is None else backlog.ranks.step_s
        full = (base + alone[-1] - alone[0]) / model.per_step
        values = np.minimum(values, full[:, None, None, None])
    w = weights[:, None, None, None] * o_w[None, :, None, None] * wait_w[None, None, :, None] * _Z_WEIGHTS
    return spread(values, w, "delay busy period", mean=itl.mean).shifted(model.pool.table.token_s)
