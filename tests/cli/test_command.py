"""The command line itself: help, what it imports, formats, the same bytes every time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli.main import COMMANDS
from tests.command import plan

ROOT = Path(__file__).resolve().parent.parent.parent
MAIN = ("--fleet", "fleets/h100.yaml", "--slo", "itl=50ms")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("command", [None, *sorted(COMMANDS)])
def test_help(command: str | None) -> None:
    ran = plan(*([command] if command else []), "--help")
    assert ran.code == 0
    assert "Usage: plan" in ran.out
    assert all(len(line) <= 100 for line in ran.out.splitlines())


def fresh(*words: str, env: dict[str, str] | None = None, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "planner", *words],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def loaded_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running the command."""
    script = (
        f"import sys\ntry:\n    {code}\nexcept SystemExit as e:\n    assert not e.code, e.code\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_help_render_and_check_load_no_solver(tmp_path: Path) -> None:
    assert plan(*MAIN, "--no-verify", "-o", str(tmp_path / "out")).code == 0
    for words in (["--help"], ["render", str(tmp_path / "out")], ["check", str(tmp_path / "out")]):
        loaded = loaded_after(f"from planner.cli import main; main({words!r})")
        assert not loaded & {"ortools", "numpy", "scipy", "pandas"}, words


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_same_bytes_whatever_the_hash_seed_and_folder(tmp_path: Path) -> None:
    fleet = str(ROOT / "fleets" / "h100.yaml")
    trees, texts = [], []
    for seed, folder in (("0", tmp_path / "a"), ("4242", tmp_path / "b" / "c")):
        folder.mkdir(parents=True)
        done = fresh("--fleet", fleet, "--slo", "itl=50ms", "-o", "out", env={"PYTHONHASHSEED": seed}, cwd=folder)
        assert done.returncode == 0, done.stderr
        trees.append(tree(folder / "out"))
        texts.append(done.stdout)
    assert trees[0] == trees[1]
    assert texts[0] == texts[1]
    for name, data in trees[0].items():
        assert str(tmp_path).encode() not in data, name
        assert str(ROOT).encode() not in data, name


def test_formats_agree() -> None:
    from planner.plan.text import dumps, loads

    as_json = plan(*MAIN, "--no-verify", "--format", "json")
    as_yaml = plan(*MAIN, "--no-verify", "--format", "yaml")
    read = loads(as_yaml.out)
    assert json.loads(as_json.out) == read.model_dump(mode="json", exclude_none=True)
    assert dumps(read) == as_yaml.out


@pytest.mark.parametrize("width", [80, 120])
def test_console_fits(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = plan(*MAIN, "--no-verify")
    assert all(len(line) <= width for line in ran.out.splitlines()), ran.out
    assert ran.out.startswith("DEFAULT model meta-llama/Llama-3.1-8B-Instruct")


def test_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m planner catalog gpus | head -1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_module_is_the_command() -> None:
    assert fresh("--version").stdout.strip().count(".") == 2
