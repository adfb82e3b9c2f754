"""examples/ci: the Action's own steps, run in a git repository as GitHub would run them; the pre-commit hook."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from planner.intent.document import Intent
from planner.intent.fleet import Fleet
from planner.render import render, write_tree
from tests.report.conftest import fleet_data, intent_data, toy_plan

ROOT = Path(__file__).resolve().parent.parent.parent
CI = ROOT / "examples" / "ci"


def write(folder: Path, *, version: str = "0.1.0", **edit: str) -> None:
    data = intent_data()
    data["services"] = data["services"][:1]
    data["services"][0] |= {"model": "meta-llama/Llama-3.3-70B-Instruct"}
    data["services"][0]["slo"] |= {k.replace("_", "."): v for k, v in edit.items()}
    plan = toy_plan(Intent.model_validate(data), Fleet.model_validate(fleet_data()), version=version)
    write_tree(render(plan), folder, force=True)


@dataclass
class Repository:
    """A user's repository with one planned tree on main."""

    path: Path
    bin: Path

    def git(self, *words: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *words], cwd=self.path, check=True, capture_output=True)

    def commit(self, message: str) -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", message)

    def action(self, **inputs: str) -> dict[str, subprocess.CompletedProcess[str]]:
        """The composite action's bash steps, with the runner's variables; the one that talks to GitHub is left out."""
        action = yaml.safe_load((CI / "action.yaml").read_text())
        values = {k: v["default"] for k, v in action["inputs"].items()} | inputs
        done = {}
        for step in action["runs"]["steps"]:
            if step["name"] == "Comment":
                continue
            assert step["shell"] == "bash"
            env = {
                k: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda m: values[m[1]], v)
                for k, v in step.get("env", {}).items()
            }
            done[step["name"]] = self.shell(step["run"], env)
        return done

    def shell(self, script: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        base = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.path.parent),
            "PYTHONPATH": str(ROOT),
            "GITHUB_ACTION_PATH": str(CI),
            "GITHUB_OUTPUT": str(self.path.parent / "output"),
            "GITHUB_STEP_SUMMARY": str(self.path.parent / "summary"),
        }
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.path, env=base | env, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    @property
    def outputs(self) -> list[str]:
        path = self.path.parent / "output"
        return path.read_text().splitlines() if path.is_file() else []


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    tool = tmp_path / "bin" / "plan"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m planner "$@"\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    made = Repository(tmp_path / "repo", tool.parent)
    made.path.mkdir()
    made.git("init", "-q", "-b", "main")
    write(made.path / "deploy")
    made.commit("a plan")
    made.git("checkout", "-q", "-b", "change")
    return made


def test_a_drifted_file_fails_the_check_with_a_readable_diff(repository: Repository) -> None:
    path = next((repository.path / "deploy").rglob("deployment.yaml"))
    path.write_text(path.read_text().replace("--max-num-seqs=96", "--max-num-seqs=256"))
    repository.commit("more sequences, by hand")
    check = repository.action(trees="deploy", base="main")["Files are what their plans say"]
    assert check.returncode == 4, check.stderr
    assert "--max-num-seqs=256" in check.stdout
    assert "--max-num-seqs=96" in check.stdout
    assert "::error title=plan check deploy::" in check.stdout


def test_a_change_of_intent_gives_the_comment(repository: Repository) -> None:
    write(repository.path / "deploy", itl_p99="25ms")
    repository.commit("a tighter promise")
    steps = repository.action(trees="deploy", base="main")
    assert [s.returncode for s in steps.values()] == [0, 0], steps
    comment = (repository.path / "plan-comment.md").read_text()
    assert comment.startswith("<!-- llm-deployment-planner -->")
    assert "`services.chat.slo.itl.p99` `50ms` → `25ms`" in comment
    assert "--tensor-parallel-size: 4 -> 8" in comment
    assert "restarts" in comment
    assert repository.outputs[-1] == "changed=true"
    assert comment in (repository.path.parent / "summary").read_text()


def test_a_planner_upgrade_with_unchanged_plans_stays_green(repository: Repository) -> None:
    # The committed tree is of 0.1.0; whoever runs a newer planner here renders and decides the same.
    steps = repository.action(trees="deploy", base="main")
    assert [s.returncode for s in steps.values()] == [0, 0], steps
    assert repository.outputs[-1] == "changed=false"
    # And a tree that was rendered again by the newer one differs in nothing that matters.
    write(repository.path / "deploy", version="0.2.0")
    repository.commit("rendered by a newer planner")
    steps = repository.action(trees="deploy", base="main")
    assert [s.returncode for s in steps.values()] == [0, 0], steps
    assert repository.outputs[-1] == "changed=false"
    assert "same answer" in (repository.path / "plan-comment.md").read_text()


def test_new_and_removed_plans_are_said(repository: Repository) -> None:
    write(repository.path / "staging")
    repository.commit("staging")
    steps = repository.action(trees="deploy staging gone", base="main")
    comment = (repository.path / "plan-comment.md").read_text()
    assert "## staging\nA new plan." in comment
    assert "## gone\nThe plan is gone" in comment
    # A tree that is named and not there fails the check; the comparison still runs.
    assert [s.returncode for s in steps.values()] == [2, 0]


SERVING = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  replicas: 24
  template:
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.33.0
          args:
            - RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic
            - --tensor-parallel-size=4
            - --max-num-seqs=96
            - --max-num-batched-tokens=512
            - --max-model-len=32768
          resources: {limits: {nvidia.com/gpu: 4}}
"""


def test_a_flag_in_a_foreign_manifest_is_assessed(repository: Repository) -> None:
    import importlib.util

    if importlib.util.find_spec("planner.cli.assess") is None:
        pytest.skip("plan assess is not on the command line of this version")
    intent = {
        "services": [
            {
                "name": "chat",
                "model": "llama-3.3-70b",
                "traffic": {"rate": "24/s", "input": {"mean": 3000, "cv": 0.5}, "output": {"mean": 400, "cv": 0.5}},
                "slo": {"itl": "50ms"},
            }
        ]
    }
    (repository.path / "intent.yaml").write_text(yaml.safe_dump(intent))
    (repository.path / "fleet.yaml").write_text((ROOT / "fleets" / "h100.yaml").read_text())
    serving = repository.path / "serving" / "chat.yaml"
    serving.parent.mkdir()
    serving.write_text(SERVING)
    repository.commit("serving as it runs")
    repository.git("branch", "-f", "main", "HEAD")
    serving.write_text(SERVING.replace("tokens=512", "tokens=8192"))
    repository.commit("a larger token budget")
    steps = repository.action(manifests="serving", intent="intent.yaml", fleet="fleet.yaml", base="main")
    assert [s.returncode for s in steps.values()] == [0, 0], steps
    comment = (repository.path / "plan-comment.md").read_text()
    assert "| `--max-num-batched-tokens` | 512 → 8192 |" in comment
    assert "limit 50ms MISS" in comment
    assert "restarts 24 pods" in comment


def test_the_pre_commit_hook_is_valid_and_its_command_works(repository: Repository) -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (hook,) = hooks
    clientlib = pytest.importorskip("pre_commit.clientlib")
    clientlib.load_manifest(str(ROOT / ".pre-commit-hooks.yaml"))
    assert hook["pass_filenames"] is False
    command = f"{hook['entry']} deploy"
    assert repository.shell(command, {}).returncode == 0
    path = next((repository.path / "deploy").rglob("service.yaml"))
    path.unlink()
    done = repository.shell(command, {})
    assert done.returncode == 4
    assert "service.yaml" in done.stdout
    assert re.search(hook["files"], "deploy/plan.yaml")
    assert re.search(hook["files"], "deploy/chat/kubernetes/deployment.yaml")


def test_the_workflow_uses_the_inputs_that_the_action_has() -> None:
    action = yaml.safe_load((CI / "action.yaml").read_text())
    workflow = yaml.safe_load((CI / "workflow.yaml").read_text())
    used = workflow["jobs"]["plan"]["steps"][-1]["with"]
    assert set(used) <= set(action["inputs"])
    for step in action["runs"]["steps"]:
        for name in re.findall(r"\"\$GITHUB_ACTION_PATH/([\w.]+)\"", step["run"]):
            assert os.access(CI / name, os.X_OK), name
