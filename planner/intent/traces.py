"""Request traces: CSV files with lengths and, mostly, arrival times, read row by row.

Needed columns are `input_tokens` and `output_tokens`; `timestamp_s` orders them, `prefix_hit_tokens_infinite_cache`
(as in ../traces of Mooncake's release) says how much of a prompt an endless prefix cache would hold. Memory does not
grow with the rows beyond the distinct lengths. What a plan keeps of a trace is its `TraceSummary`: at most 256
weighted (input, cached, output) rows, rates, burstiness and a digest of the rows.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from planner.documents import Strict, close_files, shown_path
from planner.errors import UserError, Where

LARGEST_TOKENS = 100_000_000
PAIRS = 256
_ALIASES = {
    "input_tokens": ("input_tokens", "ContextTokens", "input_length", "prompt_tokens", "isl"),
    "output_tokens": ("output_tokens", "GeneratedTokens", "output_length", "completion_tokens", "osl"),
    "timestamp_s": ("timestamp_s",),
    "hit_tokens": ("prefix_hit_tokens_infinite_cache", "prefix_hit_tokens"),
}
# Probability edges of the 16 input strata and, within each, of the output strata: finer towards the tail.
_EDGES = (*(0.9 * i / 10 for i in range(1, 10)), 0.9, 0.95, 0.975, 0.99, 0.996, 0.999)


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace. `time_s` is None where the file has no arrival times."""

    time_s: float | None
    input_tokens: int
    output_tokens: int
    hit_tokens: int


class LengthSummary(Strict):
    """One marginal of a trace, in tokens."""

    mean: float
    p50: int
    p90: int
    p95: int
    p99: int
    max: int


def _read_pairs(value: Any) -> Any:
    """One row a line, `input cached output weight`, so that a plan stays readable."""
    if isinstance(value, (list, tuple)):
        rows = [row.split() if isinstance(row, str) else row for row in value]
        # Rounded once, here, to what is written: a plan read back equals the plan.
        return [[float(f"{float(v):.10g}") for v in row] for row in rows]
    return value


def _write_pairs(pairs: tuple[tuple[float, float, float, float], ...]) -> list[str]:
    return [" ".join(f"{v:.10g}" for v in row) for row in pairs]


class TraceSummary(Strict):
    """What a plan keeps of a trace, so that it can be simulated and reviewed without the file."""

    rows: int
    duration_s: float | None
    rate_per_s: float | None
    """Mean over the whole trace."""
    input: LengthSummary
    output: LengthSummary
    correlation: float
    """Pearson's, input against output."""
    hit_ratio: float
    """Prompt tokens that an endless prefix cache would hold, as a share of all."""
    interarrival_cv: float | None
    peak_to_mean: dict[str, float]
    """Busiest window over the mean, for windows of 1, 10 and 60 s."""
    pairs: Annotated[
        tuple[tuple[float, float, float, float], ...],
        BeforeValidator(_read_pairs),
        PlainSerializer(_write_pairs, return_type=list),
        WithJsonSchema({"type": "array", "items": {"type": "string", "description": "input cached output weight"}}),
    ]
    """Input, cached, output, weight: strata with their exact means."""
    digest: str
    """sha256 over the rows as numbers, not over file bytes."""


def read_trace(path: Path) -> Iterator[TraceRow]:
    """The rows of a trace CSV in file order. The first bad row raises UserError with its line."""
    shown = shown_path(path)
    try:
        handle = path.open(encoding="utf-8-sig", newline="")
    except FileNotFoundError as e:
        near = close_files(path.name, path.parent)
        raise UserError("no-such-file", f"trace {shown} does not exist", Where(shown), (), near) from e
    except OSError as e:
        raise UserError("cannot-read", f"trace {shown} cannot be read: {e.strerror}", Where(shown)) from e
    with handle:
        yield from _rows(handle, shown)


def _rows(lines: Iterable[str], shown: str) -> Iterator[TraceRow]:
    reader = csv.reader(lines)
    try:
        header = [name.strip() for name in next(reader, [])]
        i_at, o_at = _column(header, "input_tokens", shown), _column(header, "output_tokens", shown)
        t_at, h_at = _column(header, "timestamp_s", shown), _column(header, "hit_tokens", shown)
        last: float | None = None
        some = False
        for cells in reader:
            if not cells:
                continue
            line = reader.line_num
            if len(cells) != len(header):
                raise _bad(shown, line, cells, f"{len(cells)} fields where the header has {len(header)}")
            inputs, outputs = _tokens(cells, i_at, header, shown, line), _tokens(cells, o_at, header, shown, line)
            assert inputs is not None
            assert outputs is not None
            time_s = None
            if t_at is not None:
                time_s = _number(cells, t_at, header, shown, line)
                if last is not None and time_s < last:
                    raise _bad(
                        shown,
                        line,
                        cells,
                        f"timestamp {cells[t_at]} is before the row above it",
                        "sort the rows by time",
                    )
                last = time_s
            hit = 0
            if h_at is not None and cells[h_at].strip():
                value = _number(cells, h_at, header, shown, line)
                if value < 0 or value > inputs or value != int(value):
                    raise _bad(
                        shown,
                        line,
                        cells,
                        f"{header[h_at]} is {cells[h_at]}, not a whole number from 0 to the prompt's {inputs}",
                    )
                hit = int(value)
            some = True
            yield TraceRow(time_s, inputs, outputs, hit)
    except UnicodeDecodeError as e:
        raise UserError("not-text", f"trace {shown} is not UTF-8 text", Where(shown)) from e
    except csv.Error as e:
        raise UserError("trace", f"trace {shown} is not a CSV file: {e}", Where(shown)) from e
    if not some:
        raise UserError(
            "trace", f"trace {shown} has no rows", Where(shown), (), ("give at least one request below the header",)
        )


def _column(header: list[str], name: str, shown: str) -> int | None:
    for alias in _ALIASES[name]:
        if alias in header:
            if header.count(alias) > 1:
                where = Where(shown, 1, 1, ",".join(header)[:200])
                raise UserError("trace", f"column {alias!r} stands twice", where, (), ("keep one of them",))
            return header.index(alias)
    if name in ("timestamp_s", "hit_tokens"):
        return None
    found = ", ".join(h for h in header if h)[:120] or "nothing"
    raise UserError(
        "trace",
        f"trace {shown} has no column {name}",
        Where(shown, 1, 1, ",".join(header)[:200]),
        (f"found: {found}",),
        ("the first line names the columns: timestamp_s,input_tokens,output_tokens",),
    )


def _bad(shown: str, line: int, cells: list[str], message: str, advice: str = "") -> UserError:
    return UserError("trace", message, Where(shown, line, 1, ",".join(cells)[:200]), (), (advice,) if advice else ())


def _number(cells: list[str], at: int, header: list[str], shown: str, line: int) -> float:
    try:
        value = float(cells[at])
    except ValueError:
        raise _bad(shown, line, cells, f"{header[at]} is {cells[at][:40]!r}, not a number") from None
    if not math.isfinite(value):
        raise _bad(shown, line, cells, f"{header[at]} is {cells[at].strip()[:40]}, not a finite number")
    return value


def _tokens(cells: list[str], at: int | None, header: list[str], shown: str, line: int) -> int:
    assert at is not None
    text = cells[at]
    if text.isdecimal() and len(text) < 9 and text != "0":
        value = int(text)
        if value:
            return value
    number = _number(cells, at, header, shown, line)
    if number < 1 or number != int(number) or number > LARGEST_TOKENS:
        raise _bad(
            shown,
            line,
            cells,
            f"{header[at]} is {text.strip()[:40]}, not a whole number of tokens from 1 to {LARGEST_TOKENS:,}",
        )
    return int(number)


def _bin(tokens: int) -> int:
    """Tokens rounded down to six binary digits (3%): the resolution at which pairs are counted; sums stay exact."""
    shift = max(tokens.bit_length() - 6, 0)
    return (tokens >> shift) << shift


def summarise(rows: Iterable[TraceRow]) -> TraceSummary:
    """One pass over the rows -> what a plan keeps of them."""
    inputs: Counter[int] = Counter()
    outputs: Counter[int] = Counter()
    cells: dict[tuple[int, int], list[int]] = {}
    seconds: Counter[int] = Counter()
    digest = hashlib.sha256()
    count = 0
    cross = 0
    gaps = gap_sum = gap_squares = 0.0
    first: float | None = None
    last: float | None = None
    for row in rows:
        count += 1
        i, o, h = row.input_tokens, row.output_tokens, row.hit_tokens
        inputs[i] += 1
        outputs[o] += 1
        cross += i * o
        cell = cells.get(key := (_bin(i), _bin(o)))
        if cell is None:
            cells[key] = [1, i, h, o]
        else:
            cell[0] += 1
            cell[1] += i
            cell[2] += h
            cell[3] += o
        t = row.time_s
        if t is not None:
            if first is None:
                first = t
            elif last is not None:
                gap = t - last
                gaps += 1
                gap_sum += gap
                gap_squares += gap * gap
            last = t
            seconds[int(t - first)] += 1
        digest.update(f"{'' if t is None else repr(t)},{i},{h},{o}\n".encode())
    assert count, "read_trace refuses empty traces"
    duration = last - first if first is not None and last is not None and last > first else None
    input_sum = _total(inputs)
    hits = sum(c[2] for c in cells.values())
    return TraceSummary(
        rows=count,
        duration_s=duration,
        rate_per_s=count / duration if duration else None,
        input=_marginal(inputs, count),
        output=_marginal(outputs, count),
        correlation=_correlation(inputs, outputs, cross, count),
        hit_ratio=hits / input_sum,
        interarrival_cv=_cv(gaps, gap_sum, gap_squares),
        peak_to_mean=_peaks(seconds, count, duration) if duration else {},
        pairs=_pairs(cells, count),
        digest="sha256:" + digest.hexdigest(),
    )


def summarise_file(path: Path) -> TraceSummary:
    return summarise(read_trace(path))


def busiest_minute(trace: TraceSummary | None) -> float | None:
    """Requests per second in a trace's busiest minute (its mean, where it is shorter), which is what a rate means."""
    if trace is None or trace.rate_per_s is None:
        return None
    return trace.rate_per_s * trace.peak_to_mean.get("60s", 1.0)


def _total(counts: Counter[int]) -> int:
    return sum(value * n for value, n in counts.items())


def _marginal(counts: Counter[int], count: int) -> LengthSummary:
    order = sorted(counts)

    def quantile(q: float) -> int:
        need, seen = q * count, 0
        for value in order:
            seen += counts[value]
            if seen >= need - 1e-9:
                return value
        return order[-1]

    return LengthSummary(
        mean=_total(counts) / count,
        p50=quantile(0.5),
        p90=quantile(0.9),
        p95=quantile(0.95),
        p99=quantile(0.99),
        max=order[-1],
    )


def _correlation(inputs: Counter[int], outputs: Counter[int], cross: int, count: int) -> float:
    mean_i, mean_o = _total(inputs) / count, _total(outputs) / count
    var_i = sum(n * v * v for v, n in inputs.items()) / count - mean_i**2
    var_o = sum(n * v * v for v, n in outputs.items()) / count - mean_o**2
    if var_i <= 1e-9 or var_o <= 1e-9:
        return 0.0
    return (cross / count - mean_i * mean_o) / math.sqrt(var_i * var_o)


def _cv(gaps: float, total: float, squares: float) -> float | None:
    if gaps < 2 or total <= 0:
        return None
    mean = total / gaps
    return math.sqrt(max(squares / gaps - mean * mean, 0.0)) / mean


def _peaks(seconds: Counter[int], count: int, duration_s: float) -> dict[str, float]:
    """Busiest 1, 10 and 60 consecutive seconds over the mean of the trace."""
    found = {}
    order = sorted(seconds)
    for window in (1, 10, 60):
        if duration_s < window:
            continue
        most = inside = start = 0
        for second in order:
            inside += seconds[second]
            while order[start] <= second - window:
                inside -= seconds[order[start]]
                start += 1
            most = max(most, inside)
        found[f"{window}s"] = max(1.0, most / (count / duration_s * window))
    return found


def _strata(cells: list[tuple[int, list[int]]], total: int) -> Iterator[list[list[int]]]:
    """Cells sorted by one length -> runs of cells between the probability edges."""
    run: list[list[int]] = []
    seen, at = 0, 0
    for _, cell in cells:
        middle = (seen + cell[0] / 2) / total
        moved = False
        while at < len(_EDGES) and middle >= _EDGES[at]:
            at += 1
            moved = True
        if moved and run:
            yield run
            run = []
        run.append(cell)
        seen += cell[0]
    if run:
        yield run


def _pairs(cells: dict[tuple[int, int], list[int]], count: int) -> tuple[tuple[float, float, float, float], ...]:
    """Strata by input, within each by output: at most 16 x 16 rows, whose means are exact."""
    result = []
    by_input = sorted(((key[0], cell) for key, cell in sorted(cells.items())), key=lambda e: e[0])
    for stratum in _strata(by_input, count):
        inner = sorted(((cell[3] // cell[0], cell) for cell in stratum), key=lambda e: (e[0], e[1]))
        for run in _strata(inner, sum(c[0] for c in stratum)):
            n = sum(c[0] for c in run)
            result.append(
                (sum(c[1] for c in run) / n, sum(c[2] for c in run) / n, sum(c[3] for c in run) / n, n / count)
            )
    assert len(result) <= PAIRS
    return tuple(result)
