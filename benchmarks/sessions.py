"""Sessions over a prefix cache: what the closed form counts on against what the simulation's cache finds.

    python -m benchmarks.sessions [--quick]

A grid of replicas, routing, think times, cache sizes, turns and loads, chat-like turns (600 in, 200 out, CV 1). Prints
every point, then the errors: the closed form should find less of the histories than the simulation (within 0.02), and
its TTFT should be on the safe side. Held beside the cache's size in contexts of mean length, because a cache of few
contexts loses them in bursts that no closed form of means sees.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchmarks.load_points import additive
from planner.intent.document import Lengths
from planner.perf.lengths import distribution
from planner.perf.load import LoadModel
from planner.perf.pool import PoolSpec
from planner.perf.traffic import ClassLoad, JointLengths, PrefixHits
from planner.simulate.run import SimPool, SimSpec, simulate

MARGIN = 0.02
"""Of the history hit ratio: what the closed form may count on beyond the simulation."""
FEW = 25
"""Mean contexts that a cache holds, below which points are told apart."""
Routing = Literal["round-robin", "affinity"]


@dataclass(frozen=True)
class Point:
    """One setting."""

    replicas: int
    routing: Routing
    think_s: float
    turns: int
    cache_tokens: float
    load: float

    @property
    def contexts(self) -> float:
        """Contexts of mean length that one replica's cache holds."""
        return self.cache_tokens / (800 * (self.turns + 1) / 2)

    @property
    def cls(self) -> ClassLoad:
        lengths = JointLengths(
            distribution(Lengths(mean=600, cv=1.0)), distribution(Lengths(mean=200, cv=1.0)), turns=self.turns
        )
        return ClassLoad("chat", 1.0, lengths, PrefixHits(routing=self.routing), think_time_s=self.think_s)


@dataclass(frozen=True)
class Row:
    """Closed form and simulation at one point."""

    point: Point
    rate_per_s: float
    hits: tuple[float, float]
    ttft_s: tuple[float, float]
    ttft_p99_s: tuple[float, float]
    itl_s: tuple[float, float]


def points(*, quick: bool) -> Iterator[Point]:
    """The grid; with one replica both routings are one."""
    for turns in (6,) if quick else (4, 12):
        for load in (0.8,) if quick else (0.5, 0.8):
            for replicas, routing in ((1, "affinity"), (2, "affinity"), (4, "affinity"), (2, "rr"), (4, "rr")):
                for think_s in (15.0, 120.0) if quick else (2.0, 15.0, 60.0, 120.0):
                    for cache in (2e5, 1e6) if quick else (1e5, 2e5, 4e5, 1e6, 3e6):
                        way: Routing = "affinity" if routing == "affinity" else "round-robin"
                        yield Point(replicas, way, think_s, turns, cache, load)


def measure(p: Point, *, requests: int) -> Row:
    """One replica's rate is the load's share of its own lambda_max, hits at that rate included."""
    pool = PoolSpec(additive(), 128, 2048, p.cache_tokens, replicas=p.replicas)
    c = p.cls
    model = LoadModel(pool, [c])
    rate = p.load * model.lambda_max
    form = model.evaluate(rate).classes[0]
    spec = SimSpec(
        (SimPool("a", pool, p.replicas, "least-loaded" if p.replicas > 1 else "round-robin"),),
        (c.at(rate * p.replicas),),
        requests=requests,
        seeds=(1, 2, 3),
        warmup_ratio=0.2,
    )
    seen = simulate(spec).classes[0]
    assert seen.history_hit_ratio is not None
    return Row(
        p,
        rate,
        (model.history_hit_ratios(rate)["chat"], seen.history_hit_ratio),
        (form.ttft.mean, seen.value("ttft", "mean")),
        (form.ttft.stat("p99"), seen.value("ttft", "p99")),
        (form.itl.mean, seen.value("itl", "mean")),
    )


def told(r: Row) -> str:
    p = r.point
    return (
        f"{p.replicas} {p.routing:11} think {p.think_s:3.0f}s  {p.turns:2} turns  cache {p.cache_tokens:9,.0f} "
        f"({p.contexts:5.0f} contexts)  load {p.load:.1f}  {r.rate_per_s:5.2f}/s  "
        f"hits {r.hits[0]:.3f} / {r.hits[1]:.3f}  TTFT mean {1e3 * r.ttft_s[0]:5.0f} / {1e3 * r.ttft_s[1]:5.0f} ms  "
        f"p99 {1e3 * r.ttft_p99_s[0]:6.0f} / {1e3 * r.ttft_p99_s[1]:6.0f} ms  "
        f"ITL {1e3 * r.itl_s[0]:5.1f} / {1e3 * r.itl_s[1]:5.1f} ms"
    )


def summary(name: str, rows: Sequence[Row]) -> str:
    """Errors as closed form less (or over) simulation."""
    if not rows:
        return f"{name}: no points"
    hits = np.array([r.hits[0] - r.hits[1] for r in rows])
    ttft = np.array([r.ttft_s[0] / r.ttft_s[1] - 1 for r in rows])
    p99 = np.array([r.ttft_p99_s[0] / r.ttft_p99_s[1] - 1 for r in rows])
    itl = np.array([r.itl_s[0] / r.itl_s[1] - 1 for r in rows])
    return (
        f"{name}: {len(rows)} points\n"
        f"  hits: median {np.median(hits):+.3f}, {hits.min():+.3f} to {hits.max():+.3f}; "
        f"at most {MARGIN} too many in {(hits <= MARGIN).mean():.0%}\n"
        f"  TTFT mean: median {np.median(ttft):+.0%}, safe in {(ttft >= 0).mean():.0%} (worst {ttft.min():+.0%})\n"
        f"  TTFT p99: median {np.median(p99):+.0%}, safe in {(p99 >= 0).mean():.0%} (worst {p99.min():+.0%})\n"
        f"  ITL mean: median {np.median(itl):+.0%}, {itl.min():+.0%} to {itl.max():+.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    rows = []
    for p in points(quick=args.quick):
        rows.append(measure(p, requests=5000))
        print(told(rows[-1]), flush=True)
    print(summary(f"caches of {FEW} contexts or more", [r for r in rows if r.point.contexts >= FEW]))
    print(summary("smaller caches", [r for r in rows if r.point.contexts < FEW]))
    for routing in ("affinity", "round-robin"):
        print(summary(routing, [r for r in rows if r.point.routing == routing]))


if __name__ == "__main__":
    main()
