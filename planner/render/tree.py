"""Writing a tree so that every file is old or new and never half of one, and telling what drifted from its plan.

All new files are written and flushed in a staging folder first: a full disk or a read-only folder stops there, with
nothing changed. Then files.lock learns the new sums beside the old ones, files are renamed into place one by one, what
is no longer rendered goes, and the lock forgets the old sums. A run killed anywhere is finished by the next one.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from planner.documents import shown_path
from planner.errors import UserError, Where
from planner.plan.text import load
from planner.render.files import RenderedFile
from planner.render.lock import LOCK, lock_text, read_lock, sha256
from planner.render.render import render

STAGING = ".plan-staging"


class Disk:
    """The five ways in which a tree changes; a test replaces it to kill or starve a run at each of them."""

    def mkdir(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def write(self, path: Path, data: bytes, *, executable: bool) -> None:
        """A new file, flushed to the disk."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o777 if executable else 0o666)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def rmdir(self, path: Path) -> None:
        path.rmdir()


def write_tree(files: Iterable[RenderedFile], out: Path, *, force: bool = False, disk: Disk | None = None) -> None:
    """Make `out` hold exactly these files of ours. Hand-edited files stop it, unless forced."""
    disk = disk or Disk()
    new = {f.path.as_posix(): f for f in files}
    _check_place(out, new)
    lock = read_lock(out)
    edited, changed, stale = _compare(out, new, lock)
    if edited and not force:
        raise UserError(
            "hand-edited",
            f"{len(edited)} file{'s' if len(edited) > 1 else ''} in {shown_path(out)} changed since they were rendered",
            Where(shown_path(out)),
            tuple(edited[:20]) + ((f"and {len(edited) - 20} more",) if len(edited) > 20 else ()),
            ("keep the edits in a kustomize overlay or a template folder, or write over them with --force",),
        )
    with _disk_errors(out):
        _apply(out, new, changed, stale, lock, disk)


def _check_place(out: Path, new: dict[str, RenderedFile]) -> None:
    """Nothing may stand where a folder must be, and no link may lead elsewhere."""
    shown = shown_path(out)
    for parent in (out, *out.parents):
        if parent.exists():
            if not parent.is_dir():
                raise UserError("not-a-folder", f"output {shown_path(parent)} is a file", Where(shown))
            break
    for path in sorted(new):
        target = out / path
        if target.is_dir():
            raise UserError("not-a-file", f"{shown}/{path} is a folder", Where(shown), (), ("move it away",))
        for parent in target.parents:
            if parent == out:
                break
            if parent.is_symlink() or (parent.exists() and not parent.is_dir()):
                what = "a link" if parent.is_symlink() else "a file"
                raise UserError(
                    "not-a-folder", f"{shown_path(parent)} is {what}, not a folder", Where(shown), (), ("move it away",)
                )


def _compare(
    out: Path, new: dict[str, RenderedFile], lock: dict[str, set[str]]
) -> tuple[list[str], list[str], list[str]]:
    """(hand-edited, to be written, ours and no longer rendered)."""
    edited: list[str] = []
    changed: list[str] = []
    stale: list[str] = []
    for path, file in sorted(new.items()):
        found = _sum(out / path)
        if found == sha256(file.text.encode()):
            continue
        changed.append(path)
        if found is not None and found not in lock.get(path, set()):
            edited.append(path)
    for path in sorted(set(lock) - set(new)):
        found = _sum(out / path)
        if found is None:
            continue
        (stale if found in lock[path] else edited).append(path)
    return sorted(edited), changed, stale


def _sum(path: Path) -> str | None:
    try:
        return sha256(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as e:
        raise UserError("cannot-read", f"{shown_path(path)} cannot be read: {e.strerror}") from e


@contextlib.contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise UserError(
            "cannot-write",
            f"{shown_path(out)} cannot be written: {e.strerror}",
            Where(shown_path(out)),
            ("every file there is as it was before, or complete",),
            ("free some space, or choose another folder",),
        ) from e


def _apply(  # noqa: PLR0917 - what there is, what is wanted, and the disk
    out: Path,
    new: dict[str, RenderedFile],
    changed: list[str],
    stale: list[str],
    lock: dict[str, set[str]],
    disk: Disk,
) -> None:
    sums = {path: {sha256(file.text.encode())} for path, file in new.items()}
    final = lock_text(sums)
    if not changed and not stale and _sum(out / LOCK) == sha256(final.encode()):
        _clear(out / STAGING)
        return
    made = _folders(out, [*changed, f"{STAGING}/x"])
    created: list[Path] = []
    try:
        for folder in made:
            disk.mkdir(folder)
            created.append(folder)
        staging = out / STAGING
        both = {p: sums.get(p, set()) | lock.get(p, set()) for p in {*sums, *lock}}
        disk.write(staging / "lock.pending", lock_text(both).encode(), executable=False)
        disk.write(staging / "lock.final", final.encode(), executable=False)
        for i, path in enumerate(changed):
            disk.write(staging / str(i), new[path].text.encode(), executable=new[path].executable)
    except OSError:
        _clear(out / STAGING)
        for folder in reversed(created):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    disk.replace(staging / "lock.pending", out / LOCK)
    # plan.yaml goes last: until then the folder still says which plan most of its files are from
    order = sorted(range(len(changed)), key=lambda i: (changed[i] == "plan.yaml", i))
    for i in order:
        disk.replace(staging / str(i), out / changed[i])
    for path in stale:
        disk.unlink(out / path)
    disk.replace(staging / "lock.final", out / LOCK)
    disk.rmdir(staging)
    _remove_empty(out, stale, disk)


def _folders(out: Path, paths: Sequence[str]) -> list[Path]:
    """Folders that do not exist yet, outermost first; the staging folder is emptied if a killed run left it."""
    _clear(out / STAGING)
    wanted: set[Path] = set()
    for path in paths:
        wanted.update((out / path).parents)
    return sorted((p for p in wanted if not p.exists()), key=lambda p: (len(p.parts), p))


def _clear(staging: Path) -> None:
    if staging.is_symlink():
        staging.unlink()
    shutil.rmtree(staging, ignore_errors=True)


def _remove_empty(out: Path, removed: Iterable[str], disk: Disk) -> None:
    for folder in sorted({p for r in removed for p in (out / r).parents}, key=lambda p: -len(p.parts)):
        if folder != out and folder.is_relative_to(out) and folder.is_dir() and not any(folder.iterdir()):
            disk.rmdir(folder)


DriftKind = Literal["drifted", "missing", "extra", "hand-edited"]


@dataclass(frozen=True, slots=True)
class Drift:
    """One file that is not what its plan says."""

    path: str
    kind: DriftKind
    expected: str | None
    found: str | None


def check_tree(out: Path, *, templates_dir: Path | None = None) -> tuple[Drift, ...]:
    """Compare a folder with what its own plan.yaml renders; nothing is solved and nothing written.

    drifted: as rendered back then, but the plan (or this planner) renders it differently now. hand-edited: neither.
    extra: a file in a folder of ours that the plan does not render. Files of yours beside our folders are left alone.
    """
    if not out.is_dir():
        raise UserError("not-a-folder", f"{shown_path(out)} is not a folder", Where(shown_path(out)))
    plan = load(out)
    new = {f.path.as_posix(): f.text for f in render(plan, templates_dir=templates_dir)}
    lock = read_lock(out)
    drifts: list[Drift] = []
    for path, expected in sorted(new.items()):
        found = _text(out / path)
        if found is None:
            drifts.append(Drift(path, "missing", expected, None))
        elif found != expected:
            ours = sha256((out / path).read_bytes()) in lock.get(path, set())
            drifts.append(Drift(path, "drifted" if ours else "hand-edited", expected, found))
        elif path == "plan.yaml" and lock and sha256(found.encode()) not in lock.get(path, set()):
            # a canonical plan with other values: its text agrees with itself, only the lock knows
            drifts.append(Drift(path, "hand-edited", expected, found))
    if not (out / LOCK).is_file():
        drifts.append(Drift(LOCK, "missing", None, None))
    tops = {p.split("/")[0] for p in (*new, *lock) if "/" in p}
    there = {
        p.relative_to(out).as_posix()
        for top in tops
        for p in sorted((out / top).rglob("*"))
        if p.is_file() or p.is_symlink()
    }
    there |= {p for p in lock if (out / p).is_file()}
    for path in sorted(there - set(new)):
        ours = path in lock and _sum(out / path) in lock[path]
        drifts.append(Drift(path, "extra" if ours or path not in lock else "hand-edited", None, _text(out / path)))
    return tuple(sorted(drifts, key=lambda d: d.path))


def beside(out: Path, *, templates_dir: Path | None = None) -> tuple[str, ...]:
    """What stands at the top of a folder beside the plan's files and folders: nobody's business, but worth a word."""
    new = {f.path.as_posix() for f in render(load(out), templates_dir=templates_dir)}
    ours = {p.split("/")[0] for p in (*new, *read_lock(out))} | {LOCK, STAGING}
    return tuple(sorted(p.name + ("/" if p.is_dir() else "") for p in out.iterdir() if p.name not in ours))


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as e:
        raise UserError("cannot-read", f"{shown_path(path)} cannot be read: {e.strerror}") from e


def format_drift(drifts: Sequence[Drift]) -> str:
    """A line per file, then a unified diff from what the plan renders (-) to what is there (+)."""
    width = max((len(d.kind) for d in drifts), default=0)
    parts = [f"{d.kind:<{width}}  {d.path}\n" for d in drifts]
    for d in drifts:
        before, after = d.expected or "", d.found or ""
        names = (
            f"planned/{d.path}" if d.expected is not None else "/dev/null",
            d.path if d.found is not None else "/dev/null",
        )
        diff = list(difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), *names))
        if diff:
            parts.append("\n")
            parts += [line if line.endswith("\n") else line + "\n\\ no newline at the end\n" for line in diff]
    return "".join(parts)
