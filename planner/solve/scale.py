"""Integers for CP-SAT: capacity rounds down, demand and cost round up, so that rounding never flatters a plan.

Rates are counted in millionths of a request per second (`_urps`): a long-context service carries a fifth of a
request per second on a replica, and thousandths would round a quarter of a percent of it away.
"""

from __future__ import annotations

import math

PER_RPS = 1_000_000
PER_DOLLAR = 1_000_000
# A float such as 0.29 x 1e6 may land a hair beside the integer it means; this much (1e-6 urps) is not a difference.
_HAIR = 1e-6
LARGEST = 10**15


def capacity_urps(rate_rps: float) -> int:
    """Rounded down.

    >>> capacity_urps(2.5), capacity_urps(0.0000009)
    (2500000, 0)
    """
    return min(LARGEST, math.floor(rate_rps * PER_RPS + _HAIR))


def demand_urps(rate_rps: float) -> int:
    """Rounded up; never nothing, since traffic was asked for."""
    return max(1, min(LARGEST, math.ceil(rate_rps * PER_RPS - _HAIR)))


def each_rps(total_rps: float, replicas: int) -> float:
    """What one of so many replicas carries, rounded up to the next integer: together they carry the total.

    >>> each_rps(20.0, 3)
    6.666667
    """
    return math.ceil(demand_urps(total_rps) / replicas) / PER_RPS


def cost_udollars(dollars_per_hour: float) -> int:
    """Rounded to the nearest millionth of a dollar per hour: prices are decimal, and a cent is 10,000 of these."""
    return round(dollars_per_hour * PER_DOLLAR)
