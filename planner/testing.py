"""Golden-file tests of your own plans, for pytest. Installed with the planner; costs nothing until used.

In a test, three lines:

    from planner.testing import check_plan_tree

    def test_deploy():
        check_plan_tree("deploy")              # every rendered file is what deploy/plan.yaml says

or none at all: name the folders in pyproject.toml, and each becomes a test.

    [tool.pytest.ini_options]
    plan_trees = ["deploy", "clusters/*/deploy"]

To hold the answer itself, solve again and compare decisions (not predictions' last digits):

    def test_answer(plan_golden):
        plan_golden("deploy", intent="intent.yaml", fleet="fleet.yaml")

`pytest --update-plans` writes the files anew instead; the diff then belongs into the review.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from planner.plan.document import Plan

Anywhere = str | Path


def check_plan_tree(folder: Anywhere, *, templates_dir: Anywhere | None = None) -> None:
    """AssertionError with a diff where a folder's files are not what its plan.yaml says. Solves and writes nothing.

    A newer planner that renders the same keeps this green; one that renders something else fails it, with the diff.
    """
    from planner.render import check_tree, format_drift

    drift = check_tree(Path(folder), templates_dir=None if templates_dir is None else Path(templates_dir))
    assert not drift, f"{len(drift)} files of {folder} differ from its plan.yaml\n{format_drift(drift)}"


def update_plan_tree(folder: Anywhere, *, templates_dir: Anywhere | None = None) -> None:
    """Render a folder's plan.yaml again, over hand edits too."""
    from planner.plan.text import load
    from planner.render import render, write_tree

    files = render(load(Path(folder)), templates_dir=None if templates_dir is None else Path(templates_dir))
    write_tree(files, Path(folder), force=True)


def solve_plan(
    *, intent: Anywhere | Sequence[Anywhere], fleet: Anywhere, platform: Anywhere | None = None, verify: bool = True
) -> Plan:
    """The plan that today's planner makes of these files."""
    from planner.pipeline import ask, make_plan

    files = [intent] if isinstance(intent, str | Path) else list(intent)
    question = ask(
        fleet=Path(fleet),
        intent_files=[Path(i) for i in files],
        platform_file=None if platform is None else Path(platform),
    )
    return make_plan(question, verify=verify)


def check_plan(folder: Anywhere, plan: Plan) -> None:
    """AssertionError with the semantic diff where `plan` decides otherwise than the folder's plan.yaml."""
    from planner.plan.text import load
    from planner.report.diff import diff

    found = diff(load(Path(folder)), plan)
    assert found.same, f"today's answer differs from {folder}/plan.yaml\n{found.to_text()}"


@pytest.fixture
def plan_golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`plan_golden(folder, intent=..., fleet=...)`: solve, compare decisions with the folder's plan, check its files.

    With --update-plans the answer and its files are written there instead.
    """
    update = bool(request.config.getoption("--update-plans"))

    def compare(
        folder: Anywhere,
        *,
        intent: Anywhere | Sequence[Anywhere],
        fleet: Anywhere,
        platform: Anywhere | None = None,
        verify: bool = True,
    ) -> None:
        plan = solve_plan(intent=intent, fleet=fleet, platform=platform, verify=verify)
        if update:
            from planner.render import render, write_tree

            write_tree(render(plan), Path(folder), force=True)
            return
        check_plan(folder, plan)
        check_plan_tree(folder)

    return compare


# ---------------------------------------------------------------- the plugin


def pytest_addoption(parser: pytest.Parser) -> None:
    """--update-plans, and the ini option that names trees."""
    group = parser.getgroup("llm-deployment-planner")
    group.addoption("--update-plans", action="store_true", help="write plans and their files anew instead of comparing")
    parser.addini("plan_trees", "folders (globs allowed) whose rendered files are held to their plan.yaml", type="args")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A plan.yaml inside a named tree is a test file."""
    if file_path.name != "plan.yaml":
        return None
    globs: Iterable[str] = parent.config.getini("plan_trees")
    root = parent.config.rootpath
    folder = file_path.parent
    relative = folder.relative_to(root).as_posix() if folder.is_relative_to(root) else folder.as_posix()
    if not any(fnmatch.fnmatch(relative, g.rstrip("/")) for g in globs):
        return None
    return PlanFile.from_parent(parent, path=file_path)


class PlanFile(pytest.File):
    """A rendered tree, by its plan.yaml."""

    def collect(self) -> Iterable[pytest.Item]:
        yield PlanItem.from_parent(self, name="rendered-files")


class PlanItem(pytest.Item):
    """Every file of the tree is what the plan says."""

    def runtest(self) -> None:
        folder = self.path.parent
        if self.config.getoption("--update-plans"):
            update_plan_tree(folder)
        else:
            check_plan_tree(folder)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kw: Any) -> str:
        from planner.errors import UserError

        if isinstance(excinfo.value, AssertionError | UserError):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo, *args, **kw))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.path.parent.name}: rendered files"


__all__ = ["check_plan", "check_plan_tree", "plan_golden", "solve_plan", "update_plan_tree"]
