"""What every test shares: golden trees, the optional reference material, reproducible hypothesis."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile(
    "planner",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("planner")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files instead of comparing with them")


def find_shared() -> Path | None:
    """The reference material beside the repository, or where PLANNER_SHARED points; None where it is absent."""
    for candidate in (os.environ.get("PLANNER_SHARED"), ROOT.parent / "shared"):
        if candidate and (Path(candidate) / "DESIGN.md").is_file():
            return Path(candidate)
    return None


@pytest.fixture(scope="session")
def shared() -> Path:
    """The reference material; the test skips where it is absent."""
    found = find_shared()
    if found is None:
        pytest.skip("reference material (../shared) is not here")
    return found


@pytest.fixture
def golden_tree(request: pytest.FixtureRequest) -> Callable[[dict[str, str], Path], None]:
    """Compare a tree of texts with a folder; a missing or an extra file fails too. `--update-golden` rewrites."""
    update = request.config.getoption("--update-golden")

    def compare(actual: dict[str, str], folder: Path) -> None:
        there = (
            {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()} if folder.is_dir() else {}
        )
        if update:
            for name in there.keys() - actual.keys():
                there[name].unlink()
            for name, text in actual.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.is_file() or path.read_bytes() != text.encode():
                    path.write_bytes(text.encode())
            return
        assert sorted(there) == sorted(actual), f"files of {folder.name} differ from its golden tree"
        for name in sorted(actual):
            assert actual[name] == there[name].read_bytes().decode(), (
                f"{folder.name}/{name} differs from its golden file"
            )

    return compare
