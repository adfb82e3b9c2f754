"""Patterns: at most two shapes with their replica counts, for one class group, that carry its traffic already.

A pattern satisfies by construction what one service asks for alone: traffic served at the planned rates, the worst
loss survived, KV hand-over possible, replica counts as fixed. What is left to CP-SAT is what services share.
Composing single replicas instead (a free integer per candidate) solves far worse; counts folded in solve to proof.

Dominance between patterns compares every attribute that a later rule or objective reads: blocks taken of each pool,
cost, change against the baseline, GPUs; and where all of these are equal, shapes, TP, headroom and name, in that order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from planner.candidates.candidate import Candidate
from planner.solve.packing import Block, block_of
from planner.solve.question import BaselinePool
from planner.solve.rules.kv_transfer import can_hand_over
from planner.solve.rules.survive import losses
from planner.solve.scale import capacity_urps, cost_udollars
from planner.solve.space import Space

Ints = NDArray[np.int64]
# Mixes of two shapes with more replicas than this are asked about on real fleets only, not where the fleet's limit is
# switched off for an explanation: there one shape without end answers the question.
MOST_MIXED = 4096
# Four times what is asked: beyond that more headroom is worth nothing.
MOST_SPARE = 4_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """Replicas of one candidate."""

    candidate: Candidate
    replicas: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way to serve one class group."""

    service: str
    class_names: tuple[str, ...]
    parts: tuple[Part, ...]
    cost_udollars: int
    restarted_gpus: int
    gpus: int
    tp: int
    """GPUs of one replica, summed over its shapes: the tie-break prefers small groups (TP, PP and attention-DP)."""
    spare_ppm: int
    """What it carries over what is asked, in millionths, at most `MOST_SPARE`."""
    use: tuple[tuple[Block, int], ...]

    @property
    def shapes(self) -> int:
        return len(self.parts)

    @property
    def disaggregated(self) -> bool:
        return any(p.candidate.role != "aggregated" for p in self.parts)

    @property
    def name(self) -> tuple[tuple[str, int], ...]:
        """What the last tie-break compares."""
        return tuple((p.candidate.key, p.replicas) for p in self.parts)


@dataclass(frozen=True, slots=True)
class Demand:
    """What one class group of one service needs."""

    service: str
    class_names: tuple[str, ...]
    rate_urps: int
    survive: str = "none"
    replicas: int | None = None
    """Fixed by the user (aggregated pools)."""
    rdma_needed: bool = True
    most_shapes: int = 2
    endless: bool = False
    """The fleet's limit is switched off."""
    pools: str = "auto"
    """`aggregated` and `disaggregated` leave the other out."""


def restarted(parts: Sequence[Part], today: Sequence[BaselinePool]) -> int:
    """GPUs whose pods start or stop against what runs today for the same class group.

    sum over kinds of replica of |now - then| x GPUs
    """
    now = {p.candidate.key: (p.replicas, p.candidate.gpus) for p in parts}
    then = {b.key: (b.replicas, b.gpus) for b in today}
    return sum(
        abs(now.get(k, (0, 0))[0] - then.get(k, (0, 0))[0]) * (now.get(k) or then[k])[1] for k in sorted({*now, *then})
    )


def undominated(candidates: Sequence[Candidate], protected: frozenset[str] = frozenset()) -> list[Candidate]:
    """Candidates without those that another of the same blocks beats or equals in everything a rule reads.

    Replacing a dominated candidate by its dominator, count by count, keeps every pattern feasible (both capacities
    are no smaller, so what is left after any loss is no smaller) and never makes it worse in any tie-break.
    `protected` keys (what runs today) stay: moving away from them costs something.
    """
    kept: list[Candidate] = []
    kinds: dict[tuple[object, ...], list[Candidate]] = {}
    order = sorted(candidates, key=lambda c: (-c.load.planned_rps, -c.load.degraded_rps, c.deployment.shape.tp, c.key))
    for c in order:
        pair = (c.deployment.precision, c.deployment.kv_dtype) if c.role != "aggregated" else ()
        kind = (c.role, c.class_names, c.fleet_pool, c.gpus, c.nodes, c.dollars_per_hour, *pair)
        rivals = kinds.setdefault(kind, [])
        beaten = any(
            r.load.planned_rps >= c.load.planned_rps and r.load.degraded_rps >= c.load.degraded_rps and _first(r, c)
            for r in rivals
        )
        if not beaten or c.key in protected:
            rivals.append(c)
            kept.append(c)
    return sorted(kept, key=lambda c: c.key)


def _first(a: Candidate, b: Candidate) -> bool:
    """Whether `a` comes before `b` in the tie-breaks, given that it carries no less."""
    return a.load.planned_rps > b.load.planned_rps or a.key <= b.key


def spare_ppm(capacity_urps: int, rate_urps: int) -> int:
    """Headroom of one side, rounded down.

    >>> spare_ppm(1_500_000, 1_000_000), spare_ppm(10**12, 1)
    (1500000, 4000000)
    """
    return min(MOST_SPARE, math.floor(capacity_urps / rate_urps * 1e6))


def least_alone(candidate: Candidate, demand: Demand, spaces: dict[str, Space]) -> int | None:
    """Fewest replicas of one shape that carry the demand and survive what they must; None where no count does.

    n >= rate / planned    and for each loss of k:    n >= k + rate / degraded
    """
    planned, degraded = capacity_urps(candidate.load.planned_rps), capacity_urps(candidate.load.degraded_rps)
    if planned <= 0:
        return None
    n = -(-demand.rate_urps // planned)
    for (lost,) in losses((candidate,), demand.survive, spaces):
        if degraded <= 0:
            return None
        n = max(n, lost + -(-demand.rate_urps // degraded))
    return n


@dataclass(frozen=True, slots=True)
class _Rows:
    """Counts of one set of candidates: column j holds replicas of `candidates[j]`."""

    candidates: tuple[Candidate, ...]
    counts: Ints


def _last_counts(
    counts: Sequence[Ints], candidates: Sequence[Candidate], demand: Demand, spaces: dict[str, Space]
) -> Ints | None:
    """Fewest replicas of the last candidate beside given counts of the others; a count past any pool where none do.

    sum n_c planned_c >= rate, and for every loss: sum (n_c - lost_c) degraded_c >= rate
    """
    rate = demand.rate_urps
    planned = [capacity_urps(c.load.planned_rps) for c in candidates]
    degraded = [capacity_urps(c.load.degraded_rps) for c in candidates]
    if min(planned) <= 0:
        return None
    have = np.asarray(sum(n * p for n, p in zip(counts, planned, strict=False)))
    last: Ints = np.maximum(1, -((have - rate) // planned[-1]))
    for loss in losses(candidates, demand.survive, spaces):
        left = np.asarray(sum(np.maximum(n - x, 0) * d for n, x, d in zip(counts, loss, degraded, strict=False)))
        if degraded[-1] <= 0:
            last = np.where(left >= rate, last, np.iinfo(np.int64).max // 4)
        else:
            last = np.where(left >= rate, last, np.maximum(last, loss[-1] - ((left - rate) // degraded[-1])))
    return last


def _pair_rows(
    a: Candidate, b: Candidate, demand: Demand, spaces: dict[str, Space], today: dict[str, int]
) -> _Rows | None:
    """Every undominated (n_a, n_b) with both at least one; where one runs today, counts up to today's as well."""
    most_a, most_b = spaces[a.fleet_pool].most_replicas(a), spaces[b.fleet_pool].most_replicas(b)
    alone = least_alone(a, demand, spaces)
    top = most_a if alone is None else min(most_a, max(alone - 1, today.get(a.key, 0)))
    if demand.replicas is not None:
        top = min(most_a, demand.replicas - 1)
    if top < 1 or most_b < 1 or (demand.endless and top > MOST_MIXED):
        return None
    na = np.arange(1, top + 1, dtype=np.int64)
    nb = _last_counts((na,), (a, b), demand, spaces)
    if nb is None:
        return None
    if demand.replicas is not None:
        # With the total fixed, more than the least of one may be needed to reach it.
        ok = na + nb <= demand.replicas
        na, nb = na[ok], demand.replicas - na[ok]
    ok = nb <= most_b
    if not ok.any():
        return None
    counts = np.stack([na[ok], nb[ok]], axis=1)
    running = min(today.get(b.key, 0), most_b)
    if running and demand.replicas is None:
        more = [(int(x), n) for x, y in counts for n in range(int(y) + 1, running + 1)]
        if more:
            counts = np.concatenate([counts, np.array(more, dtype=np.int64)])
    return _Rows((a, b), counts)


def _triple_rows(three: tuple[Candidate, ...], demand: Demand, spaces: dict[str, Space]) -> _Rows | None:
    """Three shapes: only asked for where the rule against them is switched off."""
    tops = [spaces[x.fleet_pool].most_replicas(x) for x in three]
    if min(tops) < 1 or tops[0] * tops[1] > MOST_MIXED**2 // 16 or demand.replicas is not None:
        return None
    i, j = (g.ravel() for g in np.mgrid[1 : tops[0] + 1, 1 : tops[1] + 1])
    k = _last_counts((i, j), three, demand, spaces)
    if k is None or not (ok := k <= tops[2]).any():
        return None
    return _Rows(three, np.stack([i[ok], j[ok], k[ok]], axis=1))


def patterns(
    candidates: Sequence[Candidate],
    demand: Demand,
    spaces: dict[str, Space],
    *,
    by_total: frozenset[str],
    baseline: Sequence[BaselinePool] = (),
    surge: bool = False,
    prune: bool = True,
) -> list[Pattern]:
    """Undominated patterns of one class group.

    `baseline` is what runs today for this group. `by_total` names pools where a sum of GPUs decides what fits;
    there blocks of different sizes compare as GPUs.
    """
    usable = [c for c in candidates if c.fleet_pool in spaces and spaces[c.fleet_pool].most_replicas(c) > 0]
    today = {b.key: b.replicas for b in baseline}
    if prune:
        usable = undominated(usable, frozenset(today))
    rows: list[_Rows] = []
    if demand.pools != "disaggregated":
        whole = [c for c in usable if c.role == "aggregated"]
        for c in whole:
            n = least_alone(c, demand, spaces)
            if n is not None and demand.replicas is not None:
                n = demand.replicas if demand.replicas >= n else None
            most = spaces[c.fleet_pool].most_replicas(c)
            if n is not None and n <= most:
                running = min(today.get(c.key, 0), most) if demand.replicas is None else 0
                rows.append(_Rows((c,), np.arange(n, max(n, running) + 1, dtype=np.int64)[:, None]))
        if demand.most_shapes >= 2:
            rows += [r for a, b in combinations(whole, 2) if (r := _pair_rows(a, b, demand, spaces, today))]
        if demand.most_shapes >= 3 and not demand.endless:
            rows += [r for t in combinations(whole, 3) if (r := _triple_rows(t, demand, spaces))]
    if demand.pools != "aggregated" and demand.replicas is None:
        rows += _handed_over(usable, demand, spaces)
    rows = [r for r in (_within(r, spaces) for r in rows) if r is not None]
    if not rows:
        return []
    return _keep_best(rows, demand, spaces, by_total=by_total, baseline=baseline, surge=surge, prune=prune)


def exact_pattern(
    parts: Sequence[Part],
    demand: Demand,
    spaces: dict[str, Space],
    *,
    baseline: Sequence[BaselinePool] = (),
) -> Pattern | None:
    """These replicas and no others, if they carry the demand and survive what they must."""
    chosen = tuple(sorted(parts, key=lambda p: p.candidate.key))
    if not chosen or any(p.candidate.fleet_pool not in spaces for p in chosen):
        return None
    for role in sorted({p.candidate.role for p in chosen}):
        mine = [p for p in chosen if p.candidate.role == role]
        if sum(p.replicas * capacity_urps(p.candidate.load.planned_rps) for p in mine) < demand.rate_urps:
            return None
        for loss in losses([p.candidate for p in mine], demand.survive, spaces):
            left = sum(
                max(0, p.replicas - lost) * capacity_urps(p.candidate.load.degraded_rps)
                for p, lost in zip(mine, loss, strict=True)
            )
            if left < demand.rate_urps:
                return None
    use: dict[Block, int] = {}
    for p in chosen:
        block = block_of(p.candidate, spaces[p.candidate.fleet_pool])
        use[block] = use.get(block, 0) + p.replicas
    return Pattern(
        service=demand.service,
        class_names=demand.class_names,
        parts=chosen,
        cost_udollars=sum(p.replicas * cost_udollars(p.candidate.dollars_per_hour) for p in chosen),
        restarted_gpus=restarted(chosen, baseline),
        gpus=sum(p.replicas * p.candidate.gpus for p in chosen),
        tp=sum(p.candidate.gpus for p in chosen),
        spare_ppm=min(
            spare_ppm(
                sum(p.replicas * capacity_urps(p.candidate.load.planned_rps) for p in chosen if p.candidate.role == r),
                demand.rate_urps,
            )
            for r in sorted({p.candidate.role for p in chosen})
        ),
        use=tuple(sorted(use.items())),
    )


def _handed_over(usable: Sequence[Candidate], demand: Demand, spaces: dict[str, Space]) -> list[_Rows]:
    """Prefill and decode: both carry the full rate, so their counts do not depend on each other."""
    least = {
        c.key: n
        for c in usable
        if c.role != "aggregated"
        and (n := least_alone(c, demand, spaces)) is not None
        and n <= spaces[c.fleet_pool].most_replicas(c)
    }
    prefill = [c for c in usable if c.role == "prefill" and c.key in least]
    decode = [c for c in usable if c.role == "decode" and c.key in least]
    return [
        _Rows((p, d), np.array([[least[p.key], least[d.key]]], dtype=np.int64))
        for p in prefill
        for d in decode
        if can_hand_over(p, d, rdma_needed=demand.rdma_needed)
    ]


def _within(rows: _Rows, spaces: dict[str, Space]) -> _Rows | None:
    """Rows that the empty fleet could hold, by count of GPUs (necessary; packing decides)."""
    keep = np.ones(len(rows.counts), dtype=bool)
    for pool in {c.fleet_pool for c in rows.candidates}:
        space = spaces[pool]
        occupied = np.array(
            [block_of(c, space).gpus if c.fleet_pool == pool else 0 for c in rows.candidates], dtype=np.int64
        )
        keep &= rows.counts @ occupied <= space.gpus
    return _Rows(rows.candidates, rows.counts[keep]) if keep.any() else None


def _keep_best(
    rows: Sequence[_Rows],
    demand: Demand,
    spaces: dict[str, Space],
    *,
    by_total: frozenset[str],
    baseline: Sequence[BaselinePool],
    surge: bool,
    prune: bool,
) -> list[Pattern]:
    """Rows -> patterns, dominated ones dropped."""
    everyone = sorted({c.key: c for r in rows for c in r.candidates}.items())
    rank = {key: i for i, (key, _) in enumerate(everyone)}
    dims: dict[object, int] = {}
    for _, c in everyone:
        dims.setdefault(c.fleet_pool if c.fleet_pool in by_total else block_of(c, spaces[c.fleet_pool]), len(dims))
    total = sum(len(r.counts) for r in rows)
    extra = len(dims)
    # Columns: blocks..., surge block per pool, cost, restarts, gpus | shapes, tp, name (rank and count, twice).
    pools = sorted({c.fleet_pool for _, c in everyone})
    width = extra + (len(pools) if surge else 0) + 3
    compared = np.zeros((total, width), dtype=np.int64)
    ties = np.full((total, 9), -1, dtype=np.int64)
    owner = np.zeros(total, dtype=np.int64)
    start = 0
    for which, r in enumerate(rows):
        stop = start + len(r.counts)
        owner[start:stop] = which
        here = compared[start:stop]
        ranks = [rank[c.key] for c in r.candidates]
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        for j, c in enumerate(r.candidates):
            block = block_of(c, spaces[c.fleet_pool])
            total_mode = c.fleet_pool in by_total
            here[:, dims[c.fleet_pool if total_mode else block]] += r.counts[:, j] * (block.gpus if total_mode else 1)
            if surge:
                column = extra + pools.index(c.fleet_pool)
                here[:, column] = np.maximum(here[:, column], block.gpus)
            here[:, -3] += r.counts[:, j] * cost_udollars(c.dollars_per_hour)
            here[:, -1] += r.counts[:, j] * c.gpus
        if baseline:
            here[:, -2] = [
                restarted([Part(c, int(n)) for c, n in zip(r.candidates, row, strict=True)], baseline)
                for row in r.counts
            ]
        ties[start:stop, 0] = len(r.candidates)
        ties[start:stop, 1] = sum(c.gpus for c in r.candidates)
        ties[start:stop, 2] = -_spare(r, demand.rate_urps)
        for place, j in enumerate(order):
            ties[start:stop, 3 + 2 * place] = rank[r.candidates[j].key]
            ties[start:stop, 4 + 2 * place] = r.counts[:, j]
        start = stop
    offsets = np.concatenate([[0], np.cumsum([len(r.counts) for r in rows])])
    keys = [
        *(ties[:, i] for i in range(8, -1, -1)),
        *(compared[:, -1 - i] for i in range(3)),
        compared[:, :extra].sum(1),
    ]
    order_all = np.lexsort(keys)
    chosen = _pareto(compared, order_all, extra) if prune else order_all
    found = []
    for i in chosen:
        r = rows[int(owner[i])]
        counts = r.counts[int(i - offsets[owner[i]])]
        parts = sorted(
            (Part(c, int(n)) for c, n in zip(r.candidates, counts, strict=True)), key=lambda p: p.candidate.key
        )
        use: dict[Block, int] = {}
        for p in parts:
            block = block_of(p.candidate, spaces[p.candidate.fleet_pool])
            use[block] = use.get(block, 0) + p.replicas
        found.append(
            Pattern(
                service=demand.service,
                class_names=demand.class_names,
                parts=tuple(parts),
                cost_udollars=int(compared[i, -3]),
                restarted_gpus=int(compared[i, -2]),
                gpus=int(compared[i, -1]),
                tp=int(ties[i, 1]),
                spare_ppm=-int(ties[i, 2]),
                use=tuple(sorted(use.items())),
            )
        )
    return found


def _spare(rows: _Rows, rate_urps: int) -> Ints:
    """Headroom of every row: of prefill and decode the lesser."""
    sides: dict[str, Ints] = {}
    for j, c in enumerate(rows.candidates):
        carried = rows.counts[:, j] * capacity_urps(c.load.planned_rps)
        sides[c.role] = sides[c.role] + carried if c.role in sides else carried
    least = np.minimum.reduce([sides[r] for r in sorted(sides)])
    spare: Ints = np.minimum(np.floor(least / rate_urps * 1e6), MOST_SPARE).astype(np.int64)
    return spare


def _pareto(compared: Ints, order: Ints, blocks: int) -> Ints:
    """Rows that no earlier row (in `order`) beats or equals in every column; the first `blocks` columns are blocks.

    Rows that take from the same blocks are thinned first, in linear time for one or two blocks, so that large counts
    do not cost their square.
    """
    rows = compared[order]
    alive = np.ones(len(order), dtype=bool)
    _, kind = np.unique(rows[:, :blocks] > 0, axis=0, return_inverse=True)
    kind = kind.ravel()
    for k in range(int(kind.max()) + 1):
        here = np.flatnonzero(kind == k)
        if len(here) > 1:
            alive[here] = _thin(rows[here], [j for j in range(blocks) if rows[here[0], j] > 0])
    left = np.flatnonzero(alive)
    if len(left) > MOST_MIXED:
        return order[left]
    kept = rows[left]
    stay = np.ones(len(left), dtype=bool)
    for i in range(len(left)):
        if stay[i]:
            stay[i + 1 :] &= ~(kept[i + 1 :] >= kept[i]).all(axis=1)
    return order[left[stay]]


def _thin(rows: Ints, used: Sequence[int]) -> NDArray[np.bool_]:
    """False for rows that one other row, found by a sweep over their one or two blocks, beats or equals throughout."""
    keep = np.ones(len(rows), dtype=bool)
    if len(used) > 2:
        return keep
    first, second = rows[:, used[0]], rows[:, used[-1]]
    order = np.lexsort((np.arange(len(rows)), second, first))
    along = second[order] if len(used) == 2 else np.zeros(len(rows), dtype=np.int64)
    lowest = np.minimum.accumulate(along)
    fresh = np.concatenate([[True], along[1:] < lowest[:-1]])
    beater = order[np.maximum.accumulate(np.where(fresh, np.arange(len(rows)), 0))]
    keep[order] = fresh | ~(rows[order] >= rows[beater]).all(axis=1)
    return keep
