"""Runs jobs in Dynamo's offline replay; started by compare_replay.py in its own environment, imports nothing of ours.

python replay_runner.py JOBS.json RESULTS.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dynamo.replay.api import run_trace_replay  # type: ignore[import-not-found]


def main() -> None:
    jobs = json.loads(Path(sys.argv[1]).read_text())
    results = []
    for job in jobs:
        engines = {key: json.dumps(value) for key, value in job["engines"].items()}
        report = run_trace_replay(job["trace"], trace_format="mooncake", **engines, **job["workers"])
        s = report.summary
        results.append(
            {key: s[key] for key in ("mean_ttft_ms", "p99_ttft_ms", "mean_itl_ms", "p99_itl_ms", "completed_requests")}
        )
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
