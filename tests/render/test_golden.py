"""Golden trees: what every case of the matrix renders, byte for byte; `pytest --update-golden` rewrites them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.render import render
from tests.render.cases import cases

CASES = cases()
FOLDER = Path(__file__).resolve().parent.parent / "cases" / "render"


def settled(text: str) -> str:
    """Headers without version and digest: a field added to the plan is not news for every file."""
    return re.sub(
        r"llm-deployment-planner [\d.]+ from plan sha256:[0-9a-f]+", "llm-deployment-planner X from plan Y", text
    )


@pytest.mark.parametrize("name", sorted(CASES))
def test_tree_is_golden(name: str, golden_tree: Callable[[dict[str, str], Path], None]) -> None:
    case = CASES[name]
    files = {f.path.as_posix(): settled(f.text) for f in render(case.plan) if f.path.name != "plan.yaml"}
    kept = {p: t for p, t in files.items() if any(p.startswith(k) for k in case.keep)}
    assert kept, "the case keeps nothing"
    golden_tree(kept, FOLDER / name)


def test_matrix_is_wide_enough() -> None:
    engines = {s.engine for c in CASES.values() for s in c.plan.services}
    targets = {s.target for c in CASES.values() for s in c.plan.services}
    assert len(CASES) >= 24
    assert engines == {"vllm", "sglang"}
    assert targets == {"none", "kubernetes", "dynamo", "kserve", "llm-d", "compose"}
    assert sorted(p.name for p in FOLDER.iterdir()) == sorted(CASES), "a folder without a case, or a case without one"
