"""The wheel carries templates, fleets and catalogue: built, installed into a fresh environment, run from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    assert list(out.glob("*.tar.gz")), "no sdist"
    return next(out.glob("*.whl"))


def test_wheel_holds_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for part in (
        "planner/_data/fleets/h100.yaml",
        "planner/_data/templates/",
        "planner/catalog/gpus/h100-sxm.yaml",
        "planner/py.typed",
    ):
        assert any(n.startswith(part) for n in names), part


def test_main_job_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """In a fresh environment, outside the repository, with nothing of the checkout on the path."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin" / "python"
    # The dependencies are this environment's own (a .pth line), so that the test needs no network; the planner itself
    # must come from the wheel.
    site = next((venv / "lib").glob("python*/site-packages"))
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    here = next(p for p in map(Path, sys.path) if p.name == "site-packages")
    (site / "zz_dependencies.pth").write_text(f"{here}\n")
    work = tmp_path / "elsewhere"
    work.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    where = subprocess.run(
        [str(python), "-c", "import planner; print(planner.__file__)"],
        cwd=work,
        env=env,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert str(site) in where
    fleet = site / "planner" / "_data" / "fleets" / "h100.yaml"
    done = subprocess.run(
        [str(venv / "bin" / "plan"), "--fleet", str(fleet), "--slo", "itl=50ms", "-o", "out"],
        cwd=work, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (work / "out" / "plan.yaml").is_file()
