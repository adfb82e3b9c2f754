"""Two small Markov chains: how many sequences run (birth-death), and how many prompt tokens wait (backlog)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.perf.lengths import Floats


@dataclass(frozen=True, slots=True)
class Running:
    """Stationary distribution of the sequences in service."""

    probabilities: Floats
    """Of 0..N in service; the last holds all states with a queue."""
    queue_ratio: float
    """Probability that an arrival finds all N slots taken."""
    queue_rate_per_s: float
    """Rate at which the wait of those that queue ends: N-state departure rate minus arrivals."""

    @property
    def mean(self) -> float:
        return float(self.probabilities @ np.arange(len(self.probabilities)))

    def quantile(self, q: float) -> int:
        return min(int(np.searchsorted(np.cumsum(self.probabilities), q - 1e-12)), len(self.probabilities) - 1)


def birth_death(*, rate_per_s: float, departures_per_s: Floats, dispersion: float = 1.0) -> Running:
    """p(n + 1) = p(n) lambda / mu(n + 1), with mu(n) = mu(N) above N.

    departures_per_s[i] is mu(i + 1). In logarithms, so that no product overflows. The queue behind N is geometric
    with ratio lambda / mu(N). `dispersion` > 1 flattens the chain's potential (its variance grows by about that
    factor, the mode stays): for disturbances that all sequences share; the queue behind N takes its power of 0.35,
    which keeps simulated waits on the safe side (benchmarks/load.py). Insensitive to the distribution of
    outputs: the batch is a processor-sharing server.

    >>> round(birth_death(rate_per_s=0.5, departures_per_s=np.array([1.0])).queue_ratio, 3)   # M/M/1
    0.5
    """
    steps = (np.log(rate_per_s) - np.log(departures_per_s)) / dispersion
    log_p = np.concatenate([[0.0], np.cumsum(steps)])
    weights = np.exp(log_p - log_p.max())
    tail = dispersion**0.35
    ratio = min((rate_per_s / float(departures_per_s[-1])) ** (1 / tail), 1 - 1e-9)
    weights[-1] /= 1 - ratio
    p = weights / weights.sum()
    return Running(p, float(p[-1]), max(float(departures_per_s[-1]) - rate_per_s, 1e-9) / tail)


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
    alone_s: Floats
    """Duration of a step by the largest chunk in it: `step_s`, but for ranks in lock-step."""
    stall_ratio: float
    """Prompts that lengthen a step over the own rank's: 1 but for ranks in lock-step."""
    overflow: float
    """Probability of the last level: how much the truncation hides."""
    prompt_levels: Floats
    """Of each prompt that was given."""


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
    low = np.floor(exact).astype(np.int64)
    up = exact - low
    pmf = np.bincount(np.minimum(low, size - 1), weights=prompt_weights * (1 - up), minlength=size)
    pmf += np.bincount(np.minimum(low + 1, size - 1), weights=prompt_weights * up, minlength=size)
    phi = np.fft.rfft(pmf)
    if batch_mean > 1:
        q = 1 / batch_mean
        phi = q * phi / (1 - (1 - q) * phi)
    rate = rate_per_s / batch_mean
    arrivals = np.maximum(np.fft.irfft(np.exp(np.outer(step_s, rate * (phi - 1))), n=size, axis=1), 0.0)
    if idle:
        arrivals[0] = np.maximum(np.fft.irfft(phi, n=size), 0.0)
    arrivals /= arrivals.sum(axis=1, keepdims=True)
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
        step_s,
        1.0,
        float(pi[-1]),
        exact,
    )


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
