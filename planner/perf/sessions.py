"""Sessions over a prefix cache: how long a conversation's history must keep, and what its next turn finds of it.

A turn's whole context stays in the cache of the replica that served it, least recently used first to go. Its next
turn comes after a think time (exponential with the class's mean: people's pauses spread about as wide as their mean)
and finds the history if it returns to that replica while the history is still kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TIMES_S: Floats = np.geomspace(0.1, 1e5, 200)
"""Ages of idle histories that the closed form tells apart: 7% steps."""
BACK = 12
"""Turns that are looked back for a replica that served the session earlier."""


def turn_shares(turns: float) -> tuple[Floats, Floats]:
    """Turn numbers and their shares when sessions last `turns` on average (the fraction ends one turn earlier).

    >>> [v.tolist() for v in turn_shares(2.0)]
    [[1.0, 2.0], [0.5, 0.5]]
    """
    whole = int(turns)
    numbers = np.arange(1, whole + (2 if turns > whole else 1), dtype=np.float64)
    weights = np.ones(len(numbers))
    if turns > whole:
        weights[-1] = turns - whole
    return numbers, weights / weights.sum()


@dataclass(frozen=True, slots=True)
class History:
    """What a returning turn finds of its session on the replica that it reaches."""

    found: tuple[float, ...]
    """Probability that the session is found as it stood j turns ago, j = 1, 2, ...; else nothing of it is found."""
    answers: bool = True
    """Whether the answer that ended the found turn is found with it. Not after thinking tokens, which chat templates
    drop from later prompts, so that the tokens after the prompt differ; nor where another replica decoded it."""


@lru_cache(maxsize=256)
def kept_for_ever(here: float, answers: bool) -> History:
    """Nothing is ever evicted: the last turn was on this replica with probability `here`, else an earlier one."""
    return history_of(tuple(1.0 for _ in range(looked_back(here))), here=here, answers=answers)


def looked_back(here: float) -> int:
    """How many turns back it pays to look."""
    return 1 if here == 1 else BACK


def history_of(kept: tuple[float, ...], *, here: float, answers: bool) -> History:
    """kept: probability that a context is still there when the session returns for it j turns later, j = 1, 2, ...

    found(j) = here (1 - here)^(j - 1) kept(j)

    >>> history_of((1.0, 1.0), here=0.25, answers=True).found
    (0.25, 0.1875)
    """
    return History(tuple(here * (1 - here) ** j * k for j, k in enumerate(kept)), answers)


@lru_cache(maxsize=512)
def returns(back: int, *, think_s: float, response_s: float, answers: bool) -> Floats:
    """Probability that `back` think times, and the answers given elsewhere between them (`response_s` each), end at
    each age of `TIMES_S` (or since the one before). answers: as of `History`; else the first one is given elsewhere.
    """
    away = (back - (1 if answers else 0)) * response_s
    return np.diff(_erlang_cdf(back, TIMES_S - away, think_s), prepend=0.0)


@lru_cache(maxsize=512)
def untouched_s(turns: float, *, think_s: float, here: float, response_s: float, answers: bool) -> Floats:
    """By turn number and age in `TIMES_S`: how long of that age a turn's context has stood untouched, on average.

    H_k(t) = integral over u <= t of P(no later turn of the session came to this replica within u)

    A session's last turn is never touched again: H(t) = t. Turns here are those of a session that comes back to this
    replica with probability `here` each time; other words as of `returns`.
    """
    numbers, shares = turn_shares(turns)
    later = np.zeros((len(numbers), len(TIMES_S)))
    given = 1 if answers else 0
    if here == 1:
        # t - P(another turn) (t' - Z (1 - e^(-t' / Z))),  t' = t without an answer given elsewhere
        goes_on = np.append(shares[1:] / shares[:-1], 0.0)
        since = np.maximum(TIMES_S - (1 - given) * response_s, 0.0)
        back = since - think_s * -np.expm1(-since / think_s)
        return np.asarray(TIMES_S[None, :] - goes_on[:, None] * back[None, :], dtype=np.float64)
    for j in range(1, min(BACK, len(numbers) - 1) + 1):
        goes_on = shares[j:] / shares[:-j]
        came = here * (1 - here) ** (j - 1) * _erlang_cdf(j, TIMES_S - (j - given) * response_s, think_s)
        later[:-j] += goes_on[:, None] * came[None, :]
    alone = 1 - later
    steps = np.diff(TIMES_S, prepend=0.0)
    middle = (alone + np.concatenate([np.ones((len(numbers), 1)), alone[:, :-1]], axis=1)) / 2
    return np.asarray(np.cumsum(middle * steps, axis=1), dtype=np.float64)


def _erlang_cdf(stages: int, at_s: Floats, mean_s: float) -> Floats:
    """P(a sum of `stages` exponential times of this mean <= at); 0 below 0."""
    x = np.maximum(at_s, 0.0) / mean_s
    term, total = np.ones_like(x), np.ones_like(x)
    for i in range(1, stages):
        term = term * x / i
        total += term
    # e^-x before the product: x is large where a history is kept for ever
    return np.asarray(np.clip(1 - np.exp(-x) * total, 0.0, 1.0), dtype=np.float64)
