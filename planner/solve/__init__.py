"""Choosing: the only room that knows ortools. `solver.solve` is the way in."""

from planner.solve.question import BaselinePool, Cut, Lift
from planner.solve.solver import solve

__all__ = ["BaselinePool", "Cut", "Lift", "solve"]
