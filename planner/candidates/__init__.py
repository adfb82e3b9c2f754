"""What the solver chooses among. `ask.Ask` in, `candidate.Candidate` out."""

from planner.candidates.enumerate import candidates
from planner.candidates.figures import handover_of, predict
from planner.candidates.frontier import Frontier, FrontierPoint, frontier
from planner.candidates.replica import pool_spec

__all__ = ["Frontier", "FrontierPoint", "candidates", "frontier", "handover_of", "pool_spec", "predict"]
