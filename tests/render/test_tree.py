"""Writing trees: old or new and never half, ours or theirs, and what drifted."""

from __future__ import annotations

import errno
import functools
import os
from pathlib import Path

import pytest

from planner.errors import UserError
from planner.plan.document import Plan
from planner.render import RenderedFile, check_tree, format_drift, render, write_tree
from planner.render.lock import LOCK, read_lock
from planner.render.tree import STAGING, Disk
from tests.render.plans import plan, pool, service


def old_plan() -> Plan:
    return plan()


@functools.cache
def old_files() -> tuple[RenderedFile, ...]:
    return render(old_plan())


@functools.cache
def new_files() -> tuple[RenderedFile, ...]:
    return render(new_plan())


def new_plan() -> Plan:
    """Another cap, another service, and Compose instead of Kubernetes: files change, come and go."""
    return plan(service(target="compose", pools=(pool(seqs=64),)), service("code", pools=(pool("code"),)))


def texts(out: Path) -> dict[str, str]:
    return {p.relative_to(out).as_posix(): p.read_text() for p in sorted(out.rglob("*")) if p.is_file()}


def by_path(files: tuple[RenderedFile, ...]) -> dict[str, str]:
    return {f.path.as_posix(): f.text for f in files}


class Killed(BaseException):
    """The process ends here; nothing below may catch it."""


class Mortal(Disk):
    """Counts operations; at the `limit`th the process dies: before it, or in the middle of a write."""

    def __init__(self, limit: int, *, midway: bool = False, error: OSError | None = None) -> None:
        self.count, self.limit, self.midway, self.error = 0, limit, midway, error

    def _step(self) -> bool:
        self.count += 1
        if self.count < self.limit:
            return False
        if self.error is not None:
            raise self.error
        return True

    def mkdir(self, path: Path) -> None:
        if self._step():
            raise Killed
        super().mkdir(path)

    def write(self, path: Path, data: bytes, *, executable: bool) -> None:
        if self._step():
            if self.midway:
                path.write_bytes(data[: len(data) // 2])
            raise Killed
        path.write_bytes(data)  # without fsync: the test machine keeps its power

    def replace(self, source: Path, target: Path) -> None:
        if self._step():
            raise Killed
        super().replace(source, target)

    def unlink(self, path: Path) -> None:
        if self._step():
            raise Killed
        super().unlink(path)

    def rmdir(self, path: Path) -> None:
        if self._step():
            raise Killed
        super().rmdir(path)


def operations(tmp_path: Path) -> int:
    probe = Mortal(10**9)
    write_tree(old_files(), tmp_path / "probe", disk=probe)
    before = probe.count
    write_tree(new_files(), tmp_path / "probe", disk=probe)
    return probe.count - before


def test_written_tree_is_what_was_rendered(tmp_path: Path) -> None:
    files = old_files()
    write_tree(files, tmp_path / "a" / "b")
    found = texts(tmp_path / "a" / "b")
    assert {k: v for k, v in found.items() if k != LOCK} == by_path(files)
    assert check_tree(tmp_path / "a" / "b") == ()
    assert (tmp_path / "a" / "b" / "chat" / "vllm" / "chat.sh").stat().st_mode & 0o100


def test_lock_is_a_sha256sum_file(tmp_path: Path) -> None:
    import hashlib

    write_tree(old_files(), tmp_path)
    lines = [line for line in (tmp_path / LOCK).read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == len(texts(tmp_path)) - 1
    for line in lines:
        digest, name = line.split("  ", 1)
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest


def test_again_changes_nothing(tmp_path: Path) -> None:
    write_tree(old_files(), tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    write_tree(old_files(), tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p != tmp_path / STAGING} == before


def test_what_is_no_longer_rendered_goes_and_users_files_stay(tmp_path: Path) -> None:
    write_tree(old_files(), tmp_path)
    overlay = tmp_path / "overlays" / "prod" / "kustomization.yaml"
    overlay.parent.mkdir(parents=True)
    overlay.write_text("resources: [../../chat/kubernetes]\n")
    write_tree(new_files(), tmp_path)
    assert not (tmp_path / "chat" / "kubernetes").exists()
    assert overlay.is_file()
    assert check_tree(tmp_path) == ()


def dies(files: tuple[RenderedFile, ...], out: Path, disk: Mortal) -> None:
    """Write in a process of its own, which ends at the disk's limit as `kill -9` would end it."""
    pid = os.fork()
    if pid == 0:
        try:
            write_tree(files, out, disk=disk)
        except Killed:
            os._exit(9)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("midway", [False, True])
def test_killed_at_every_operation(tmp_path: Path, midway: bool) -> None:
    """At every operation: each file is old or new (or not there yet), and the next run finishes the job."""
    old, new = by_path(old_files()), by_path(new_files())
    total = operations(tmp_path)
    assert total > 40
    for n in range(1, total + 1):
        out = tmp_path / f"killed-{n}"
        write_tree(old_files(), out, disk=Mortal(10**9))
        dies(new_files(), out, Mortal(n, midway=midway))
        for path, text in texts(out).items():
            if path != LOCK and not path.startswith(STAGING):
                assert text in (old.get(path), new.get(path)), f"operation {n} left {path} neither old nor new"
        for path in old.keys() & new.keys():
            assert (out / path).is_file(), f"operation {n} lost {path}"
        write_tree(new_files(), out, disk=Mortal(10**9))
        assert {k: v for k, v in texts(out).items() if k != LOCK} == new
    assert check_tree(tmp_path / "killed-1") == ()


def test_killed_on_a_fresh_folder(tmp_path: Path) -> None:
    probe = Mortal(10**9)
    write_tree(old_files(), tmp_path / "probe", disk=probe)
    want = by_path(old_files())
    for n in range(1, probe.count + 1):
        out = tmp_path / f"fresh-{n}"
        with pytest.raises(Killed):
            write_tree(old_files(), out, disk=Mortal(n, midway=True))
        write_tree(old_files(), out, disk=Mortal(10**9))
        assert {k: v for k, v in texts(out).items() if k != LOCK} == want


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_full_or_read_only_disk_leaves_the_old_tree(tmp_path: Path, code: int) -> None:
    """Everything is written to the staging folder first, so a disk that fills up changes nothing."""
    out = tmp_path / "out"
    write_tree(old_files(), out)
    before = texts(out)
    writes = 2 + len([p for p, t in by_path(new_files()).items() if before.get(p) != t])
    for n in range(1, writes + 1):
        with pytest.raises(UserError) as e:
            write_tree(new_files(), out, disk=Mortal(n, error=OSError(code, "no room")))
        assert e.value.code == "cannot-write"
        assert texts(out) == before
        assert not (out / STAGING).exists()
        assert not (out / "code").exists()


def test_a_fresh_folder_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        write_tree(old_files(), tmp_path / "new", disk=Mortal(1, error=OSError(errno.EROFS, "read-only")))
    assert list(tmp_path.iterdir()) == []


def test_output_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UserError) as e:
        write_tree(old_files(), tmp_path / "out")
    assert e.value.code == "not-a-folder"
    with pytest.raises(UserError):
        write_tree(old_files(), tmp_path / "out" / "deeper")
    assert (tmp_path / "out").read_text() == "mine"


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    out = tmp_path / "out"
    out.mkdir()
    (out / "chat").symlink_to(elsewhere)
    with pytest.raises(UserError, match="is a link"):
        write_tree(old_files(), out)
    assert list(elsewhere.iterdir()) == []


def test_hand_edits_stop_a_run_and_are_named(tmp_path: Path) -> None:
    write_tree(old_files(), tmp_path)
    edited = tmp_path / "chat" / "kubernetes" / "deployment.yaml"
    edited.write_text(edited.read_text().replace("replicas: 3", "replicas: 4"))
    before = texts(tmp_path)
    with pytest.raises(UserError) as e:
        write_tree(new_files(), tmp_path)
    assert e.value.code == "hand-edited"
    assert "chat/kubernetes/deployment.yaml" in str(e.value)
    assert "--force" in str(e.value)
    assert texts(tmp_path) == before
    write_tree(new_files(), tmp_path, force=True)
    # what is no longer rendered and was edited is theirs: it stays
    assert edited.is_file()
    assert [d.path for d in check_tree(tmp_path)] == ["chat/kubernetes/deployment.yaml"]


def test_a_file_that_was_there_before_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "SUMMARY.md").write_text("my own summary\n")
    with pytest.raises(UserError, match="changed since"):
        write_tree(old_files(), tmp_path)
    assert texts(tmp_path) == {"SUMMARY.md": "my own summary\n"}


def test_check_names_every_kind_of_drift(tmp_path: Path) -> None:
    write_tree(old_files(), tmp_path)
    k8s = tmp_path / "chat" / "kubernetes"
    (k8s / "service.yaml").write_text((k8s / "service.yaml").read_text().replace("port: 8000", "port: 80"))
    (k8s / "pdb.yaml").unlink()
    (k8s / "mine.yaml").write_text("a: 1\n")
    drifts = check_tree(tmp_path)
    assert [(d.path, d.kind) for d in drifts] == [
        ("chat/kubernetes/mine.yaml", "extra"),
        ("chat/kubernetes/pdb.yaml", "missing"),
        ("chat/kubernetes/service.yaml", "hand-edited"),
    ]
    diff = format_drift(drifts)
    assert "hand-edited  chat/kubernetes/service.yaml\n" in diff
    assert "-    - name: http\n" not in diff
    assert "-      port: 8000\n+      port: 80\n" in diff
    assert "--- planned/chat/kubernetes/pdb.yaml\n+++ /dev/null\n" in diff
    assert "--- /dev/null\n+++ chat/kubernetes/mine.yaml\n" in diff


def test_check_tells_drift_of_the_planner_from_hand_edits(tmp_path: Path) -> None:
    """A tree from an older planner: as locked, but the plan renders differently now."""
    files = [RenderedFile(f.path, f.text + "# older\n" if f.path.name == "pdb.yaml" else f.text) for f in old_files()]
    write_tree(files, tmp_path)
    assert [(d.path, d.kind) for d in check_tree(tmp_path)] == [("chat/kubernetes/pdb.yaml", "drifted")]


def test_an_edited_plan_is_a_hand_edit_and_its_files_drift(tmp_path: Path) -> None:
    write_tree(old_files(), tmp_path)
    text = (tmp_path / "plan.yaml").read_text()
    (tmp_path / "plan.yaml").write_text(text.replace("max_num_seqs: 96", "max_num_seqs: 128"))
    kinds = {d.path: d.kind for d in check_tree(tmp_path)}
    assert kinds["plan.yaml"] == "hand-edited"
    assert kinds["chat/kubernetes/deployment.yaml"] == "drifted"


def test_check_without_a_plan_or_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        check_tree(tmp_path)
    with pytest.raises(UserError, match="not a folder"):
        check_tree(tmp_path / "nothing")


def test_a_missing_or_broken_lock(tmp_path: Path) -> None:
    write_tree(old_files(), tmp_path)
    (tmp_path / LOCK).unlink()
    assert [(d.path, d.kind) for d in check_tree(tmp_path)] == [(LOCK, "missing")]
    (tmp_path / LOCK).write_text("nonsense\n")
    with pytest.raises(UserError, match="no sum and path"):
        read_lock(tmp_path)
    (tmp_path / LOCK).write_text("0" * 64 + "  ../outside\n")
    with pytest.raises(UserError):
        write_tree(old_files(), tmp_path)
