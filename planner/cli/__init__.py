"""Words in, words out: the only place that prints or exits. `main` is the console script `plan`."""

from __future__ import annotations

from planner.cli.main import main

__all__ = ["main"]
