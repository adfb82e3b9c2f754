"""An edited plan.yaml is refused where it is read, with its place, by every command that reads one."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.plan.text import load
from tests.command import plan

PLAN = Path(__file__).resolve().parent.parent.parent / "examples" / "chat-8b" / "deploy" / "plan.yaml"


def edited(tmp_path: Path, old: str, new: str) -> Path:
    text = PLAN.read_text()
    assert old in text
    path = tmp_path / "plan.yaml"
    path.write_text(text.replace(old, new, 1))
    return path


def field(name: str) -> str:
    """The line of a field, as it stands in the plan, from the first pool on."""
    text = PLAN.read_text()
    return next(x for x in text[text.index("pools:") :].splitlines() if x.strip().startswith(f"{name}:"))


EDITS = [
    ("tp", "3", "tp 3 x pp 1 x dp 1 is 3 GPUs"),
    ("gpus_per_replica", "2", "is 1 GPUs, not 2"),
    ("replicas", "77", "77 replicas of 1 GPUs are 77 GPUs"),
    ("nodes_per_replica", "3", "do not spread evenly"),
    ("fleet_pool", "elsewhere", "has no pool 'elsewhere'"),
    ("max_num_seqs", "0", "max_num_seqs is 0"),
]


@pytest.mark.parametrize(("name", "value", "text"), EDITS)
def test_a_layout_that_contradicts_itself(tmp_path: Path, name: str, value: str, text: str) -> None:
    line = field(name)
    path = edited(tmp_path, f"{line}\n", f"{line.partition(':')[0]}: {value}\n")
    for command in (("explain",), ("simulate",), ("diff", str(PLAN)), ("render",)):
        ran = plan(*command, str(path))
        assert (ran.code, ran.out) == (2, "")
        assert "error[plan-inconsistent]" in ran.err
        assert text in ran.err
        assert "plan.yaml:" in ran.err


def test_a_service_by_another_name(tmp_path: Path) -> None:
    name = load(PLAN).services[0].name
    path = edited(tmp_path, f"- name: {name}\n", f"- name: {name}-x\n")
    out = tmp_path / "review.html"
    for words in (("explain",), ("simulate",), ("review", "-o", str(out)), ("frontier",), ("check", str(tmp_path))):
        ran = plan(*words, *((str(path),) if words[0] != "check" else ()))
        assert ran.code == 2, ran.err
        assert f"has no service '{name}-x'" in ran.err
        assert f"help: write {name}" in ran.err
    assert not out.exists()


def test_a_sum_that_is_not_one(tmp_path: Path) -> None:
    gpus = load(PLAN).totals.gpus
    path = edited(tmp_path, f"  gpus: {gpus}\n", f"  gpus: {gpus + 1}\n")
    ran = plan("explain", str(path))
    assert ran.code == 2
    assert f"not {gpus + 1}" in ran.err
