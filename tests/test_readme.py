"""README tells the truth: every command in it runs, in a copy of the repository's user-visible files."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
# Only `plan` commands: `make` targets have tests of their own kind (CI itself) and pip is the packaging test's.
COMMANDS = [line[2:] for block in BLOCKS for line in block.splitlines() if line.startswith("$ plan ")]


def run(words: list[str]) -> tuple[int, str]:
    """One command in this process, as the console script would run it."""
    from planner.cli import main

    runner = CliRunner()

    import click

    @click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
    @click.argument("argv", nargs=-1, type=click.UNPROCESSED)
    def shell(argv: tuple[str, ...]) -> None:
        main(list(argv))

    result = runner.invoke(shell, ["--", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 10


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader of the README has: fleets and examples, in a folder that may be written to."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("fleets", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def test_commands_run_in_order(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which a reader would type them: later ones use what earlier ones wrote."""
    monkeypatch.chdir(workplace)
    for command in COMMANDS:
        words, comment = shlex.split(command, comments=True)[1:], command.partition("  # exit ")[2]
        code, output = run(words)
        expected = int(comment.split()[0]) if comment else 0
        assert code == expected, f"$ {command}\n{output}"
        assert "Traceback" not in output
