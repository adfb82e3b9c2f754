"""Speed, as ratios within one run, since machines are noisy.

    python benchmarks/speed.py [--all]

The main job beside importing the solver (goal: 4x without verification, 8x with it), estimates in bulk, the
simulation (`speed_simulate.py`), and with --all 1 to 100 services on 4,000 GPUs (`speed_solve.py`, minutes).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAIN = [sys.executable, "-m", "planner", "--fleet", "fleets/h100.yaml", "--slo", "itl=50ms"]


def seconds(words: list[str], *, runs: int = 3) -> float:
    """The best of a few runs: the others measured the machine's neighbours."""
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
        best = min(best, time.perf_counter() - start)
    return best


def cases(count: int) -> str:
    """A file of configurations for `plan estimate --cases`."""
    rows = ["model,gpu,n_gpus,engine,tp,isl,osl,concurrency,precision_weights,kind"]
    for i in range(count):
        model, precision = (("meta-llama/Llama-3.1-8B", "bf16"), ("meta-llama/Llama-3.3-70B-Instruct", "fp8"))[i % 2]
        tp = (1, 2, 4, 8)[i // 2 % 4]
        rows.append(
            f"{model},H100,{tp},vllm,{tp},{500 + i % 4000},{100 + i % 900},{1 + i % 200},{precision},closed-loop"
        )
    return "\n".join(rows) + "\n"


def main() -> None:
    base = seconds([sys.executable, "-c", "from ortools.sat.python import cp_model"])
    print(f"importing cp_model                {base:6.2f} s   1.0x")
    for name, words, goal in (("main job, --no-verify", [*MAIN, "--no-verify"], 4), ("main job, verified", MAIN, 8)):
        took = seconds(words)
        print(f"{name:<33} {took:6.2f} s   {took / base:.1f}x (goal {goal}x)")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.csv"
        for count in (1_000, 20_000):
            path.write_text(cases(count))
            words = [
                sys.executable,
                "-m",
                "planner",
                "estimate",
                "--cases",
                str(path),
                "-o",
                str(Path(folder) / "out.csv"),
            ]
            took = seconds(words, runs=2)
            print(
                f"estimate --cases, {count:>6,} rows     {took:6.2f} s   {count / took:,.0f} rows/s, start-up included"
            )
    subprocess.run([sys.executable, "benchmarks/speed_simulate.py"], cwd=ROOT, check=True)
    if "--all" in sys.argv[1:]:
        subprocess.run([sys.executable, "benchmarks/speed_solve.py"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
