"""Prefill and decode apart: two pools that carry the same requests, and the cache's way between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import UserError
from planner.intent.slo import Slo
from planner.perf.figures import speed_nodes
from planner.perf.load import LOAD_CAP, LoadModel, LoadResult
from planner.perf.nodes import spread_nodes
from planner.perf.pool import Handover, PoolSpec
from planner.perf.spread import ClassFigures, Spread, spread
from planner.perf.traffic import ClassLoad


@dataclass(frozen=True, slots=True, eq=False)
class PairResult:
    """Requests that pass through one prefill replica at its rate and one decode replica at its own."""

    prefill: LoadResult
    decode: LoadResult
    classes: tuple[ClassFigures, ...]
    transfer_mean_s: float
    nic_ratio: float
    """Share of the time that the prefill replica's links move cache."""

    def misses(self, slos: Mapping[str, Sequence[Slo]], margins: Mapping[str, float] | None = None) -> float:
        """As `LoadResult.misses`."""
        worst = -1.0
        for c in self.classes:
            for slo in slos.get(c.name, ()):
                worst = max(worst, c.value(slo) * (1 + (margins or {}).get(slo.metric, 0.0)) / slo.limit_s - 1)
        return worst


class PairModel:
    """A prefill and a decode replica under one class mix."""

    def __init__(self, prefill: PoolSpec, decode: PoolSpec, handover: Handover, classes: Sequence[ClassLoad]) -> None:
        assert prefill.role == "prefill"
        assert decode.role == "decode"
        self.prefill = LoadModel(prefill.with_(handover=handover), classes)
        self.decode = LoadModel(decode, classes)
        self.handover = handover
        grid = self.prefill.grid
        self._transfer = np.array([handover.seconds(float(t)) for t in grid.input_tokens])
        self.transfer_mean_s = grid.mean(self._transfer)
        # Within it: what the links carry, and what the cache holds until it has left (`perf.outgoing`).
        self.prefill_max_per_s = self.prefill.lambda_max

    def evaluate(self, prefill_rate_per_s: float, decode_rate_per_s: float, *, e2e: bool = True) -> PairResult:
        """Both replicas at their rates: they differ when the pools have different counts."""
        p = self.prefill.evaluate(prefill_rate_per_s, metrics=frozenset({"ttft"}))
        d = self.decode.evaluate(decode_rate_per_s, metrics=frozenset({"ttft", "itl", "tpot"}))
        assert self.prefill.outgoing is not None
        nic = self.prefill.outgoing.link_ratio(prefill_rate_per_s)
        if not (p.stable and d.stable) or nic >= 0.999:
            never = spread([math.inf, math.inf], [1.0, 1.0], "unstable", mean=math.inf)
            classes = tuple(ClassFigures(c.name, never, never, never, never, never) for c in self.prefill.classes)
            return PairResult(p, d, classes, self.transfer_mean_s, nic)
        figures = []
        for fp, fd, grid in zip(p.classes, d.classes, self.prefill.grids, strict=True):
            # A long prompt takes long to read and long to send; the wait for the links is that of the others' bytes.
            move = np.array([self.handover.seconds(float(t)) for t in grid.input_tokens])
            sent = _together(fp.ttft, spread(move, grid.weights, "transfer"))
            sent = replace(_sum(sent, self.prefill.outgoing.link_wait(prefill_rate_per_s)), method=sent.method)
            ttft = _sum(sent, fd.ttft)
            gaps = np.maximum(grid.output_tokens - 1, 0.0)
            whole = None
            if e2e:
                t, tw = spread_nodes(ttft, 9)
                s, sw = speed_nodes(
                    self.decode, self.decode.running(decode_rate_per_s / self.decode.pool.lockstep_ranks), fd.itl
                )
                whole = spread(
                    t[None, :, None] + gaps[:, None, None] * s[None, None, :],
                    grid.weights[:, None, None] * tw[None, :, None] * sw[None, None, :],
                    "TTFT and gaps joined",
                    mean=ttft.mean + grid.mean(gaps) * fd.itl.mean,
                )
            ttfa = None
            if grid.mean(grid.thinking_tokens) > 0:
                t, tw = spread_nodes(ttft, 9)
                ttfa = spread(
                    t[None, :] + grid.thinking_tokens[:, None] * fd.itl.mean,
                    grid.weights[:, None] * tw[None, :],
                    "TTFT and thinking gaps joined",
                )
            figures.append(ClassFigures(fp.name, ttft, fd.itl, fd.tpot, whole, ttfa))
        return PairResult(p, d, tuple(figures), self.transfer_mean_s, nic)

    def planned_rates(
        self, *, load_cap: float = LOAD_CAP, margins: Mapping[str, float] | None = None, ttft_share: float = 0.8
    ) -> tuple[float, float]:
        """Highest rates of a prefill and of a decode replica, each alone within its part of the promises.

        The decode replica must hold ITL, TPOT (and leave E2E to the pair); the prefill replica must hold `ttft_share`
        of each TTFT limit, the rest is the hand-over's and the admission's. `evaluate` then judges the pair.
        """
        itl = {c.name: [s for s in c.slos if s.metric in ("itl", "tpot")] for c in self.prefill.classes}
        ttft = {
            c.name: [Slo(s.metric, s.stat, s.limit_s * ttft_share) for s in c.slos if s.metric == "ttft"]
            for c in self.prefill.classes
        }
        p = self.prefill.capacity(load_cap=load_cap, margins=margins, slos=ttft).planned_per_s
        d = self.decode.capacity(load_cap=load_cap, margins=margins, slos=itl).planned_per_s
        return min(p, load_cap * self.prefill_max_per_s), d


def check_handover(handover: Handover | None) -> Handover:
    """P/D needs a way to move the cache; said before anything is computed."""
    if handover is None:
        raise UserError("kv-transfer-needs-rdma", "prefill and decode apart need RDMA between their nodes")
    return handover


def _together(a: Spread, b: Spread) -> Spread:
    """Sum of two times that are long for the same requests."""
    if b.values[0] == b.values[-1]:
        return a.shifted(b.mean)
    (av, w), (bv, _) = spread_nodes(a, 40), spread_nodes(b, 40)
    return spread(av + bv, w, f"{a.method} + {b.method}", mean=a.mean + b.mean)


def _sum(a: Spread, b: Spread) -> Spread:
    """Sum of two independent times, on nodes; means add exactly."""
    if len(b.values) == 1 or b.values[0] == b.values[-1]:
        return a.shifted(b.mean)
    av, aw = spread_nodes(a, 24)
    bv, bw = spread_nodes(b, 12)
    return spread(
        av[:, None] + bv[None, :], aw[:, None] * bw[None, :], f"{a.method} + {b.method}", mean=a.mean + b.mean
    )
