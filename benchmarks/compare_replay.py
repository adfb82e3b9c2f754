"""Our event simulation beside an independent one: the offline replay of `ai-dynamo` 1.6.1.

    python -m benchmarks.compare_replay [--venv .venv-replay] [--requests 4000]

The replay lives in its own environment (made on first use: two wheels without their dependencies, then the few it
needs), because it pins packages that the project does not want. Both sides get the same requests (arrivals and
lengths), the same scheduler limits and our step times, exported as its latency tables:

  its step = prefill(prompt tokens in the step) + decode(active KV tokens, mean context)

so the fixed cost of a step stands in the decode table, and a step without decodes lacks it on its side for
aggregated workers (ours has it); prefill workers get a table with it. Twelve settings, aggregated and P/D.
Promised: mean ITL and TTFT within 15%, p99 within 25%, differences explained.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load_points import AGENT, BATCH, CHAT, FIXED, RAG, additive
from planner.perf.load import LoadModel
from planner.perf.pair import PairModel
from planner.perf.pool import Handover, PoolSpec
from planner.perf.table import StepTable
from planner.perf.traffic import ClassLoad
from planner.simulate.arrivals import synthetic
from planner.simulate.run import SimPool, SimSpec, TraceReplay, simulate

PACKAGES = ("ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1")
NEEDED = (
    *("msgspec", "prometheus-client", "pyzmq", "typing-extensions", "zstandard", "uvloop", "numpy", "transformers"),
    *("pydantic>=2.10.6,<=2.13.5", "aiohttp", "certifi", "tqdm", "redis", "kubernetes<33,>=32.0.1"),
)
BLOCK = 64
AT_ONCE = Handover(bytes_per_token=1.0, bytes_per_s=1e18, latency_s=0.0)


@dataclass(frozen=True)
class Setting:
    name: str
    pool: PoolSpec
    cls: ClassLoad
    load: float
    workers: int = 1
    decode: PoolSpec | None = None
    decode_workers: int = 0


def settings() -> list[Setting]:
    base = PoolSpec(additive(), 128, 2048, 1e9, block_tokens=BLOCK)
    wide = base.with_(max_num_batched_tokens=8192)
    prefill, decode = wide.with_(role="prefill"), base.with_(role="decode")
    return [
        Setting("chat, fixed lengths", base, FIXED, 0.6),
        Setting("chat", base, CHAT, 0.4),
        Setting("chat", base, CHAT, 0.7),
        Setting("chat, 4 workers", base, CHAT, 0.8, workers=4),
        Setting("chat, B=512", base.with_(max_num_batched_tokens=512), CHAT, 0.6),
        Setting("chat, N=32", base.with_(max_num_seqs=32), CHAT, 0.8),
        Setting("rag", base, RAG, 0.6),
        Setting("agentic, long prompts", wide, AGENT, 0.7),
        Setting("batch, N=256", wide.with_(max_num_seqs=256), BATCH, 0.7),
        Setting("P/D 1:1 chat", prefill, CHAT, 0.5, 1, decode, 1),
        Setting("P/D 2:3 chat", prefill, CHAT, 0.6, 2, decode, 3),
        Setting("P/D 3:1 rag", prefill, RAG, 0.6, 3, decode, 1),
    ]


def latency_table(table: StepTable, path: Path, *, alone: bool) -> None:
    """Our step times as its arrays. `alone`: for a prefill worker, whose steps hold nothing else."""
    tokens = np.unique(np.round(np.geomspace(1, 65536, 160)))
    context = np.geomspace(1, 131072, 160)
    kv = np.concatenate([[0.0], np.geomspace(1, 8e6, 200)])
    fixed = table.linear_decode(0.0)
    prefill = [
        table.step_s(decode_seqs=0, context_tokens=0, prefill_tokens=int(t)) - (0.0 if alone else fixed) for t in tokens
    ]
    seqs = kv[:, None] / context[None, :]
    # Batches are whole on our side; the table is linear in them, so fractions are exact.
    slope = table.linear_decode(1.0) - fixed
    decode = fixed + slope * seqs + table.decode_curve(1)(1.0) * kv[:, None]
    np.savez(
        path,
        prefill_isl=tokens,
        prefill_ttft_ms=np.array(prefill) * 1e3,
        decode_active_kv_tokens=kv,
        decode_context_length=context,
        decode_itl=np.minimum(decode, 10.0) * 1e3,
    )


def engine(pool: PoolSpec, table: Path) -> dict[str, Any]:
    return {
        "engine": {
            "backend": "vllm",
            "worker_type": pool.role,
            "num_gpu_blocks": 10_000_000,
            "block_size": BLOCK,
            "max_num_seqs": pool.max_num_seqs,
            "max_num_batched_tokens": pool.max_num_batched_tokens,
            "enable_prefix_caching": False,
            "enable_chunked_prefill": True,
            "timing_model": {"type": "external", "provider": "dynamo_profile", "config": {"path": str(table)}},
        }
    }


def rate_of(s: Setting) -> float:
    if s.decode is None:
        return s.load * s.workers * LoadModel(s.pool, [s.cls]).lambda_max
    pair = PairModel(s.pool, s.decode, AT_ONCE, [s.cls])
    return s.load * min(s.workers * pair.prefill_max_per_s, s.decode_workers * pair.decode.lambda_max)


def write_traces(s: Setting, index: int, folder: Path, requests: int) -> tuple[Path, Path]:
    """The same requests for both: CSV for us, JSON lines for the replay. Hits are prompts that are shorter."""
    ours, theirs = folder / f"{index}.csv", folder / f"{index}.jsonl"
    block = 0
    with ours.open("w") as a, theirs.open("w") as b:
        a.write("timestamp_s,input_tokens,output_tokens\n")
        for r in synthetic([s.cls.at(rate_of(s))], requests=requests, seed=11, replicas=1):
            prompt = r.input - r.cached
            blocks = -(-prompt // 512)
            a.write(f"{r.arrival_s!r},{prompt},{r.output}\n")
            row = {
                "timestamp": r.arrival_s * 1e3,
                "input_length": prompt,
                "output_length": r.output,
                "hash_ids": list(range(block, block + blocks)),
            }
            b.write(json.dumps(row) + "\n")
            block += blocks
    return ours, theirs


def python_of(folder: Path) -> Path:
    """The replay's own interpreter, with its packages; made on first use."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder} for ai-dynamo 1.6.1 (80 MB)", file=sys.stderr)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *PACKAGES], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *NEEDED], check=True)
    return python.absolute()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--venv", type=Path, default=Path(".venv-replay"))
    parser.add_argument("--requests", type=int, default=4000)
    args = parser.parse_args()
    python = python_of(args.venv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs, found = [], settings()
        csvs = []
        shared, alone = folder / "shared.npz", folder / "alone.npz"
        latency_table(additive(), shared, alone=False)
        latency_table(additive(), alone, alone=True)
        for i, s in enumerate(found):
            ours, theirs = write_traces(s, i, folder, args.requests)
            csvs.append(ours)
            if s.decode is None:
                engines, workers = {"extra_engine_args": engine(s.pool, shared)}, {"num_workers": s.workers}
            else:
                engines = {"prefill_engine_args": engine(s.pool, alone), "decode_engine_args": engine(s.decode, shared)}
                workers = {"num_prefill_workers": s.workers, "num_decode_workers": s.decode_workers}
            jobs.append({"trace": str(theirs), "engines": engines, "workers": workers})
        (folder / "jobs.json").write_text(json.dumps(jobs))
        runner = Path(__file__).with_name("replay_runner.py").absolute()
        quiet = {**os.environ, "DYN_LOG": "error"}
        subprocess.run([python, runner, folder / "jobs.json", folder / "results.json"], check=True, env=quiet)
        theirs_all = json.loads((folder / "results.json").read_text())
        compare(found, csvs, theirs_all)


def compare(found: list[Setting], csvs: list[Path], theirs_all: list[dict[str, float]]) -> None:
    print(f"{'setting':26}{'load':>5}   ours / ai-dynamo 1.6.1 replay (ms)")
    bounds = {"mean_itl": 0.15, "p99_itl": 0.25, "mean_ttft": 0.15, "p99_ttft": 0.25}
    outside = []
    for s, path, theirs in zip(found, csvs, theirs_all, strict=True):
        pools: tuple[SimPool, ...] = (SimPool("a", s.pool, s.workers),)
        if s.decode is not None:
            pools = (SimPool("p", s.pool, s.workers), SimPool("d", s.decode, s.decode_workers))
        spec = SimSpec(
            pools,
            # Cold: the file's prompts have left out what the prefix cache holds.
            (s.cls.at(rate_of(s)).cold(),),
            handover=None if s.decode is None else AT_ONCE,
            traces={"c": TraceReplay(path)},
            warmup_ratio=0.0,
        )
        seen = simulate(spec).classes[0]
        cells = []
        for key, bound in bounds.items():
            stat, metric = key.split("_")
            ours, other = 1e3 * seen.value(metric, stat), theirs[f"{key}_ms"]
            error = ours / other - 1
            cells.append(f"{key} {ours:.4g}/{other:.4g} ({100 * error:+.0f}%)")
            if abs(error) > bound:
                outside.append(f"{s.name} {s.load:.2f} {key} {100 * error:+.0f}%")
        print(f"{s.name:26}{s.load:5.2f}   {'  '.join(cells)}")
    print(f"outside 15% (means) and 25% (p99): {outside or 'none'}")


if __name__ == "__main__":
    main()
