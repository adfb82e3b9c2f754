"""What the solver chooses among. `ask.Ask` in, `candidate.Candidate` out."""

from planner.candidates.enumerate import candidates
from planner.candidates.figures import handover_of, predict
from planner.candidates.replica import pool_spec

__all__ = ["candidates", "handover_of", "pool_spec", "predict"]
