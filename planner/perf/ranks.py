"""Attention-DP ranks in lock-step: every step of a replica lasts as long as its slowest rank's.

A long step lets prompts come to all ranks, so that the next is long as well: ranks are not independent. But given how
long one step was, what came to each rank in it is; so the longest chunk of each step is a Markov chain of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.perf.lengths import Floats

_ROUNDS = 24
_BOLD = 6
_CLOSE = 0.02
LEFT = 60
"""Levels of prompt that a step may leave over: LAPACK starts threads for larger systems, dearer than the work."""


@dataclass(frozen=True, slots=True, eq=False)
class RankChain:
    """Steps by the longest chunk in them, in levels 0..K of `level_tokens`."""

    level_tokens: float
    step_s: Floats
    """Duration by the longest chunk."""
    steps: Floats
    """Share of steps."""
    seen: Floats
    """Share of time: what an arrival finds under way."""
    others: Floats
    """[i, j]: probability that the longest chunk of the other ranks is j in the step after one of i."""
    none: Floats
    """[i]: probability that a rank has no prompt in the step after one of i."""
    left: Floats
    """Levels that a rank has left over after a step with a full chunk somewhere (elsewhere nothing is left)."""
    mean_s: float
    later_s: float
    """How much longer than on average the steps after a prompt's last last, all together."""
    variance_s2: float
    """Of the time that many steps take, per step."""
    crowd: float
    """Ranks that have a prompt in a step where any has."""
    backlog: float
    """Mean levels of prompt of one rank at a step's start, those that the step takes included."""

    dearer_s: float = 0.0
    """Seconds a token that the dearest place in a prompt of so many ranks' chunks adds (in `step_s` already)."""

    @property
    def own(self) -> float:
        """Share of steps in which one rank has a prompt."""
        return 1 - float(self.steps @ self.none)

    @property
    def others_idle(self) -> Floats:
        """Longest chunk of the steps in which one rank has no prompt."""
        w = self.steps * self.none
        found: Floats = w @ self.others / max(float(w.sum()), 1e-12)
        return found

    def with_own(self, chunk_levels: Floats) -> Floats:
        """[i, r]: mean duration of the step after one of i when the own rank has a chunk of r levels in it."""
        j = np.arange(len(self.step_s))
        longest = np.maximum(np.rint(chunk_levels).astype(np.int64)[:, None], j[None, :])
        found: Floats = self.others @ self.step_s[longest].T
        return found


def rank_chain(
    *,
    arrivals: Floats,
    prompts: Floats,
    step_s: Floats,
    ranks: int,
    level_tokens: float,
    first: Floats | None = None,
    idle_s: float = 0.0,
) -> RankChain:
    """Stationary steps of R ranks.

    arrivals[i]: distribution of the levels that come to one rank during a step whose longest chunk is i. What a rank
    has in the next step is that, and what is left over, which is nothing unless i is a full chunk; the longest of R
    is P(X <= j)^R. What is left over solves l = (what came + l - K)+ for one rank, given the others by their mean.
    prompts: distribution of the levels of one. `first`: where nothing decodes, of the one that ends the idling, which
    lasts `idle_s`.
    """
    most = len(step_s) - 1
    size = arrivals.shape[1]
    full = arrivals[most]
    count = min(LEFT, size - most - 1)
    left = np.zeros(count + 1)
    left[0] = 1.0
    # Toeplitz: [l, k] is the probability that K + l - k levels come, so that k left over become l.
    index = most + np.arange(1, count + 1)[:, None] - np.arange(count + 1)[None, :]
    moves = np.where(index >= 0, full[np.maximum(index, 0)], 0.0)
    tails = np.concatenate([np.cumsum(full[::-1])[::-1], np.zeros(1)])
    moves[-1] = tails[np.maximum(most + count - np.arange(count + 1), 0)]
    over = arrivals[:most, most + 1 : most + count + 1].copy()
    over[:, -1] += arrivals[:most, most + count + 1 :].sum(axis=1)
    below = np.cumsum(arrivals[:, :most], axis=1)
    below = np.minimum(np.concatenate([below, np.ones((most + 1, 1))], axis=1), 1.0)
    steps = np.full(most + 1, 1 / (most + 1))
    last = np.zeros(most + 1)

    def longest(count: int) -> Floats:
        """P(longest of this many ranks' chunks <= j) after a step of i."""
        found: Floats = below**count
        # After a full chunk ranks may go on with what is left over. Of all the time, each does so with probability
        # `share`, one apart from the others; here, given that some rank had a full chunk.
        some = 1 - float(left[0])
        full_time = float(steps[most] * step_s[most] / max(float(steps @ step_s), 1e-12))
        share = some * full_time
        going = np.zeros(most)
        going[1:] = np.cumsum(np.convolve(left[1:] / max(some, 1e-12), full)[: most - 1])
        any_on = min((1 - (1 - share) ** count) / max(full_time, 1e-12), 1.0)
        fresh = below[most, :most]
        mixed = ((1 - share) * fresh + share * going) ** count - ((1 - share) * fresh) ** count
        scale = any_on / max(1 - (1 - share) ** count, 1e-12)
        found[most, :most] = np.minimum((1 - any_on) * fresh**count + scale * mixed, 1.0)
        return found

    solved = np.linalg.inv(np.eye(count) - moves[:, 1:] + moves[:, :1])
    for turn in range(_ROUNDS):
        moved = np.diff(longest(ranks), axis=1, prepend=0.0)
        if first is not None:
            moved[0] = first
        found = _stationary(moved)
        full_now = float(found[most])
        still = abs(full_now - float(last[most])) + abs(full_now - float(steps[most])) < _CLOSE * full_now
        last = found
        # More left over makes full steps more frequent, of which then fewer leave anything: part of the way each time.
        steps = found if turn == 0 else steps + (found - steps) / (2 if turn < _BOLD else 4)
        full_share = float(steps[most])
        going = np.maximum(solved @ (steps[:most] @ over + full_share * moves[:, 0]), 0.0)
        left = np.concatenate([[0.0], going / max(full_share, float(going.sum()), 1e-12)])
        left[0] = max(1 - float(left.sum()), 0.0)
        if still:
            break
    took = step_s.copy()
    if first is not None:
        took[0] = idle_s
    mean = float(steps @ took)
    away = took - mean
    later = np.linalg.solve(np.eye(most + 1) - moved + steps[None, :], away)
    waiting = (arrivals[:most] @ np.arange(size)) @ steps[:most] + float(
        steps[most] * (full @ np.arange(size) + left @ np.arange(count + 1))
    )
    seen = steps * took / mean
    others = np.diff(longest(ranks - 1), axis=1, prepend=0.0)
    none = below[:, 0].copy()
    none[most] = left[0] * full[0]
    if first is not None:
        # The one prompt that ends the idling is one rank's.
        none[0] = 1 - 1 / ranks
        others[0] = first * (1 - 1 / ranks)
        others[0, 0] += 1 / ranks
    return RankChain(
        level_tokens,
        took,
        steps,
        seen,
        others,
        none,
        left,
        mean,
        _after(
            prompts,
            most,
            others=others,
            seen=seen,
            later_s=moved @ later,
            quiet_s=float(np.diff(below[most] ** ranks, prepend=0.0) @ later),
        ),
        max(float((steps * away) @ (2 * later - away)), 0.0),
        max(ranks * (1 - float(steps @ none)) / max(1 - float(steps[0]), 1e-12), 1.0),
        waiting,
    )


def _after(prompts: Floats, most: int, *, others: Floats, seen: Floats, later_s: Floats, quiet_s: float) -> float:
    """Extra time of the steps after a prompt's last one: by its own rest or the longest chunk of the others in it.

    A full chunk goes on with what the others have left over; of a full chunk of its own nothing is left (`quiet_s`).
    """
    sizes = np.arange(most + 1, len(prompts))
    rest = np.bincount((sizes - 1) % most + 1, weights=prompts[most + 1 :], minlength=most + 1)
    extra = later_s.copy()
    extra[most] = quiet_s
    total = 0.0
    for own, law in ((prompts[: most + 1], seen @ others), (rest, others[most])):
        # The longest of both where the others have less than a full chunk, and where they have one.
        up_to = np.cumsum(own) * np.concatenate([np.cumsum(law[:most]), [float(law[:most].sum())]])
        total += float(np.diff(up_to, prepend=0.0) @ extra) + float(own.sum()) * float(law[most]) * float(later_s[most])
    return total / max(float(prompts.sum()), 1e-12)


def _stationary(moved: Floats) -> Floats:
    size = len(moved)
    system = np.eye(size) - moved.T
    system[-1] = 1.0
    right = np.zeros(size)
    right[-1] = 1.0
    found = np.maximum(np.linalg.solve(system, right), 0.0)
    total: Floats = found / found.sum()
    return total
