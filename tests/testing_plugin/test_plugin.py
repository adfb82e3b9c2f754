"""The pytest plugin as a user meets it: a project of their own, run in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.intent.document import Intent
from planner.intent.fleet import Fleet
from planner.plan.text import dumps
from planner.render import render, write_tree
from planner.testing import check_plan, check_plan_tree
from tests.report.conftest import fleet_data, intent_data, toy_plan

ROOT = Path(__file__).resolve().parent.parent.parent


def make_tree(folder: Path, **slo: str) -> None:
    data = intent_data()
    data["services"] = data["services"][:1]
    data["services"][0]["model"] = "meta-llama/Llama-3.3-70B-Instruct"
    data["services"][0]["slo"] |= {k.replace("_", "."): v for k, v in slo.items()}
    plan = toy_plan(Intent.model_validate(data), Fleet.model_validate(fleet_data()))
    folder.mkdir(parents=True, exist_ok=True)
    write_tree(render(plan), folder, force=True)


def run_pytest(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # The entry point is what installs the plugin; `-p` stands in for it where the checkout's metadata is older.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "planner.testing", "-p", "no:cacheprovider", "-q", *words]
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("project")
    make_tree(path / "deploy")
    make_tree(path / "clusters" / "eu" / "deploy")
    (path / "pytest.ini").write_text("[pytest]\nplan_trees = deploy clusters/*/deploy\n")
    (path / "test_three_lines.py").write_text(
        'from planner.testing import check_plan_tree\ndef test_deploy():\n    check_plan_tree("deploy")\n'
    )
    return path


def deployment(project: Path) -> Path:
    return next((project / "deploy").rglob("deployment.yaml"))


def test_named_trees_are_tests_and_three_lines_are_one(project: Path) -> None:
    done = run_pytest(project)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_a_hand_edit_fails_with_a_readable_diff_and_update_mends_it(project: Path) -> None:
    path = deployment(project)
    before = path.read_text()
    path.write_text(before.replace("--max-num-seqs=96", "--max-num-seqs=128"))
    done = run_pytest(project)
    assert done.returncode == 1
    assert "2 failed, 1 passed" in done.stdout
    assert "differ from its plan.yaml" in done.stdout
    assert "-" in done.stdout
    assert "--max-num-seqs=128" in done.stdout
    assert "--max-num-seqs=96" in done.stdout
    assert "Traceback" not in done.stdout
    mended = run_pytest(project, "--update-plans", "deploy")
    assert mended.returncode == 0, mended.stdout
    assert path.read_text() == before


def test_a_broken_plan_says_where(project: Path) -> None:
    path = project / "clusters" / "eu" / "deploy" / "plan.yaml"
    before = path.read_text()
    try:
        path.write_text(before.replace("status: optimal", "status: best"))
        done = run_pytest(project, "clusters")
        assert done.returncode == 1
        assert "plan.yaml:" in done.stdout
        assert "status: best" in done.stdout
        assert "Traceback" not in done.stdout
    finally:
        path.write_text(before)


def test_other_folders_are_left_alone(project: Path) -> None:
    other = project / "notes"
    other.mkdir(exist_ok=True)
    (other / "plan.yaml").write_text("not: a plan\n")
    done = run_pytest(project, "notes")
    assert "no tests ran" in done.stdout


def test_the_answer_is_compared_by_what_it_decides(tmp_path: Path) -> None:
    make_tree(tmp_path)
    plan = toy_plan(Intent.model_validate(intent_data()), Fleet.model_validate(fleet_data()))
    with pytest.raises(AssertionError, match="today's answer differs"):
        check_plan(tmp_path, plan)
    data = intent_data()
    data["services"] = data["services"][:1]
    data["services"][0]["model"] = "meta-llama/Llama-3.3-70B-Instruct"
    same = toy_plan(Intent.model_validate(data), Fleet.model_validate(fleet_data()), version="0.9.0", catalog="f")
    check_plan(tmp_path, same)
    assert "0.9.0" in dumps(same)


def test_a_planner_upgrade_stays_green(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    make_tree(tmp_path)
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "9.9.9")
    check_plan_tree(tmp_path)


def test_solving_again_holds_the_answer(tmp_path: Path) -> None:
    (tmp_path / "intent.yaml").write_text(
        "services:\n  - name: chat\n    model: meta-llama/Llama-3.1-8B-Instruct\n"
        "    traffic: {rate: 10/s, input: 3500, output: 500}\n    slo: {itl: 50ms}\n    fixed: {tp: 1}\n"
    )
    (tmp_path / "fleet.yaml").write_text((ROOT / "fleets" / "h100.yaml").read_text())
    (tmp_path / "test_answer.py").write_text(
        "def test_answer(plan_golden):\n"
        '    plan_golden("deploy", intent="intent.yaml", fleet="fleet.yaml", verify=False)\n'
    )
    written = run_pytest(tmp_path, "--update-plans")
    assert written.returncode == 0, written.stdout
    assert (tmp_path / "deploy" / "plan.yaml").is_file()
    assert run_pytest(tmp_path).returncode == 0
    text = (tmp_path / "intent.yaml").read_text()
    (tmp_path / "intent.yaml").write_text(text.replace("rate: 10/s", "rate: 30/s"))
    done = run_pytest(tmp_path)
    assert done.returncode == 1
    assert "services.chat.traffic.default.rate" in done.stdout
    assert "10/s" in done.stdout
