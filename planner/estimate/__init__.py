"""Measured rows in, predictions out: one at a time with the reasons, or a CSV in bulk."""
