"""Decodes that stand still: a prefill-first engine runs prompts alone until none waits.

A stall begins with the prompts that came during a decode step, and goes on with those that come while it lasts: a
delay cycle of M/G/1, by its first prompts' own time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.perf.lengths import Floats
from planner.perf.nodes import exponential_nodes, strata_of

_EDGES = np.array([0, 0.3, 0.55, 0.75, 0.88, 0.95, 0.985, 1.0])
_SHARE = np.diff(_EDGES)
_TAIL = (1 - _EDGES) * (1 - np.log(np.maximum(1 - _EDGES, 1e-300)))
_EXP = -np.diff(_TAIL) / _SHARE
"""Strata of an exponential of mean 1: their means."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """What stands between two decode steps, as weighted times."""

    batches_per_s: float
    """Prompts come one by one, or in batches where arrivals are bursty."""
    times_s: Floats
    weights: Floats
    joined_s: Floats
    """What is left of the stall when a prompt of it is done: what the first gap of its answer holds."""
    joined_weights: Floats

    def begun(self, decode_s: Floats) -> Floats:
        """Probability that a decode step of this length is followed by a stall."""
        found: Floats = 1 - np.exp(-self.batches_per_s * decode_s)
        return found


def stalls_of(
    *,
    alone_s: Floats,
    prompt_weights: Floats,
    rate_per_s: float,
    decode_s: float,
    mean_s: float,
    square_s2: float,
    batch_mean: float,
) -> Stalls:
    """alone_s: each prompt's own steps; mean_s, square_s2: of those that come while others run, and share their steps.

    Begun by x seconds of prompts, a stall lasts B(x) = x where nobody comes meanwhile, with probability
    exp(-lambda x), else x and two exponentials with what is left of the moments E B = x / (1 - rho),
    Var B = lambda x E S^2 / (1 - rho)^3.
    """
    order = np.argsort(alone_s, kind="stable")
    one, one_w = strata_of(alone_s[order], prompt_weights[order], 17)
    rate = rate_per_s / batch_mean
    rho = min(rate_per_s * mean_s, 0.97)
    # More than one batch during the decode step, and more than one prompt in a batch: as exponential sums on top.
    came = max(rate * decode_s, 1e-12)
    some = -math.expm1(-came)
    single = came * math.exp(-came) / some / batch_mean
    others_s = (came * batch_mean / some - 1) * mean_s
    more, more_w = exponential_nodes(1 - single, (1 - single) / max(others_s, 1e-12))
    x = (one[:, None] + more[None, :]).ravel()
    x_w = (one_w[:, None] * more_w[None, :]).ravel()
    begun = _few(x, x_w, 24)
    square = _square(square_s2, mean_s, batch_mean)
    times, w, _, _ = _cycle(*begun, rate=rate, rho=rho, square=square, per_s=rate_per_s)
    # A prompt that is done leaves those that came while it waited (Pollaczek and Khinchine) and ran.
    found_s = rate_per_s * square / (2 * (1 - rho))
    wait, wait_w = exponential_nodes(rho, rho / max(found_s, 1e-12))
    stayed = _few((one[:, None] + wait).ravel(), (one_w[:, None] * wait_w).ravel(), 24)
    _, _, left, left_w = _cycle(*stayed, rate=rate, rho=rho, square=square, per_s=rate_per_s)
    return Stalls(rate, *_few(times, w, 40), *_few(left, left_w, 24))


def _square(square_s2: float, mean_s: float, batch_mean: float) -> float:
    """Second moment of the work that arrives, per prompt: prompts of a batch come together."""
    return square_s2 + 2 * (batch_mean - 1) * mean_s**2


def _cycle(
    x: Floats, x_w: Floats, *, rate: float, rho: float, square: float, per_s: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """Delay cycles begun by x, and what they last beyond x."""
    none = np.exp(-rate * x)
    some = np.maximum(1 - none, 1e-12)
    mean = x * rho / (1 - rho) / some
    second = (per_s * x * square / (1 - rho) ** 3 + (x * rho / (1 - rho)) ** 2) / some
    # Two exponentials with these moments, each with half of the mean; one, where they vary less than that.
    square = np.maximum(second / mean**2, 2.0)
    lean = (1 + np.sqrt((square - 2) / square)) / 2
    parts = np.stack([lean, 1 - lean], axis=-1)
    rest = (mean[:, None, None] / (2 * parts)[:, :, None] * _EXP).reshape(len(x), -1)
    rest_w = (parts[:, :, None] * _SHARE).reshape(len(x), -1)
    w = np.concatenate([x_w * none, ((x_w * (1 - none))[:, None] * rest_w).ravel()])
    beyond = np.concatenate([np.zeros_like(x), rest.ravel()])
    return np.concatenate([x, (x[:, None] + rest).ravel()]), w, beyond, w


def _few(values: Floats, weights: Floats, count: int) -> tuple[Floats, Floats]:
    order = np.argsort(values, kind="stable")
    return strata_of(values[order], weights[order], count)
