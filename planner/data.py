"""Where the files that ship with the planner are: templates, fleets and catalogue.

In an editable checkout `templates/` and `fleets/` stand at the top level; in a wheel they are package data.
One function finds both, so nothing else needs to know.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """The folder `name` (`templates`, `fleets`) as installed or as checked out."""
    inside = _PACKAGE / "_data" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def catalog_data(name: str) -> Path:
    """A file or folder of the catalogue's data."""
    return _PACKAGE / "catalog" / name
