"""Failures we expect. Everything a user can cause is a `UserError`; anything else is a bug and may crash loudly."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum


class Exit(IntEnum):
    """Process exit codes (DESIGN.md section 7)."""

    OK = 0
    DIFFERS = 1
    INPUT = 2
    NO_PLAN = 3
    DRIFT = 4
    TIME_LIMIT = 5
    BUG = 70


@dataclass(frozen=True, slots=True)
class Where:
    """A place in the user's own words: a file (or "command line"), 1-based line and column, the line itself."""

    source: str
    line: int | None = None
    column: int | None = None
    text: str | None = None
    width: int = 1

    def __str__(self) -> str:
        if self.line is None or self.source == "command line":
            return self.source
        return f"{self.source}:{self.line}:{self.column or 1}"


@dataclass(eq=False)
class UserError(ValueError):
    """An expected failure: what is wrong, where, why (notes) and what to do (helps).

    `code` is the short name users can search for (`error[slo-itl]`). Messages are lower case
    without a full stop; only `helps` say what to do.
    """

    code: str
    message: str
    where: Where | None = None
    notes: Sequence[str] = field(default_factory=tuple)
    helps: Sequence[str] = field(default_factory=tuple)
    exit_code: Exit = Exit.INPUT
    about: tuple[str, ...] = ()
    """What of the question it is about (rule, service, detail), for whoever knows where that stands."""

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def at(self, where: Where) -> UserError:
        """The same error with a place, unless it has one already."""
        if self.where is not None:
            return self
        return UserError(self.code, self.message, where, self.notes, self.helps, self.exit_code, self.about)

    def noted(self, note: str) -> UserError:
        """The same error with one more reason."""
        return UserError(
            self.code, self.message, self.where, (*self.notes, note), self.helps, self.exit_code, self.about
        )

    def __str__(self) -> str:
        return self.render()

    def render(self) -> str:
        """The error as rustc would lay it out, without colour."""
        lines = [f"error[{self.code}]: {self.message}"]
        w = self.where
        bar = "  "
        if w is not None:
            lines.append(f" --> {w}")
            if w.line is not None and w.text is not None:
                gutter = " " if w.source == "command line" else str(w.line)
                bar = " " * len(gutter) + " "
                # The pointer keeps the line's own tabs so that it stands under the right character.
                column = max((w.column or 1) - 1, 0)
                lead = "".join("\t" if c == "\t" else " " for c in w.text[:column])
                lines += [
                    f"{bar}|",
                    f"{gutter} | {w.text}",
                    f"{bar}| {lead}{'^' * max(1, w.width)}",
                    f"{bar}|",
                ]
        lines += [f"{bar}= note: {note}" for note in self.notes]
        lines += [f"{bar}= help: {h}" for h in self.helps]
        return "\n".join(lines)


def not_supported(what: str, *, where: Where | None = None, helps: Sequence[str] = ()) -> UserError:
    """The planner knows what was asked and does not do it yet: said by name, never approximated."""
    return UserError("not-supported", f"{what} is not supported yet", where, (), helps)


def near_misses(word: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Known names that look like `word`, best first, for "did you mean".

    >>> near_misses("h100-smx", ["h100-sxm", "h200-sxm", "l4"])
    ['h100-sxm', 'h200-sxm']
    """
    names = sorted(set(known))
    lowered = {n.lower(): n for n in names}
    hits = difflib.get_close_matches(word.lower(), list(lowered), n=most, cutoff=0.6)
    if not hits and word:
        hits = [n for n in lowered if word.lower() in n][:most]
    return [lowered[h] for h in hits]


def did_you_mean(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Help lines for an unknown name: near misses, or the whole list when it is short."""
    names = sorted(set(known))
    close = near_misses(word, names)
    if close:
        return (f"write {' or '.join(close)}",)
    if names and len(names) <= 12:
        return (f"known: {', '.join(names)}",)
    return ()
