"""Two small Markov chains: how many sequences run (birth-death), and how many prompt tokens wait (backlog)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.perf.lengths import Floats
from planner.perf.ranks import RankChain


@dataclass(frozen=True, slots=True)
class Running:
    """Stationary distribution of the sequences in service."""

    probabilities: Floats
    """Of 0..N in service; the last holds all states with a queue."""
    queue_ratio: float
    """Probability that an arrival finds all N slots taken."""
    queue_rate_per_s: float
    """Rate at which the wait of those that queue ends: N-state departure rate minus arrivals."""

    stalled: float = 0.0
    """Sequences that stand still for the prompts that came after them, on top of the mean."""
    short_s: float = 0.0
    """Of ranks in lock-step: how much shorter than with one sequence on each the steps of fewer are, on average."""
    crowd: float = 0.0
    """Of ranks in lock-step: ranks with a prompt in a step that has any."""
    step_s: Floats | None = None
    """Time from one decode step to the next at 1..N in service: how often each is met by a gap."""

    @property
    def mean(self) -> float:
        return float(self.probabilities @ np.arange(len(self.probabilities))) + self.stalled

    @property
    def variance(self) -> float:
        n = np.arange(len(self.probabilities), dtype=np.float64)
        return max(float(self.probabilities @ n**2) - float(self.probabilities @ n) ** 2, 0.0)

    def quantile(self, q: float) -> int:
        return min(int(np.searchsorted(np.cumsum(self.probabilities), q - 1e-12)), len(self.probabilities) - 1)


def birth_death(
    *,
    rate_per_s: float,
    departures_per_s: Floats,
    dispersion: float = 1.0,
    tail: float = 1.0,
    bursty: float = 0.0,
    stalled: float = 0.0,
    step_s: Floats | None = None,
) -> Running:
    """p(n + 1) mu(n + 1) = p(n) lambda(n), with mu(n) = mu(N) above N. departures_per_s[i] is mu(i + 1).

    `dispersion` d: arrivals that spread by d times as much as Poisson's, as a chain of one step at a time:

        lambda(n) = lambda / d + (1 - 1 / d) mu(n)

    keeps E mu(n) = lambda, so the mean is that of the load, and gives M/M/infinity the variance d n (a negative
    binomial above 1, a binomial below). Insensitive to the distribution of outputs: the batch is a processor-sharing
    server. `bursty`: weight of a less skewed distribution of the same mean and width. The queue behind N is geometric
    with ratio (lambda / mu(N))^(1 / tail). In logarithms, so that no product overflows.

    >>> round(birth_death(rate_per_s=0.5, departures_per_s=np.array([1.0])).queue_ratio, 3)   # M/M/1
    0.5
    """
    before = np.concatenate([[0.0], departures_per_s[:-1]])
    # Fewer than one at a time cannot spread less than all or nothing.
    births = np.maximum(rate_per_s / dispersion + (1 - 1 / dispersion) * before, 1e-9 * rate_per_s)
    log_p = np.concatenate([[0.0], np.cumsum(np.log(births) - np.log(departures_per_s))])
    weights = np.exp(log_p - log_p.max())
    ratio = min((rate_per_s / float(departures_per_s[-1])) ** (1 / tail), 1 - 1e-9)
    weights[-1] /= 1 - ratio
    p = weights / weights.sum()
    if bursty > 0:
        p = (1 - bursty) * p + bursty * _flatter(rate_per_s, departures_per_s, dispersion, ratio)
    free = max(float(departures_per_s[-1]) - rate_per_s, 1e-9) / tail
    return Running(p, float(p[-1]), free, stalled, step_s=step_s)


_BISECTIONS = 24


def _flatter(rate_per_s: float, departures_per_s: Floats, dispersion: float, ratio: float) -> Floats:
    """p(n + 1) / p(n) = (l / mu(n + 1))^(1 / d), with l such that E mu(n) = lambda: as wide, and less skewed."""
    logs = np.cumsum(np.log(departures_per_s))
    n = np.arange(len(departures_per_s) + 1)
    mu = np.append(0.0, departures_per_s)
    low, high = math.log(rate_per_s) - 3 * dispersion, math.log(rate_per_s) + 3 * dispersion
    p = np.zeros(len(n))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        log_p = (n * middle - np.append(0.0, logs)) / dispersion
        w = np.exp(log_p - log_p.max())
        w[-1] /= 1 - ratio
        p = w / w.sum()
        if float(p @ mu) < rate_per_s:
            low = middle
        else:
            high = middle
    return p


@dataclass(frozen=True, slots=True)
class Backlog:
    """Stationary prompt backlog, in levels of `level_tokens`, seen at step starts and by arrivals."""

    level_tokens: float
    chunk_levels: int
    step_s: Floats
    """Duration of a step that takes 0..chunk_levels levels."""
    at_steps: Floats
    """Probability of each backlog at the start of a step."""
    at_arrivals: Floats
    """The same seen by arrivals: weighted with the steps' durations."""
    chunks: Floats
    """Share of steps that take 0..chunk_levels levels."""
    mean_arrivals: float
    """Levels that arrive per second."""
    overflow: float
    """Probability of the last level: how much the truncation hides."""
    prompt_levels: Floats
    """Of each prompt that was given."""
    batch_mean: float = 1.0
    """Mean size of the geometric batches in which arrivals come."""
    wait_ratio: float = 1.0
    """Of the prompts ahead, where arrivals are more even than Poisson's."""
    ranks: RankChain | None = None
    """Of ranks in lock-step: their steps. All else is one rank's, whose steps last as long as they do on average."""


def backlog_chain(
    *,
    rate_per_s: float,
    prompt_tokens: Floats,
    prompt_weights: Floats,
    level_tokens: float,
    levels: int,
    chunk_levels: int,
    step_s: Floats,
    idle: bool,
    batch_mean: float = 1.0,
) -> Backlog:
    """The prompt tokens waiting at step starts: each step takes up to one chunk, compound Poisson arrivals come in.

    w' = w - min(w, K) + arrivals during T(min(w, K))

    Only K + 1 step durations exist, so the arrivals' distributions are K + 1 transforms. `idle`: with an empty
    backlog there is no step (nothing decodes); the next starts with one arrival. `batch_mean` > 1: arrivals in
    geometric batches, which is how gaps with CV^2 = 2 batch_mean - 1 look from afar.
    """
    size = 2 * levels
    exact = prompt_tokens / level_tokens
    pmf = levels_pmf(exact, prompt_weights, size)
    rate = rate_per_s / batch_mean
    arrivals = arrivals_by_step(pmf, mean=rate_per_s * step_s, batch_mean=batch_mean)
    if idle:
        arrivals[0] = np.maximum(np.fft.irfft(_batches(np.fft.rfft(pmf), batch_mean), n=size), 0.0)
        arrivals[0] /= arrivals[0].sum()
    # Row w of the transition matrix is its chunk's arrival distribution, shifted; what overflows stays at the top.
    w = np.arange(levels)
    taken = np.minimum(w, chunk_levels)
    start = w - taken
    shift = w[None, :] - start[:, None]
    moved = arrivals[taken[:, None], np.maximum(shift, 0)] * (shift >= 0)
    moved[:, -1] += np.maximum(1 - moved.sum(axis=1), 0.0)
    pi = _stationary(moved, chunk_levels)
    durations = step_s[taken].copy()
    if idle:
        durations[0] = 1 / rate
    seen = pi * durations
    return Backlog(
        level_tokens,
        chunk_levels,
        step_s,
        pi,
        seen / seen.sum(),
        np.bincount(taken, weights=pi, minlength=chunk_levels + 1).astype(np.float64),
        rate_per_s * float(exact @ prompt_weights),
        float(pi[-1]),
        exact,
        batch_mean,
    )


def levels_pmf(levels: Floats, weights: Floats, size: int) -> Floats:
    """Weighted sizes on whole levels with their mean kept: each between its two neighbours."""
    low = np.floor(levels).astype(np.int64)
    up = levels - low
    pmf = np.bincount(np.minimum(low, size - 1), weights=weights * (1 - up), minlength=size)
    pmf += np.bincount(np.minimum(low + 1, size - 1), weights=weights * up, minlength=size)
    return pmf.astype(np.float64)


def arrivals_by_step(pmf: Floats, *, mean: Floats, batch_mean: float) -> Floats:
    """Levels that come in while `mean` prompts do on average, one distribution for each: compound Poisson."""
    phi = _batches(np.fft.rfft(pmf), batch_mean)
    found = np.maximum(np.fft.irfft(np.exp(np.outer(mean / batch_mean, phi - 1)), n=len(pmf), axis=1), 0.0)
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def evenly_by_step(pmf: Floats, *, mean: Floats) -> Floats:
    """The same for prompts dealt out in turns: as many for each as on average, or one more."""
    phi = np.fft.rfft(pmf)
    few = np.floor(mean)
    some = (mean - few)[:, None]
    found = np.fft.irfft(phi ** few[:, None] * (1 - some + some * phi), n=len(pmf), axis=1)
    return np.maximum(found, 0.0)


def _batches(phi: Any, batch_mean: float) -> Any:
    """Transform of a geometric batch of prompts."""
    q = 1 / batch_mean
    return phi if batch_mean <= 1 else q * phi / (1 - (1 - q) * phi)


_BLOCK = 16


def _stationary(chain: Floats, down: int) -> Floats:
    """Stationary distribution of a chain that falls at most `down` states at a time, by elimination from the top.

    Sixteen states at a time are censored away: P_AA + P_Ab (I - P_bb)^-1 P_bA, and pi_b = pi_A P_Ab (I - P_bb)^-1
    afterwards. A block reaches no further down than its first state - down, so few columns change. (One large solve
    would let LAPACK start threads, which cost more than they bring at this size.)
    """
    p = chain.copy()
    size = len(p)
    starts = list(range(1, size, _BLOCK))
    shares = []
    for start in reversed(starts):
        end = min(start + _BLOCK, size)
        low = max(start - down, 0)
        share = p[:start, start:end] @ np.linalg.inv(np.eye(end - start) - p[start:end, start:end])
        p[:start, low:start] += share @ p[start:end, low:start]
        shares.append(share)
    pi = np.zeros(size)
    pi[0] = 1.0
    for start, share in zip(starts, reversed(shares), strict=True):
        pi[start : start + share.shape[1]] = pi[:start] @ share
    pi = np.maximum(pi, 0.0)
    total: Floats = pi / pi.sum()
    return total
