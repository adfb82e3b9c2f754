"""examples/: documentation and goldens at once. Each case runs from its command.txt and must give its files again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import plan

ROOT = Path(__file__).resolve().parent.parent
CASES = sorted(p.parent for p in (ROOT / "examples").glob("*/command.txt"))


def tree(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_bytes().decode() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.name)
def test_example(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden_tree: Callable[[dict[str, str], Path], None]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    words = (case / "command.txt").read_text().split()
    ran = plan(*words, "-o", str(tmp_path / "deploy"))
    if (case / "deploy").exists() or ran.code == 0:
        assert ran.code == 0, ran.err
        golden_tree(tree(tmp_path / "deploy"), case / "deploy")
        golden_tree({"console.txt": ran.out}, case / "console")
    else:
        assert ran.code == 3, ran.err
        assert not (tmp_path / "deploy").exists()
        golden_tree({"error.txt": ran.err}, case / "expected")


def test_default_question_is_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bare command asks what examples/chat-8b writes out; only the note on what was assumed differs."""
    monkeypatch.chdir(ROOT)
    bare = plan("--fleet", "fleets/h100.yaml", "--slo", "itl=50ms", "--format", "json")
    written = plan("--fleet", "fleets/h100.yaml", "-f", "examples/chat-8b/intent.yaml", "--format", "json")
    assert bare.code == written.code == 0

    def answer(text: str) -> str:
        import json

        data = json.loads(text)
        data.pop("defaults", None)
        return json.dumps(data)

    assert answer(bare.out) == answer(written.out)
