"""`simulate(spec)`: a seeded event simulation of pools under traffic, and what came out of it with its confidence."""

from __future__ import annotations

import heapq
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from planner.errors import UserError
from planner.intent.slo import Slo
from planner.intent.traces import TraceRow, read_trace
from planner.perf.pool import Handover, PoolSpec
from planner.perf.traffic import ClassLoad
from planner.simulate.arrivals import replayed, synthetic
from planner.simulate.cluster import Cluster, Failure, Pool
from planner.simulate.engine import INF
from planner.simulate.gauge import NOTHING
from planner.simulate.requests import BINS_PER_E, Ledger, Request
from planner.simulate.sessions import conversations

Floats = NDArray[np.float64]
BATCHES = 10
_T95 = {4: 2.78, 9: 2.26, 14: 2.14, 19: 2.09, 29: 2.05}
"""Student's t, two-sided 95%, by degrees of freedom."""


@dataclass(frozen=True, slots=True)
class SimPool:
    """Replicas of one kind."""

    name: str
    spec: PoolSpec
    replicas: int = 1
    routing: Literal["round-robin", "least-loaded"] = "round-robin"


@dataclass(frozen=True, slots=True)
class TraceReplay:
    """A trace's arrivals and lengths, row by row."""

    rows: Path | tuple[TraceRow, ...] = field(repr=False)
    """A file, which is streamed, or what was read of one."""
    pace: float = 1.0
    """The trace's clock runs this much faster."""
    share: float = 1.0
    """Each row is kept with this probability (one pool of several)."""

    def read(self) -> Iterable[TraceRow]:
        return read_trace(self.rows) if isinstance(self.rows, Path) else self.rows


@dataclass(frozen=True, slots=True)
class SimSpec:
    """One question to the simulation. Two pools are a prefill and a decode pool joined by `handover`."""

    pools: tuple[SimPool, ...]
    classes: tuple[ClassLoad, ...]
    handover: Handover | None = None
    requests: int = 10_000
    """Per seed; a trace ends earlier."""
    seeds: tuple[int, ...] = (1,)
    warmup_ratio: float = 0.1
    """Share of the run that is not measured."""
    rate_scale: float = 1.0
    traces: Mapping[str, TraceReplay] = field(default_factory=dict)
    """By class: what arrives instead of the class's own stream. The run ends with the shortest trace."""
    failures: tuple[Failure, ...] = ()
    max_waiting: int | None = None
    """Admission cap: requests that find more waiting on their replica are rejected."""
    horizon_s: float | None = None
    """End of time; what is not done by then is reported unfinished."""


@dataclass(frozen=True, slots=True)
class Books:
    """Exact bookkeeping: arrived = finished + rejected + unfinished, and tokens out = tokens asked of the finished."""

    arrived: int
    finished: int
    rejected: int
    unfinished: int
    restarted: int
    preemptions: int
    tokens_out: int
    tokens_asked: int
    tokens_lost: int
    """Generated, and generated again after a failure."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassSample:
    """What was measured of one class, all seeds together."""

    name: str
    ttft_s: Floats
    e2e_s: Floats
    tpot_s: Floats
    ttfa_s: Floats
    batch: NDArray[np.int64]
    tpot_batch: NDArray[np.int64]
    gaps: tuple[Mapping[int, float], ...]
    """By batch: histogram bin -> gaps."""
    gap_sums: tuple[tuple[float, float], ...]
    goodput_ratio: float
    """Requests that met all their promises jointly, of all that arrived in the measured time; an ITL limit is held
    against the request's mean gap."""
    history_hit_ratio: float | None = None
    """Of the tokens of sessions' earlier turns, those found in the cache; none where no turn had a history."""

    def value(self, metric: str, stat: str) -> float:
        """`("ttft", "p99")` and so on; NaN where nothing was measured."""
        if metric == "itl":
            if stat == "mean":
                count, total = (math.fsum(s[i] for s in self.gap_sums) for i in (0, 1))
                return total / count if count else math.nan
            merged: dict[int, float] = {}
            for h in self.gaps:
                for k, v in h.items():
                    merged[k] = merged.get(k, 0.0) + v
            return _histogram_quantile(merged, float(stat[1:]) / 100)
        return _stat(self._values(metric)[0], stat)

    def half_width(self, metric: str, stat: str) -> float:
        """95% half-width by batch means: t x sd of the batches' figures / sqrt(batches)."""
        if metric == "itl":
            if stat == "mean":
                per = [s[1] / s[0] for s in self.gap_sums if s[0]]
            else:
                per = [_histogram_quantile(h, float(stat[1:]) / 100) for h in self.gaps if h]
        else:
            values, batch = self._values(metric)
            order = np.argsort(batch, kind="stable")
            parts = np.split(values[order], np.flatnonzero(np.diff(batch[order])) + 1)
            per = [_stat(p, stat) for p in parts if len(p)]
        if len(per) < 3:
            return math.inf
        freedom = len(per) - 1
        t = next((_T95[d] for d in sorted(_T95) if d >= freedom), 1.96) if freedom <= 29 else 1.96
        return t * float(np.std(per, ddof=1)) / math.sqrt(len(per))

    def _values(self, metric: str) -> tuple[Floats, NDArray[np.int64]]:
        if metric == "tpot":
            return self.tpot_s, self.tpot_batch
        return {"ttft": self.ttft_s, "e2e": self.e2e_s, "ttfa": self.ttfa_s}[metric], self.batch


@dataclass(frozen=True, slots=True, eq=False)
class PoolSample:
    """What was measured of one pool: averages over its replicas and the measured time."""

    name: str
    replicas: int
    utilisation_ratio: float
    """Share of the time with a step under way."""
    running_mean: float
    running_p99: float
    kv_mean_ratio: float
    kv_p99_ratio: float
    waiting_mean: float
    """Per replica."""
    series: tuple[tuple[float, float, float], ...]
    """Time, waiting and running per replica, in windows."""


@dataclass(frozen=True, slots=True, eq=False)
class SimResult:
    """Measured figures with exact books."""

    classes: tuple[ClassSample, ...]
    pools: tuple[PoolSample, ...]
    books: Books
    rate_per_s: float
    throughput_tokens_per_s: float
    seeds: tuple[int, ...]
    duration_s: float
    """Simulated, one seed."""

    def sample(self, name: str) -> ClassSample:
        return next(c for c in self.classes if c.name == name)

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        stats = ("mean", "p50", "p90", "p95", "p99")
        return {
            "rate_per_s": self.rate_per_s,
            "throughput_tokens_per_s": self.throughput_tokens_per_s,
            "seeds": list(self.seeds),
            "duration_s": self.duration_s,
            "classes": [
                {
                    "name": c.name,
                    **{m: {s: _plain(c.value(m, s)) for s in stats} for m in ("ttft", "itl", "tpot", "e2e", "ttfa")},
                    "goodput_ratio": c.goodput_ratio,
                    **({"history_hit_ratio": c.history_hit_ratio} if c.history_hit_ratio is not None else {}),
                    "requests": len(c.ttft_s),
                }
                for c in self.classes
            ],
            "pools": [
                {
                    "name": p.name, "replicas": p.replicas, "utilisation_ratio": p.utilisation_ratio,
                    "running_mean": p.running_mean, "running_p99": p.running_p99, "kv_mean_ratio": p.kv_mean_ratio,
                    "kv_p99_ratio": p.kv_p99_ratio, "waiting_mean": p.waiting_mean,
                    "series": [{"time_s": t, "waiting": w, "running": r} for t, w, r in p.series],
                }
                for p in self.pools
            ],
            "books": {name: getattr(self.books, name) for name in Books.__slots__},
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """One promise held against the simulation."""

    cls: str
    slo: Slo
    simulated_s: float
    half_width_s: float
    """95%, batch means."""

    @property
    def holds(self) -> bool:
        return self.simulated_s <= self.slo.limit_s

    @property
    def fails(self) -> bool:
        """Beyond its confidence: what sends a cut to the solver."""
        width = self.half_width_s if math.isfinite(self.half_width_s) else 0.0
        return not math.isfinite(self.simulated_s) or self.simulated_s - width > self.slo.limit_s


def simulate(spec: SimSpec) -> SimResult:
    """Run every seed and put the measurements together."""
    _check(spec)
    total = math.fsum(c.rate_per_s for c in spec.classes) * spec.rate_scale
    runs = [_one(spec, seed, total) for seed in spec.seeds]
    classes = tuple(_class_sample(spec, i, [ledger for ledger, _ in runs]) for i in range(len(spec.classes)))
    pools = tuple(_pool_sample(p, i, runs) for i, p in enumerate(spec.pools))
    ledgers = [ledger for ledger, _ in runs]
    span = math.fsum(ledger.measured_s for ledger in ledgers)
    measured_tokens = sum(s[0] for ledger in ledgers for b in ledger.gap_sums for s in b)
    books = Books(
        arrived=sum(b.arrived for b in ledgers),
        finished=sum(b.finished for b in ledgers),
        rejected=sum(b.rejected for b in ledgers),
        unfinished=sum(cluster.unfinished for _, cluster in runs),
        restarted=sum(b.restarted for b in ledgers),
        preemptions=sum(b.preemptions for b in ledgers),
        tokens_out=sum(b.tokens_out for b in ledgers),
        tokens_asked=sum(b.tokens_asked for b in ledgers),
        tokens_lost=sum(b.tokens_lost for b in ledgers),
    )
    firsts = sum(len(c.ttft_s) for c in classes)
    arrived = ledgers[0].arrived / ledgers[0].end_s if ledgers[0].end_s > 0 else total
    return SimResult(
        classes,
        pools,
        books,
        arrived,
        (measured_tokens + firsts) / span if span > 0 else 0.0,
        spec.seeds,
        ledgers[0].end_s,
    )


def verify(spec: SimSpec, slos: Mapping[str, Sequence[Slo]] | None = None) -> tuple[SimResult, tuple[Verdict, ...]]:
    """Simulate and hold every promise against it."""
    result = simulate(spec)
    return result, verdicts(result, slos if slos is not None else {c.name: c.slos for c in spec.classes})


def verdicts(result: SimResult, slos: Mapping[str, Sequence[Slo]]) -> tuple[Verdict, ...]:
    """Promises beside what was measured."""
    return tuple(
        Verdict(c.name, s, c.value(s.metric, s.stat), c.half_width(s.metric, s.stat))
        for c in result.classes
        for s in slos.get(c.name, ())
    )


def one_replica(classes: Sequence[ClassLoad], *, replicas: int) -> tuple[ClassLoad, ...]:
    """The thinned traffic of one replica of many.

    Random thinning by R leaves 1/R of the burstiness: CV^2 = 1 + (CV^2 - 1) / R (exact for gaps seen from afar).
    """
    return tuple(
        replace(
            c,
            rate_per_s=c.rate_per_s / replicas,
            arrivals_cv=math.sqrt(max(1 + (c.arrivals_cv**2 - 1) / replicas, 0.01)),
        )
        for c in classes
    )


def _check(spec: SimSpec) -> None:
    roles = [p.spec.role for p in spec.pools]
    if spec.handover is None and roles != ["aggregated"] and roles not in (["prefill"], ["decode"]):
        raise UserError(
            "simulate",
            "two pools need a hand-over between them",
            None,
            (),
            ("give the NIC bandwidth and the cache's size",),
        )
    assert spec.handover is None or roles == ["prefill", "decode"]
    assert spec.traces.keys() <= {c.name for c in spec.classes}
    for f in spec.failures:
        assert 0 <= f.pool < len(spec.pools)


def _one(spec: SimSpec, seed: int, total_rate: float) -> tuple[Ledger, Cluster]:
    end = min((_length_s(t, spec) for t in spec.traces.values()), default=spec.requests / total_rate)
    ledger = Ledger(
        len(spec.classes),
        BATCHES,
        end * spec.warmup_ratio,
        end,
        drains=bool(spec.traces) and len(spec.traces) == len(spec.classes),
    )
    ranks = [c.priority for c in spec.classes]
    pools = [
        Pool(p.spec, p.replicas, ledger, routing=p.routing, max_waiting=spec.max_waiting, priorities=ranks)
        for p in spec.pools
    ]
    cluster = Cluster(pools, spec.handover, ledger)
    horizon = INF if spec.horizon_s is None else spec.horizon_s
    scaled = {i: c.at(c.rate_per_s * spec.rate_scale) for i, c in enumerate(spec.classes) if c.name not in spec.traces}
    talking = {i: c for i, c in scaled.items() if c.has_sessions}
    arrivals = _arrivals(spec, seed, end, without=talking)
    if talking:
        arrivals = conversations(
            talking,
            arrivals,
            cluster,
            others=[c for i, c in enumerate(spec.classes) if i not in talking],
            seed=seed,
            sharing=max(spec.pools[0].spec.replicas, spec.pools[0].replicas),
            end_s=end,
            horizon_s=horizon,
        )
    cluster.run(arrivals, spec.failures, horizon_s=horizon)
    return ledger, cluster


def _length_s(trace: TraceReplay, spec: SimSpec) -> float:
    """From a trace's first row to the last that is replayed, in simulated seconds."""
    first = last = None
    rows = 0
    for row in trace.read():
        first = row.time_s if first is None else first
        last, rows = row.time_s, rows + 1
        if rows >= spec.requests / trace.share:
            break
    return ((last or 0.0) - (first or 0.0)) / (trace.pace * spec.rate_scale)


def _arrivals(spec: SimSpec, seed: int, end_s: float, *, without: Container[int]) -> Iterator[Request]:
    """Every class's stream, merged in order of time; synthetic ones beside traces stop with the traces."""
    entry = spec.pools[0]
    replicas = max(entry.spec.replicas, entry.replicas)
    streams: list[Iterator[Request]] = []
    made = [(i, c) for i, c in enumerate(spec.classes) if c.name not in spec.traces and i not in without]
    if made:
        streams.append(
            synthetic(
                [replace(c, rate_per_s=c.rate_per_s * spec.rate_scale) for _, c in made],
                requests=spec.requests,
                seed=seed,
                replicas=replicas,
                cache_tokens=entry.spec.cache_tokens,
                numbers=[i for i, _ in made],
            )
        )
    for i, c in enumerate(spec.classes):
        trace = spec.traces.get(c.name)
        if trace is not None:
            streams.append(
                replayed(
                    trace.read(),
                    cls=i,
                    rate_scale=trace.pace * spec.rate_scale,
                    hits=c.hits,
                    replicas=replicas,
                    held_ratio=c.hits.held_ratio(replicas, entry.spec.cache_tokens),
                    seed=seed,
                    share=trace.share,
                )
            )
    if len(streams) == 1 and not spec.traces:
        yield from streams[0]
        return
    merged = streams[0] if len(streams) == 1 else heapq.merge(*streams, key=attrgetter("arrival_s"))
    for index, r in enumerate(merged):
        if index >= spec.requests or r.arrival_s > end_s:
            return
        r.index = index
        yield r


def _class_sample(spec: SimSpec, index: int, ledgers: list[Ledger]) -> ClassSample:
    cls = spec.classes[index]
    parts: dict[str, list[Floats]] = {n: [] for n in ("ttft", "e2e", "ttfa", "out", "batch")}
    missed = 0
    for s, ledger in enumerate(ledgers):
        at = np.frombuffer(ledger.arrival_s, dtype=np.float64)
        keep = (at >= ledger.warm_s) & (at <= ledger.end_s) & (np.frombuffer(ledger.cls, dtype=np.int8) == index)
        parts["ttft"].append(np.frombuffer(ledger.ttft_s, dtype=np.float64)[keep])
        parts["e2e"].append(np.frombuffer(ledger.e2e_s, dtype=np.float64)[keep])
        parts["ttfa"].append(np.frombuffer(ledger.ttfa_s, dtype=np.float64)[keep])
        parts["out"].append(np.array(ledger.output)[keep].astype(np.float64))
        span = max(ledger.end_s - ledger.warm_s, 1e-9)
        parts["batch"].append(
            s * BATCHES + np.clip((at[keep] - ledger.warm_s) / span * BATCHES, 0, BATCHES - 1).astype(np.int64)
        )
        ra = np.frombuffer(ledger.rejected_arrival_s, dtype=np.float64)
        missed += int(((ra >= ledger.warm_s) & (np.frombuffer(ledger.rejected_cls, dtype=np.int8) == index)).sum())
    ttft, e2e, ttfa, out, batch = (np.concatenate(parts[n]) for n in ("ttft", "e2e", "ttfa", "out", "batch"))
    several = out > 1
    tpot = (e2e - ttft)[several] / (out[several] - 1)
    good = np.ones(len(ttft), dtype=bool)
    whole_tpot = np.zeros(len(ttft))
    whole_tpot[several] = tpot
    by_metric = {"ttft": ttft, "e2e": e2e, "ttfa": ttfa, "tpot": whole_tpot, "itl": whole_tpot}
    for slo in cls.slos:
        good &= by_metric[slo.metric] <= slo.limit_s
    gaps = tuple(b[index] for ledger in ledgers for b in ledger.gaps)
    sums = tuple((b[index][0], b[index][1]) for ledger in ledgers for b in ledger.gap_sums)
    count = len(ttft) + missed
    batch_ids = batch.astype(np.int64)
    history, found = (math.fsum(ledger.history[index][i] for ledger in ledgers) for i in (0, 1))
    return ClassSample(
        cls.name,
        ttft,
        e2e,
        tpot,
        ttfa,
        batch_ids,
        batch_ids[several],
        gaps,
        sums,
        float(good.sum()) / count if count else math.nan,
        found / history if history else None,
    )


def _pool_sample(pool: SimPool, index: int, runs: list[tuple[Ledger, Cluster]]) -> PoolSample:
    groups = [(ledger, group) for ledger, cluster in runs for group in cluster.pools[index].replicas]
    replicas = [(ledger, rep) for ledger, group in groups for rep in group.parts()]
    span = math.fsum(ledger.measured_s for ledger, _ in replicas)
    running: dict[int, float] = {}
    kv = np.zeros(len(replicas[0][1].gauge.kv_s))
    for _, rep in replicas:
        for n, t in rep.gauge.running_s.items():
            running[n] = running.get(n, 0.0) + t
        kv += np.array(rep.gauge.kv_s)
    busy = math.fsum(rep.gauge.busy_s for _, rep in replicas)
    idle = max(span - busy, 0.0)
    running[0] = running.get(0, 0.0) + idle
    kv[0] += max(idle - math.fsum(rep.gauge.rest_s for _, rep in replicas), 0.0)
    total = max(math.fsum(running.values()), 1e-12)
    seen, p99 = 0.0, 0
    for n in sorted(running):
        seen += running[n]
        if seen >= 0.99 * total:
            p99 = n
            break
    bins = len(kv) - 1
    cumulative = np.cumsum(kv) / max(kv.sum(), 1e-12)
    first = [rep for ledger, rep in replicas if ledger is runs[0][0]]
    window = first[0].gauge.window_s
    series = []
    for w in range(len(first[0].gauge.series_wait) - 1):
        series.append(
            (
                w * window,
                sum(r.gauge.series_wait[w] for r in first) / window / len(first),
                sum(r.gauge.series_run[w] for r in first) / window / len(first),
            )
        )
    waited = math.fsum(rep.gauge.wait_integral_s for _, rep in replicas)
    return PoolSample(
        name=pool.name,
        replicas=pool.replicas,
        utilisation_ratio=busy / span if span else 0.0,
        running_mean=sum(n * t for n, t in running.items()) / total,
        running_p99=float(p99),
        kv_mean_ratio=float(((np.arange(len(kv)) + 0.5) / bins) @ kv / max(kv.sum(), 1e-12)) if busy else 0.0,
        kv_p99_ratio=float(np.searchsorted(cumulative, 0.99) + 1) / bins,
        waiting_mean=waited / span if span else 0.0,
        series=tuple(series),
    )


def _stat(values: Floats, stat: str) -> float:
    if not len(values):
        return math.nan
    return float(values.mean()) if stat == "mean" else float(np.quantile(values, float(stat[1:]) / 100))


def _histogram_quantile(h: Mapping[int, float], q: float) -> float:
    total = math.fsum(h.values())
    if total <= 0:
        return math.nan
    seen = 0.0
    for k in sorted(h):
        seen += h[k]
        if seen >= q * total:
            return 0.0 if k <= NOTHING else math.exp((k + 0.5 if k >= 0 else k - 0.5) / BINS_PER_E)
    raise AssertionError("a histogram ends at its total")


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


__all__ = [
    "Books",
    "ClassSample",
    "Failure",
    "PoolSample",
    "SimPool",
    "SimResult",
    "SimSpec",
    "Verdict",
    "one_replica",
    "simulate",
    "verdicts",
    "verify",
]
