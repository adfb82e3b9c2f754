"""Fitting the efficiency constants to measurements: reproducible, few constants, scored by leaving things out."""
