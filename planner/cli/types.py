"""Types of options that click's own leave open."""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """A number within a range; `nan` compares with nothing and `inf` is above any use, so both are refused by name."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def positive(least: float = 0.0) -> Finite:
    """Above zero, or from `least` on."""
    return Finite(min=least, min_open=least == 0.0)
