"""Choosing: the only room that knows ortools. See `solver.solve`."""
