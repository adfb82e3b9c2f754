"""Running the command line inside a test, as the console script would."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass

from planner.cli import main


@dataclass(frozen=True)
class Ran:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


def plan(*words: str) -> Ran:
    """`plan WORDS...` in this process."""
    return run(words)


def run(words: Sequence[str]) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(words))
        except SystemExit as e:
            code = int(e.code or 0)
    return Ran(code, out.getvalue(), err.getvalue())
