"""Streams of requests in order of arrival: synthetic by class, or the rows of a trace."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from planner.errors import UserError
from planner.intent.traces import TraceRow
from planner.perf.traffic import BLOCK_TOKENS, FIRST_BLOCK_TOKENS, ClassLoad, PrefixHits
from planner.simulate.requests import Request

_CHUNK = 8192


def synthetic(
    classes: Sequence[ClassLoad],
    *,
    requests: int,
    seed: int,
    replicas: int,
    cache_tokens: float = math.inf,
    numbers: Sequence[int] | None = None,
) -> Iterator[Request]:
    """Classes' own arrival processes, superposed: gamma gaps with each class's CV (1 is Poisson).

    `numbers`: the classes' places among those of the run, where these are not all of them.
    """
    places = range(len(classes)) if numbers is None else numbers
    streams = [
        _stream(c, i, np.random.default_rng([seed, i]), replicas, cache_tokens)
        for i, c in zip(places, classes, strict=True)
    ]
    merged = streams[0] if len(streams) == 1 else heapq.merge(*streams)
    for index, (at, cls, inputs, cached, outputs, thinking) in enumerate(merged):
        if index == requests:
            return
        yield Request(index, at, cls, inputs, cached, outputs, thinking)


def _stream(
    c: ClassLoad, cls: int, rng: np.random.Generator, replicas: int, cache_tokens: float
) -> Iterator[tuple[float, int, int, int, int, int]]:
    now = 0.0
    mean = 1.0 / c.rate_per_s
    shape = 1.0 / c.arrivals_cv**2
    while True:
        gaps = rng.exponential(mean, _CHUNK) if shape == 1.0 else rng.gamma(shape, mean / shape, _CHUNK)
        times = now + np.cumsum(gaps)
        now = float(times[-1])
        s = c.sample(rng, _CHUNK, replicas=replicas, cache_tokens=cache_tokens)
        yield from zip(
            times.tolist(),
            [cls] * _CHUNK,
            s.input_tokens.astype(np.int64).tolist(),
            s.cached_tokens.astype(np.int64).tolist(),
            s.output_tokens.astype(np.int64).tolist(),
            s.thinking_tokens.astype(np.int64).tolist(),
            strict=True,
        )


def replayed(
    rows: Iterable[TraceRow],
    *,
    rate_scale: float,
    hits: PrefixHits,
    replicas: int,
    held_ratio: float,
    seed: int,
    share: float = 1.0,
    cls: int = 0,
) -> Iterator[Request]:
    """A trace's own arrivals as class `cls`, faster by `rate_scale`; a row is kept with probability `share`.

    Prefix hits as stated (of shared prefixes `held_ratio` are there), else the trace's own.
    """
    rng = np.random.default_rng([seed, 7])
    cacheable = hits.warm and (hits.traced or hits.share > 0 or hits.shared_tokens > 0)
    here_ratio = 1.0 if hits.routing == "affinity" else 1.0 / replicas
    first: float | None = None
    index = 0
    luck: list[float] = []
    for row in rows:
        if row.time_s is None:
            raise UserError(
                "trace", "a trace without timestamps cannot be replayed", None, (), ("give a rate instead",)
            )
        if not luck:
            luck = rng.random(_CHUNK).tolist()
        if share < 1 and luck.pop() >= share:
            continue
        if first is None:
            first = row.time_s
        cached = 0
        if cacheable and (row.hit_tokens or not hits.traced):
            if not luck:
                luck = rng.random(_CHUNK).tolist()
            cached = _hit_tokens(hits, row, luck.pop(), here_ratio=here_ratio, held_ratio=held_ratio)
        yield Request(index, (row.time_s - first) / rate_scale, cls, row.input_tokens, cached, row.output_tokens, 0)
        index += 1


def _hit_tokens(hits: PrefixHits, row: TraceRow, luck: float, *, here_ratio: float, held_ratio: float) -> int:
    """Cached tokens of one row, in whole blocks. `luck` is uniform in [0, 1).

    Of a trace's own hits the first block (512 tokens) is a system prompt that every replica soon holds; what is deeper
    is where it was computed.
    """
    if hits.traced:
        found = row.hit_tokens if luck < here_ratio else min(row.hit_tokens, FIRST_BLOCK_TOKENS)
    else:
        shared = min(int(hits.shared_tokens), row.input_tokens) if luck < held_ratio else 0
        found = max(int(hits.share * row.input_tokens), shared)
    return min(found // BLOCK_TOKENS * BLOCK_TOKENS, row.input_tokens - 1)
