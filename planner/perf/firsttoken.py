"""From a prompt backlog to the time of a first token: the step under way, the prompts ahead, the own prompt's steps."""

from __future__ import annotations

import numpy as np

from planner.perf.lengths import Floats
from planner.perf.nodes import exponential_nodes, level_nodes, poisson3, size_nodes, sorted_by, strata_of
from planner.perf.priority import Ahead
from planner.perf.queue import Backlog
from planner.perf.ranks import RankChain
from planner.perf.replica import ReplicaModel
from planner.perf.spread import Spread, spread
from planner.perf.traffic import Requests

_SUM_Z, _SUM_W = np.array([-1.1, 0.0, 1.65]), np.array([0.3, 0.5, 0.2])
_LEFT = np.array([1, 3, 5]) / 6
"""Of the step under way, when a prompt arrives."""
_BATCHES = 1.02
"""Mean batch from which on arrivals count as bursty."""


def first_token(model: ReplicaModel, grid: Requests, backlog: Backlog) -> Spread:
    """Prompts of all classes in order of arrival."""
    prompts, prompt_w = strata_of(*sorted_by(grid.prefill_tokens, grid.weights), 11)
    K, level, step_s = backlog.chunk_levels, backlog.level_tokens, backlog.step_s
    ahead, ahead_w = level_nodes(backlog.at_arrivals, 13)
    taken = np.minimum(ahead, K)
    now = _now(backlog, ahead, taken)
    sizes, sizes_w = size_nodes(model.grid.prefill_tokens / level, model.grid.weights)
    prompts_per_s = backlog.mean_arrivals / float(sizes @ sizes_w)
    before, before_w = _before(backlog, prompts_per_s * now[:, None] * (1 - _LEFT)[None, :], sizes, sizes_w)
    behind = ((ahead - taken)[:, None, None] + before) * backlog.wait_ratio
    total = behind[:, :, :, None] + np.maximum(prompts / level, 1e-3)[None, None, None, :]
    steps = np.ceil(total / K - 1e-9)
    wait = now[:, None, None, None] * _LEFT[None, :, None, None] + (steps - 1) * step_s[K]
    rest = total - (steps - 1) * K
    filled, later_w = _last_step(rest, wait, prompts_per_s, sizes=sizes, sizes_w=sizes_w, chunk_levels=K)
    time = wait[..., None] + np.interp(filled, *_curve(backlog))
    w = (ahead_w[:, None, None] * (before_w / len(_LEFT)))[..., None] * prompt_w
    return spread(time, w[..., None] * later_w, "prompt backlog chain")


def first_token_ranks(model: ReplicaModel, grid: Requests, backlog: Backlog, chain: RankChain) -> Spread:
    """Of ranks in lock-step: the step under way is as long as its longest chunk, and so is each that follows.

    Of the step under way, an arrival sees long ones more often; of the own last step, the other ranks' chunks depend
    on the step before it.
    """
    prompts, prompt_w = strata_of(*sorted_by(grid.prefill_tokens, grid.weights), 11)
    level, step_s = chain.level_tokens, chain.step_s
    K = len(step_s) - 1
    ahead, ahead_w = level_nodes(backlog.at_arrivals, 13)
    others, others_w = level_nodes(chain.steps @ chain.others, 7)
    longest = np.maximum(np.minimum(ahead, K)[:, None], others[None, :])
    now = np.interp(longest, np.arange(K + 1), step_s)
    met = now * others_w
    w = (ahead_w[:, None] * met / met.sum(axis=1, keepdims=True)).ravel()
    now, longest = now.ravel(), np.rint(longest).astype(np.int64).ravel()
    if model.mean_steps == 0:  # idle ranks start at once
        now = np.where(longest == 0, 0.0, now)
    left_over = np.repeat(np.maximum(ahead - K, 0.0), len(others))
    sizes, sizes_w = size_nodes(model.grid.prefill_tokens / level, model.grid.weights)
    prompts_per_s = backlog.mean_arrivals / float(sizes @ sizes_w)
    before, before_w = _before(backlog, prompts_per_s * now[:, None] * (1 - _LEFT)[None, :], sizes, sizes_w)
    behind = (left_over[:, None, None] + before) * backlog.wait_ratio
    total = behind[..., None] + np.maximum(prompts / level, 1e-3)
    steps = np.ceil(total / K - 1e-9)
    rest = np.clip(np.rint(total - (steps - 1) * K), 1, K).astype(np.int64)
    last = chain.with_own(np.arange(K + 1.0))
    after = np.where(steps > 1, K, longest[:, None, None, None])
    time = (now[:, None] * _LEFT)[..., None, None] + (steps - 1) * step_s[K] + last[after, rest]
    weights = (w[:, None, None] * before_w / len(_LEFT))[..., None] * prompt_w
    return spread(time, weights, "steps of ranks in lock-step")


def first_token_ranked(model: ReplicaModel, grid: Requests, ahead: Ahead) -> Spread:
    """The same for a class that others overtake, or that overtakes others (`perf.priority`)."""
    backlog = ahead.backlog
    prompts, prompt_w = strata_of(*sorted_by(grid.prefill_tokens, grid.weights), 11)
    K, level, step_s = backlog.chunk_levels, backlog.level_tokens, backlog.step_s
    found, found_w = level_nodes(backlog.at_arrivals, 17)
    taken = np.minimum(found, K)
    now = _now(backlog, found, taken)
    # Where later classes wait, they fill the step under way.
    now = np.where(found < 0.5, now, now + ahead.full_ratio * (step_s[K] - now))
    sizes, sizes_w = size_nodes(*ahead.sizes)
    own_per_s = backlog.mean_arrivals / float(sizes @ sizes_w)
    before, before_w = _before(backlog, own_per_s * now[:, None] * (1 - _LEFT)[None, :], sizes, sizes_w)
    behind = (found - taken)[:, None, None] + before
    under_way = np.broadcast_to((now[:, None] * _LEFT[None, :])[..., None], behind.shape)
    w = found_w[:, None, None] * (before_w / len(_LEFT))
    if ahead.over is not None:
        under_way, behind, w = _overtaken(ahead, under_way, behind, w)
    total = behind[..., None] + np.maximum(prompts / level, 1e-3)
    steps = np.ceil(total / K - 1e-9)
    wait = under_way[..., None] + (steps - 1) * step_s[K]
    rest = total - (steps - 1) * K
    sizes, sizes_w = size_nodes(model.grid.prefill_tokens / level, model.grid.weights)
    filled, later_w = _last_step(rest, wait, ahead.all_per_s, sizes=sizes, sizes_w=sizes_w, chunk_levels=K)
    filled = np.concatenate([filled, np.full_like(filled[..., :1], K)], axis=-1)
    later_w = np.concatenate([later_w * (1 - ahead.full_ratio), np.full_like(later_w[..., :1], ahead.full_ratio)], -1)
    time = wait[..., None] + np.interp(filled, *_curve(backlog))
    return spread(time, (w[..., None] * prompt_w)[..., None] * later_w, "prompt backlog chain, head-of-line priority")


def _overtaken(ahead: Ahead, under_way: Floats, behind: Floats, w: Floats) -> tuple[Floats, Floats, Floats]:
    """What earlier classes bring until the prompt's turn comes; on 24 nodes of the wait without them."""
    assert ahead.over is not None
    each_s = float(ahead.backlog.step_s[-1]) / ahead.backlog.chunk_levels
    wait = (under_way + behind * each_s).ravel()
    order = np.argsort(wait, kind="stable")
    weights = w.ravel()[order]
    start, start_w = strata_of(under_way.ravel()[order], weights, 24)
    tokens, _ = strata_of(behind.ravel()[order], weights, 24)
    more, more_w = ahead.over.nodes(start + tokens * each_s)
    return np.broadcast_to(start[:, None], more.shape), tokens[:, None] + more, start_w[:, None] * more_w


def _now(backlog: Backlog, ahead: Floats, taken: Floats) -> Floats:
    """Length of the step under way."""
    now = np.interp(taken, np.arange(backlog.chunk_levels + 1), backlog.step_s)
    if backlog.step_s[0] == 0.0:  # an idle replica starts at once
        now = np.where(ahead < 0.5, 0.0, now)
    return now


def _before(backlog: Backlog, arrived: Floats, sizes: Floats, sizes_w: Floats) -> tuple[Floats, Floats]:
    """Prompts that came before this one during the step under way: none, one of some size, or several of the mean.

    In batches of mean m: those before it in its own batch, geometric with mean m - 1, and the mean of the others.
    """
    mean_prompt = float(sizes @ sizes_w)
    if backlog.batch_mean > _BATCHES:
        mates, mates_w = exponential_nodes(1 - 1 / backlog.batch_mean, 1 / backlog.batch_mean)
        together = mean_prompt * (arrived[..., None] + mates)
        return together, np.broadcast_to(mates_w, together.shape)
    none, one, more, several = poisson3(arrived)
    # The sum of several swings with their sizes and their number.
    swing = np.sqrt((0.7 + float(sizes_w @ (sizes / mean_prompt - 1) ** 2)) / several)
    weights = np.concatenate([none[..., None], one[..., None] * sizes_w, more[..., None] * _SUM_W], axis=-1)
    before = np.concatenate(
        [
            np.zeros_like(none)[..., None],
            np.broadcast_to(sizes, (*none.shape, 3)),
            several[..., None] * mean_prompt * np.maximum(1 + swing[..., None] * _SUM_Z, 0.2),
        ],
        axis=-1,
    )
    return before, weights


def _last_step(
    rest: Floats, wait: Floats, prompts_per_s: float, *, sizes: Floats, sizes_w: Floats, chunk_levels: int
) -> tuple[Floats, Floats]:
    """Levels in a prompt's last step. Prompts that arrive until it starts fill it up: none, or about one of a size."""
    alone_w = np.exp(-prompts_per_s * wait)
    # About m = lambda x wait of them, at least one: m / (1 - exp(-m)) given that there is any.
    count = np.where(alone_w < 0.999, prompts_per_s * wait / np.maximum(1 - alone_w, 1e-9), 1.0)
    filled = np.minimum(rest[..., None] + count[..., None] * np.concatenate([[0.0], sizes]), chunk_levels)
    return filled, np.concatenate([alone_w[..., None], (1 - alone_w)[..., None] * sizes_w], axis=-1)


def _curve(backlog: Backlog) -> tuple[Floats, Floats]:
    """Length of a step over the levels in it, down to a prompt of hardly any."""
    K, step_s = backlog.chunk_levels, backlog.step_s
    knots = np.concatenate([[0.0, 1e-3], np.arange(1, K + 1)])
    return knots, np.concatenate([[step_s[0], 2 * step_s[1] - step_s[2] if K > 1 else step_s[1]], step_s[1:]])
