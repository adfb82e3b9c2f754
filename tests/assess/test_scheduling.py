"""What a launch does with the intent's priorities: nothing, the same, or the opposite."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.assess.judge import Assessment, assess
from planner.assess.read import read_argv
from planner.intent.document import Intent

VLLM = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 32768 --max-num-seqs 256"
SGLANG = (
    "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --context-length 32768 "
    "--max-running-requests 256 --chunked-prefill-size 8192"
)
LOWER = "--enable-priority-scheduling --schedule-low-priority-values-first"


def judged(line: str, *, batch: int = 10) -> Assessment:
    """Short interactive requests beside long ones of a batch class."""
    lengths = ({"mean": 400, "cv": 1}, {"mean": 150, "cv": 1}), ({"mean": 6000, "cv": 0.7}, {"mean": 400, "cv": 1})
    traffic = [
        {"name": n, "rate": r, "input": i, "output": o, "priority": p, "slo": {"ttft.p99": "20s"}}
        for (i, o), n, r, p in zip(lengths, ("chat", "batch"), ("8/s", "1.6/s"), (0, batch), strict=True)
    ]
    intent = Intent.model_validate(
        {"services": [{"name": "chat", "model": "meta-llama/Llama-3.1-8B-Instruct", "traffic": traffic}]}
    )
    return assess([replace(read_argv(line), replicas=1)], intent=intent, gpu="h100")


def ttft(a: Assessment, name: str) -> float:
    return next(f.value_s for f in a.judged[0].figures if f.class_name == name and f.metric == "ttft.p99")


def said(a: Assessment) -> str:
    return " ".join(str(f) for f in a.judged[0].findings)


@pytest.mark.parametrize(
    ("plain", "ranked"), [(VLLM, f"{VLLM} --scheduling-policy priority"), (SGLANG, f"{SGLANG} {LOWER}")]
)
def test_priorities_count_where_the_launch_says_so(plain: str, ranked: str) -> None:
    ignored, served = judged(plain), judged(ranked)
    assert "priorities have no effect" in said(ignored)
    assert "priorit" not in said(served)
    assert ttft(served, "chat") < 0.95 * ttft(ignored, "chat")
    assert ttft(served, "batch") > ttft(ignored, "batch")
    assert ttft(judged(plain, batch=0), "chat") == ttft(ignored, "chat")
    assert "priorit" not in said(judged(plain, batch=0))


def test_the_opposite_order_is_said() -> None:
    turned, served = judged(f"{SGLANG} --enable-priority-scheduling"), judged(f"{SGLANG} {LOWER}")
    assert "higher priorities are served first here" in said(turned)
    assert ttft(turned, "chat") > ttft(served, "chat")
    assert ttft(turned, "batch") < ttft(served, "batch")
