"""What becomes one file: its path, its template and the context the template places."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any


@dataclass(frozen=True, slots=True)
class Artefact:
    """One file to be."""

    path: PurePosixPath
    template: str
    context: dict[str, Any]
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Meta:
    """metadata of a Kubernetes object."""

    name: str
    namespace: str | None
    labels: dict[str, str]
    annotations: dict[str, str]
