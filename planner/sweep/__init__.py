"""Scenario grids: the same question many times with something varied, on local processes or a Dask cluster."""

from planner.sweep.grid import Point, points
from planner.sweep.run import run_sweep

__all__ = ["Point", "points", "run_sweep"]
