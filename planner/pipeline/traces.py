"""Classes that replay a trace: which file, at which pace, and what a pool's share of it is.

The planned rate of such a class is its busiest minute's; the whole trace is then replayed at the pace that gives this
rate, over as many replicas as are planned. A burst is no Poisson stream: what it asks for, only a replay says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

from planner.candidates.ask import Ask
from planner.documents import shown_path
from planner.errors import UserError
from planner.intent.document import TrafficClass
from planner.intent.traces import TraceRow, busiest_minute, read_trace, summarise_file
from planner.perf.traffic import ClassLoad
from planner.pipeline.question import Question
from planner.simulate.run import TraceReplay

WHOLE = 10**9
"""More requests than any trace has."""
MOST_ROWS = 50_000
"""Rows of one trace that are replayed while planning: of a longer one those around its busiest minute."""


def replaying(ask: Ask, names: Sequence[str]) -> tuple[TrafficClass, ...]:
    """Those of the named classes that replay a trace."""
    return tuple(c for c in ask.service.traffic if c.name in names and c.arrivals.process == "replay")


def traces_of(question: Question, ask: Ask, rates: dict[str, float]) -> dict[str, TraceReplay]:
    """Replays by class. `rates`: requests/s in the busiest minute, of all pools that serve the class."""
    return {
        c.name: TraceReplay(_rows_of(file_of(question, ask.name, c)), rates[c.name] / _busiest(c))
        for c in replaying(ask, tuple(rates))
    }


def share_of(ask: Ask, load: ClassLoad, trace: TraceReplay) -> TraceReplay:
    """A pool's part of a class, whose rest other pools serve: rows are drawn by chance."""
    whole = trace.pace * _busiest(next(c for c in ask.service.traffic if c.name == load.name))
    share = load.rate_per_s / whole
    return replace(trace, share=share) if share < 1 - 1e-6 else trace


def _busiest(cls: TrafficClass) -> float:
    busiest = busiest_minute(cls.trace_summary)
    assert busiest is not None, "resolved intents replay only traces with arrival times"
    return busiest


def mean_ratio(classes: Sequence[TrafficClass]) -> float:
    """Mean rate over the busiest minute's, of classes that replay: what a replica must carry at the very least."""
    ratios = [1.0 / c.trace_summary.peak_to_mean["60s"] for c in classes if c.trace_summary is not None]
    return min(1.0, math.fsum(ratios) / len(ratios)) if ratios else 1.0


def file_of(question: Question, service: str, cls: TrafficClass) -> Path:
    """The trace's file: the one that was read, else one of its name here that holds the same rows."""
    read = question.traces.get((service, cls.name))
    if read is not None:
        return read
    assert cls.trace is not None
    path = Path(cls.trace)
    if not path.is_file():
        raise UserError(
            "trace-not-at-hand",
            f"service {service}: class {cls.name!r} replays {cls.trace}, which is not here",
            None,
            ("a plan keeps a trace's lengths and digest, not its rows",),
            (f"run from the folder that {cls.trace} is relative to, or put it beside the plan",),
        )
    if cls.trace_summary is not None and _digest(path) != cls.trace_summary.digest:
        raise UserError(
            "another-trace",
            f"service {service}: {shown_path(path)} is not the trace that the plan was made for",
            None,
            ("its rows have another digest than the plan's",),
            ("plan again with the trace as it is now",),
        )
    return path


def near(question: Question, folder: Path) -> Question:
    """The same question with its traces looked for around a plan's folder: there and in the three above it."""
    found = dict(question.traces)
    for ask in question.asks:
        for cls in replaying(ask, [n for n, _ in ask.rates]):
            assert cls.trace is not None
            for place in (folder.resolve(), *folder.resolve().parents[:3]):
                path = place / Path(cls.trace).name
                if path.is_file() and cls.trace_summary is not None and _digest(path) == cls.trace_summary.digest:
                    found.setdefault((ask.name, cls.name), path)
                    break
    return replace(question, traces=found)


def is_here(question: Question, service: str, cls: TrafficClass) -> bool:
    """Whether the class's own trace can be replayed."""
    try:
        file_of(question, service, cls)
    except UserError:
        return False
    return True


def cut_short(cls: TrafficClass) -> bool:
    """Whether only the busiest stretch of its trace is replayed."""
    return cls.trace_summary is not None and cls.trace_summary.rows > MOST_ROWS


def _rows_of(path: Path) -> tuple[TraceRow, ...]:
    state = path.stat()
    return _read(path.resolve(), state.st_mtime_ns, state.st_size)


def _digest(path: Path) -> str:
    state = path.stat()
    return _digest_of(path.resolve(), state.st_mtime_ns, state.st_size)


# A file's time and size stand for its content within one run.


@lru_cache(maxsize=16)
def _digest_of(path: Path, _changed_ns: int, _size: int) -> str:
    return summarise_file(path).digest


@lru_cache(maxsize=4)
def _read(path: Path, _changed_ns: int, _size: int) -> tuple[TraceRow, ...]:
    """All rows, or as many around the busiest minute as are replayed."""
    minutes: Counter[int] = Counter()
    first = None
    for row in read_trace(path):
        assert row.time_s is not None
        first = row.time_s if first is None else first
        minutes[int((row.time_s - first) // 60)] += 1
    rows = minutes.total()
    busiest = min(minutes, key=lambda m: (-minutes[m], m))
    middle = sum(n for m, n in minutes.items() if m < busiest) + minutes[busiest] // 2
    start = min(max(0, middle - MOST_ROWS // 2), max(0, rows - MOST_ROWS))
    return tuple(islice(read_trace(path), start, start + MOST_ROWS))
