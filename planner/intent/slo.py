"""Service level objectives: `metric[.percentile]=limit`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from planner.errors import UserError, did_you_mean
from planner.units import TIME, QuantityError, format_time_exact

Metric = Literal["ttft", "itl", "tpot", "e2e", "ttfa"]
METRICS: tuple[str, ...] = get_args(Metric)
DEFAULT_STAT = "p99"
_STAT = re.compile(r"^(?:mean|p(\d{1,2}(?:\.\d)?))$")


@dataclass(frozen=True, slots=True, order=True)
class Slo:
    """One promise: e.g. ttft, p95, 0.8 s."""

    metric: str
    stat: str
    """`mean` or `p50` ... `p99.9`."""
    limit_s: float

    @property
    def key(self) -> str:
        """`ttft.p95`"""
        return f"{self.metric}.{self.stat}"

    @property
    def quantile(self) -> float | None:
        """0.95 for p95, None for the mean."""
        return None if self.stat == "mean" else float(self.stat[1:]) / 100

    def __str__(self) -> str:
        return f"{self.key}={format_time_exact(self.limit_s)}"


def parse_slo_key(key: str) -> tuple[str, str]:
    """`ttft.p95` -> ("ttft", "p95"); without a suffix p99.

    >>> parse_slo_key("itl")
    ('itl', 'p99')
    """
    metric, _, stat = key.strip().partition(".")
    if metric not in METRICS:
        raise UserError(
            "unknown-metric",
            f"unknown SLO metric {metric!r}",
            None,
            (),
            did_you_mean(metric, METRICS) or (f"known: {', '.join(METRICS)}",),
        )
    stat = stat or DEFAULT_STAT
    match = _STAT.match(stat)
    if not match:
        raise UserError(
            "bad-percentile",
            f"{stat!r} is not a percentile",
            None,
            (),
            (f"write {metric}.p50 to {metric}.p99.9, or {metric}.mean",),
        )
    if match[1] is not None and not 1 <= float(match[1]) <= 99.9:
        raise UserError(
            "bad-percentile",
            f"{stat!r} is not a percentile",
            None,
            (),
            (f"write {metric}.p1 to {metric}.p99.9",),
        )
    return metric, stat


def parse_slo(text: str) -> Slo:
    """`itl=50ms` or `ttft.p95=800ms` -> Slo.

    >>> str(parse_slo("ttft.p95=800ms"))
    'ttft.p95=800ms'
    """
    key, equals, limit = text.partition("=")
    if not equals:
        raise UserError(
            "bad-slo",
            f"{text!r} is not an SLO",
            None,
            (),
            ("write metric=limit, e.g. itl=50ms or ttft.p95=800ms",),
        )
    metric, stat = parse_slo_key(key)
    return Slo(metric, stat, parse_limit(limit))


def parse_limit(limit: object) -> float:
    """The limit of an SLO in seconds; zero and bare numbers are refused."""
    try:
        return TIME.parse(limit.strip() if isinstance(limit, str) else limit)
    except QuantityError as e:
        raise UserError("bad-slo", str(e), None, (), (e.advice,) if e.advice else ()) from e
