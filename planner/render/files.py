"""A rendered file, and the errors that rendering shares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from planner.errors import UserError


@dataclass(frozen=True, slots=True, order=True)
class RenderedFile:
    """One file of the tree, by its path inside the output folder."""

    path: PurePosixPath
    text: str
    executable: bool = False


def refused(code: str, message: str, *helps: str, notes: tuple[str, ...] = ()) -> UserError:
    """A plan or platform that cannot be put into files as it stands."""
    return UserError(code, message, None, notes, helps)
