"""files.lock: path and sha256 of everything rendered, in the format of `sha256sum -c`.

While a tree is being replaced it holds two sums for a file, the old and the new one, so that a run that was killed at
any moment leaves files that the next run still knows as its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from planner.errors import UserError

LOCK = "files.lock"
HEADER = "# Written by llm-deployment-planner: what it rendered here. Check by hand with: sha256sum -c files.lock\n"
_LINE = re.compile(r"^([0-9a-f]{64})  (.+)$")


def sha256(data: bytes) -> str:
    """Sum of a file's bytes."""
    return hashlib.sha256(data).hexdigest()


def read_lock(out: Path) -> dict[str, set[str]]:
    """Path -> the sums that are ours; empty where there is no lock."""
    path = out / LOCK
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as e:
        raise UserError("cannot-read", f"{LOCK} cannot be read: {e}", None, (), ("restore it, or remove it",)) from e
    sums: dict[str, set[str]] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None or match[2].startswith("/") or ".." in match[2].split("/"):
            raise UserError("bad-lock", f"{LOCK} has a line that is no sum and path: {line[:60]!r}")
        sums.setdefault(match[2], set()).add(match[1])
    return sums


def lock_text(sums: Mapping[str, set[str]]) -> str:
    """The lock as text, sorted by path."""
    return HEADER + "".join(f"{s}  {path}\n" for path in sorted(sums) for s in sorted(sums[path]))
