"""Classes of different priority in one queue: what stands before a prompt of one level, in closed form.

Lower values are served first, and nothing that has begun is interrupted (engines' head-of-line order). In an M/G/1
queue with classes 1, 2 ... in that order and loads s_k of classes up to k, Cobham's mean wait is

    W_k = W0 / ((1 - s_(k-1)) (1 - s_k))         W0: rest of the service under way, as an arrival finds it

and its distribution is made of three parts, each of which has a counterpart in the chain of the prompt backlog:

    work of classes up to k, as if they were alone           the chain with their arrivals only
    + rest of a later class's prompt, with s_later / (1 - s_k)     its chunks yet to come at a step's start
    stretched by arrivals of earlier classes meanwhile       a busy period begun by that work: / (1 - s_(k-1))

With one level the second and third vanish, and the chain is the one that is used without priorities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from planner.perf.lengths import Floats
from planner.perf.nodes import exponential_nodes, sorted_by, strata_of
from planner.perf.queue import Backlog, Running, backlog_chain
from planner.perf.replica import ReplicaModel

_Z = (-2.33, -1.28, -0.67, 0.0, 0.67, 1.28, 2.33)
_Z_WEIGHTS = np.array([0.04, 0.16, 0.2, 0.2, 0.2, 0.16, 0.04])
_FULL = 0.98
"""No share of time is counted above this: what lies beyond is unstable."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Arrivals of classes that are served before: rate, and mean and second moment of their prompts in levels."""

    per_s: float
    mean: float
    second: float
    load: float
    """Their share of full steps."""

    def nodes(self, wait_s: Floats) -> tuple[Floats, Floats]:
        """Levels that come in before a wait of `wait_s` (without them) is over: [..., 8] values and weights.

        The busy period of their work that begins with x: mean x / (1 - s), variance x lambda E[S^2] / (1 - s)^3,
        less x itself; nothing at all comes with exp(-lambda x).
        """
        left = 1 - self.load
        mean = wait_s * self.per_s * self.mean / left
        variance = wait_s * self.per_s * self.second / left**3
        none = np.exp(-wait_s * self.per_s)
        some = np.maximum(1 - none, 1e-9)
        here = mean / some
        sd = np.sqrt(np.maximum((variance + mean**2) / some - here**2, 0.0))
        # Wilson and Hilferty's gamma, on as many nodes as there are _Z.
        k = np.maximum((here / np.maximum(sd, 1e-12)) ** 2, 1e-3)[..., None]
        cube = np.maximum(1 - 1 / (9 * k) + np.array(_Z) / (3 * np.sqrt(k)), 0.0) ** 3
        cube /= np.maximum(cube @ _Z_WEIGHTS, 1e-12)[..., None]
        values = np.concatenate([np.zeros_like(mean)[..., None], here[..., None] * cube], axis=-1)
        return values, np.concatenate([none[..., None], (1 - none)[..., None] * _Z_WEIGHTS], axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """What a prompt of one level finds before it."""

    backlog: Backlog
    """`at_arrivals`: levels at the start of the step under way that are served before it."""
    sizes: tuple[Floats, Floats]
    """Levels of prompts that an arrival does not overtake, and their weights."""
    over: Stretch | None
    """None where nothing overtakes it."""
    full_ratio: float
    """Probability that later classes' prompts wait as well and fill its steps."""
    all_per_s: float
    """Prompts of any class."""


def ranked(model: ReplicaModel) -> bool:
    """Whether the order of service depends on the class."""
    return len({c.priority for c in model.classes}) > 1


def ahead_of(model: ReplicaModel, priority: int, everything: Backlog, rate_per_s: float) -> Ahead:
    """For prompts of one level, from the backlog of all classes beside the same running batch."""
    rates = [rate_per_s * s for s in model.shares]
    starts = np.cumsum([0, *(len(g.weights) for g in model.prompt_grids)])
    levels = [everything.prompt_levels[a:b] for a, b in pairwise(starts)]
    order = [c.priority for c in model.classes]
    K, steps = everything.chunk_levels, everything.step_s
    each_s = float(steps[K]) / K

    def pooled(members: list[int]) -> tuple[float, Floats, Floats]:
        """Rate, prompts in levels, weights of some classes together."""
        total = math.fsum(rates[i] for i in members)
        x = np.concatenate([levels[i] for i in members])
        w = np.concatenate([model.prompt_grids[i].weights * (rates[i] / total) for i in members])
        return total, x, w / w.sum()

    here = [i for i, p in enumerate(order) if p <= priority]
    before = [i for i, p in enumerate(order) if p < priority]
    after = [i for i, p in enumerate(order) if p > priority]
    per_s, x, w = pooled(here)
    own = everything
    full = 0.0
    if after:
        each = x * each_s
        own = backlog_chain(
            rate_per_s=per_s,
            prompt_tokens=x * everything.level_tokens,
            prompt_weights=w,
            level_tokens=everything.level_tokens,
            levels=len(everything.at_steps),
            chunk_levels=K,
            step_s=steps,
            idle=float(steps[0]) == 0.0,
            batch_mean=model.batch_mean(rate_per_s, mean_s=float(each @ w), square_s2=float(each**2 @ w), members=here),
        )
        load = min(per_s * float(x @ w) * each_s, _FULL)
        after_s, after_x, after_w = pooled(after)
        busy = min(load + after_s * float(after_x @ after_w) * each_s, _FULL)
        seen = everything.at_arrivals
        full = float(seen[K:].sum() / max(seen[1:].sum(), 1e-12))
        rest = _rest(after_s, after_x, after_w, steps_s=steps, crowd_ratio=busy * full, load=load)
        some = min(float(rest.sum()), _FULL)
        rest *= some / max(float(rest.sum()), 1e-12)
        rest[0] += 1 - some
        own = replace(own, at_arrivals=np.convolve(own.at_arrivals, rest))
        # Steps stay full behind this prompt where more waits than what is served before it.
        more = 1 - _behind(own.at_arrivals, K) / max(_behind(seen, K), 1e-12)
        full = float(seen[K:].sum()) * min(max(more, 0.0), 1.0)
    over = None
    if before:
        over_s, over_x, over_w = pooled(before)
        mean = float(over_x @ over_w)
        over = Stretch(over_s, mean, float(over_x**2 @ over_w), min(over_s * mean * each_s, _FULL))
    return Ahead(own, (x, w), over, full, rate_per_s)


def _behind(at_arrivals: Floats, chunk_levels: int) -> float:
    """Mean levels that the step under way leaves."""
    return float(at_arrivals[chunk_levels:] @ np.arange(len(at_arrivals) - chunk_levels))


def _rest(per_s: float, levels: Floats, weights: Floats, *, steps_s: Floats, crowd_ratio: float, load: float) -> Floats:
    """Probability that a step has a prompt of these under way, by what is left of it at the step's start.

    Alone a prompt of x levels is cut into full chunks from its own first step on: x, x - K, x - 2K ... are left. In
    the crowd it begins anywhere in a step and all steps are full: anything up to x follows the K levels under way.
    Each share of the time counts for more by the work that has come in since the prompt began, `load` of it, but for
    the step under way, whose arrivals are counted apart.
    """
    K = len(steps_s) - 1
    more = load / (1 - load)
    x, w = strata_of(*sorted_by(levels, weights), 9)
    found = np.zeros(math.ceil(float(x.max())) + K + 2)
    for size, weight in zip(x, w, strict=True):
        begun = np.arange(max(1, math.ceil(size / K - 1e-9)))
        left = size - K * begun
        took = np.interp(np.minimum(left, K), np.arange(K + 1), steps_s) * (1 + more * begun / (begun + 0.5))
        np.add.at(found, np.ceil(left - 1e-9).astype(int), (1 - crowd_ratio) * per_s * weight * took)
        last = max(1, round(size))
        took = size / K * float(steps_s[K]) * (1 + more * max(1 - K / size, 0.0))
        found[K : K + last] += crowd_ratio * per_s * weight * took / last
    return found


def slot_nodes(model: ReplicaModel, run: Running, priority: int, rate_per_s: float) -> tuple[Floats, Floats]:
    """Wait for a slot of one level: of M/M/N with priorities, as two exponentials.

    Given that all slots are taken, with a and s the shares of the slots' time that earlier classes, and classes up to
    this one, have (Cobham; Davis 1966):   mean = 1 / (mu_N (1 - a) (1 - s)),   E[W^2] / mean^2 = 2 (1 - a s) / (1 - a)

    One level: a = 0, s = load, the exponential at mu_N - lambda. Held times that vary more than exponential ones
    (interactive beside batch) lengthen it by (1 + CV^2) / 2 as in M/G/N. And slots are all taken when more of them than
    usual are held for long: a class that waits for the next one to be free only sees mu_N less two deviations.
    """
    if run.queue_ratio < 1e-6:
        return np.zeros(1), np.ones(1)
    load = min(rate_per_s * model.ranks / model.lambda_max, _FULL)
    # A slot's time is in proportion to the answer, a prefill cache's to the prompt.
    steps = [
        g.input_tokens
        if model.pool.role == "prefill"
        else np.maximum(g.output_tokens - (model.pool.role == "aggregated"), 1.0)
        for g in model.grids
    ]
    held = [g.mean(x) for g, x in zip(model.grids, steps, strict=True)]
    mean_held = math.fsum(s * h for s, h in zip(model.shares, held, strict=True))
    square = math.fsum(s * g.mean(x**2) for s, g, x in zip(model.shares, model.grids, steps, strict=True))
    taken = [s * h / mean_held for s, h in zip(model.shares, held, strict=True)]
    levels = [c.priority for c in model.classes]
    earlier = load * math.fsum(x for p, x in zip(levels, taken, strict=True) if p < priority)
    upto = load * math.fsum(x for p, x in zip(levels, taken, strict=True) if p <= priority)
    slower = max(1.0, square / mean_held**2 / 2)
    if any(p > priority for p in levels):
        # Departures per slot and step: 1 / held, whose mean over the slots' time is 1 / mean_held.
        spread = math.fsum(x / h**2 for x, h in zip(taken, held, strict=True)) * mean_held**2 - 1
        slower *= 1 + 2 * math.sqrt(max(spread, 0.0) / model.slots)
    mean = slower * (1 - load) / run.queue_rate_per_s / ((1 - earlier) * (1 - upto))
    # Two exponentials with that mean and square; each brings half of the mean.
    lean = math.sqrt(max(1 - (1 - earlier) / (1 - earlier * upto), 0.0))
    values, weights = [np.zeros(1)], [np.array([1 - run.queue_ratio])]
    for share in ((1 + lean) / 2, (1 - lean) / 2):
        if share * run.queue_ratio >= 1e-6:
            v, w = exponential_nodes(share * run.queue_ratio, 2 * share / mean)
            values.append(v[1:])
            weights.append(w[1:])
    return np.concatenate(values), np.concatenate(weights)
