"""Plan -> files: engine launches, manifests, load tests; written atomically and checked for drift."""

from __future__ import annotations

from planner.render.files import RenderedFile
from planner.render.render import render
from planner.render.tree import Drift, check_tree, format_drift, write_tree

__all__ = ["Drift", "RenderedFile", "check_tree", "format_drift", "render", "write_tree"]
