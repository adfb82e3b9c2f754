"""Measured rows in, predictions out: one at a time with bands and reasons, or a CSV in bulk."""

from planner.estimate.api import CasesDone, Estimate, Figure, estimate_cases, estimate_one, estimate_row

__all__ = ["CasesDone", "Estimate", "Figure", "estimate_cases", "estimate_one", "estimate_row"]
