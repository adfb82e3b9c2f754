"""Holding deployments against model facts, memory, traffic and promises; public cases with what happened there."""

# Command lines stand here as people write them.
# ruff: noqa: E501

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from planner.assess.baseline import as_baseline
from planner.assess.change import assess_change
from planner.assess.found import Found
from planner.assess.judge import Assessment, assess
from planner.assess.read import read_argv, read_files
from planner.errors import UserError
from planner.intent.document import Intent
from planner.intent.fleet import Fleet

CHAT = "vllm serve RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic --tensor-parallel-size 4 --max-num-seqs 96 --max-model-len 32768"


def intent(model: str = "llama-3.3-70b", name: str = "chat", **more: Any) -> Intent:
    traffic = {"rate": "24/s", "input": {"mean": 3000, "cv": 0.5}, "output": {"mean": 400, "cv": 0.5}}
    slo = more.pop("slo", {"itl": "50ms"})
    return Intent.model_validate(
        {"services": [{"name": name, "model": model, "traffic": [traffic | more], "slo": slo}]}
    )


def judge(line: str, *, replicas: int = 1, asked: Intent | None = None, **kw: Any) -> Assessment:
    return assess([replace(read_argv(line), replicas=replicas)], intent=asked, **kw)


def levels(a: Assessment) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for f in a.judged[0].findings:
        found.setdefault(f.level, []).append(str(f))
    return found


# (command line, GPU, does it start, words that must be said). Public issues and what happened there; see the sources.
CASES = [
    # vllm-project/vllm issue 17569: load fails at TP 8, per-rank width 192 is no multiple of 128
    ("vllm serve Qwen/Qwen3-235B-A22B-FP8 --tensor-parallel-size 8 --max-model-len 8192", "h100", False, "192 of 1536"),
    ("vllm serve Qwen/Qwen3-235B-A22B-FP8 --tensor-parallel-size 4 --max-model-len 8192", "h100", True, ""),
    ("vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 8 -ep --max-model-len 8192", "h100", True, ""),
    # THU-KEG/AdaptThink issue 1: 28 heads
    ("vllm serve deepseek-ai/DeepSeek-R1-Distill-Qwen-7B -tp 8", "h100", False, "28 attention heads do not divide by tp 8"),
    # deepseek-ai/DeepSeek-V3 issue 11: bf16 on 8, 16, 24, 32 GPUs of 80 GB
    ("vllm serve unsloth/DeepSeek-V3-bf16 -tp 8 --max-model-len 8192", "a100-80-sxm", False, "no memory"),
    ("vllm serve unsloth/DeepSeek-V3-bf16 -tp 8 -pp 2 --max-model-len 8192", "a100-80-sxm", False, "no memory"),
    ("vllm serve unsloth/DeepSeek-V3-bf16 -tp 8 -pp 4 --max-model-len 8192", "a100-80-sxm", True, ""),
    # InternLM/lmdeploy issue 2960: 8x80 GB runs out of memory, 8x96 GB runs, 8x141 GB and 16x80 GB are fine
    ("vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --max-model-len 8192 --max-num-batched-tokens 2048 --max-num-seqs 64", "h800-sxm", False, "no memory"),
    ("vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --max-model-len 8192 --max-num-batched-tokens 2048 --max-num-seqs 64", "h20", True, ""),
    ("vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --max-model-len 8192", "h200-sxm", True, ""),
    ("vllm serve deepseek-ai/DeepSeek-V3 -tp 16 --max-model-len 8192 --max-num-seqs 64", "h100", True, "tp 16 would cross nodes"),
    # vllm-project/recipes pull 12: 262,144 tokens of context need 62 GiB of cache, 48.7 were there
    ("vllm serve Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8 -dp 8 -ep --max-model-len 262144", "h20", False, "one request of 262,144 tokens"),
    # vllm-project/recipes issue 381: a published recipe that does not start
    ("vllm serve deepseek-ai/DeepSeek-V4-Pro -dp 8 -ep --max-model-len 800000", "h200-sxm", False, ""),
    # InternLM/lmdeploy issue 684: Llama-2-70B in fp16 on 4x A100-40
    ("vllm serve meta-llama/Llama-2-70b-hf -tp 4 --gpu-memory-utilization 0.9", "a100-40-sxm", False, "no memory"),
    # huggingface/optimum-benchmark issue 241: 70B in fp16 on two L40S; fp8 fits
    ("vllm serve meta-llama/Meta-Llama-3.1-70B -tp 2 --max-model-len 8192", "l40s", False, "no memory"),
    ("vllm serve meta-llama/Meta-Llama-3.1-70B -tp 2 --max-model-len 8192 --quantization fp8 --max-num-seqs 64", "l40s", True, ""),
    # vllm-project/vllm issue 10517 (24 GB): with chunks of 2048, 29,000 tokens start
    ("vllm serve meta-llama/Llama-3.1-8B --max-model-len 29000 --gpu-memory-utilization 0.9", "rtx-4090", True, ""),
    ("vllm serve meta-llama/Llama-3.1-8B", "rtx-4090", False, "the model's own length, since none is given"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "gpu", "starts", "said"), CASES)
def test_public_cases_of_fit(line: str, gpu: str, starts: bool, said: str) -> None:
    a = judge(line, gpu=gpu)
    assert a.judged[0].starts is starts, a.to_text()
    assert said in a.to_text(400)


def test_public_case_of_overload() -> None:
    """vllm-project/vllm issue 6781: 12 requests/s offered, 5.8 served, p99 TTFT 54 s."""
    asked = intent("Qwen/Qwen2-72B-Instruct", rate="12/s", input={"mean": 217, "cv": 1}, output={"mean": 194, "cv": 1})
    a = judge("vllm serve Qwen/Qwen2-72B-Instruct-GPTQ-Int4", asked=asked, gpu="h100")
    assert "the queue grows without end, TTFT has no steady state" in a.to_text(300)
    assert a.judged[0].capacity_rps is not None
    assert 4 < a.judged[0].capacity_rps < 10
    assert not a.holds


def test_public_case_of_two_concurrency_limits() -> None:
    """vllm-project/vllm issue 20469: the cache holds 26 requests of 16,200 tokens, the promise allows far fewer."""
    asked = intent("Qwen/Qwen3-14B", rate="0.2/s", input=16000, output=200, slo={"ttft.mean": "10s"})
    line = "vllm serve Qwen/Qwen3-14B-AWQ --max-model-len 16384 --max-num-seqs 30"
    j = judge(line, asked=asked, gpu="a100-80-sxm").judged[0]
    assert j.kv_sequences == pytest.approx(26, abs=1)
    assert j.capacity_rps is not None
    assert 0.2 < j.capacity_rps < 0.4


def test_the_flag_that_breaks_a_promise_is_named_with_what_would_hold() -> None:
    asked = intent()
    good = judge(f"{CHAT} --max-num-batched-tokens 512", replicas=24, asked=asked, gpu="h100")
    bad = judge(f"{CHAT} --max-num-batched-tokens 8192", replicas=24, asked=asked, gpu="h100")
    assert good.holds, good.to_text()
    assert not bad.holds
    (finding,) = [f for f in bad.judged[0].findings if f.level == "breaks"]
    assert finding.flag == "--max-num-batched-tokens 8192"
    assert finding.message.startswith("itl.p99 ")
    assert finding.message.endswith("limit 50ms")
    assert "512 gives itl.p99" in finding.fix or "1024 gives itl.p99" in finding.fix


def test_a_change_is_told_flag_by_flag() -> None:
    asked = intent()
    before = replace(read_argv(f"{CHAT} --max-num-batched-tokens 512"), replicas=24)
    after = replace(read_argv(f"{CHAT.replace('96', '64')} --max-num-batched-tokens 8192 --seed 3"), replicas=24)
    change = assess_change([before], [after], intent=asked, gpu="h100")
    (one,) = change.changed
    assert one.restarts_pods == 24
    told = {e.setting: e for e in one.effects}
    assert set(told) == {"--max-num-seqs", "--max-num-batched-tokens", "--seed"}
    budget = told["--max-num-batched-tokens"]
    assert (budget.before, budget.after) == ("512", "8192")
    assert any(f.startswith("itl.p99 ") and f.endswith("limit 50ms MISS") for f in budget.figures)
    # The other cap on its own breaks nothing.
    assert not any("MISS" in f for f in told["--max-num-seqs"].figures)
    assert not change.holds
    text = change.to_text()
    assert "--max-num-batched-tokens 512 -> 8192: " in text
    assert "restarts 24 pods" in text
    assert "starts, holds -> starts, breaks promises" in text
    assert "| `--max-num-batched-tokens` | 512 → 8192 |" in change.to_markdown()
    assert json.loads(change.to_json())["changed"][0]["restarts_pods"] == 24


def test_scaling_restarts_nothing_and_new_and_gone_are_said() -> None:
    before = replace(read_argv(CHAT), replicas=3)
    after = replace(before, replicas=5)
    other = replace(read_argv("vllm serve Qwen/Qwen3-8B"), name="other", replicas=2)
    (scaled,) = assess_change([before], [after], gpu="h100").changed
    assert (scaled.restarts_pods, scaled.gpus) == (0, 8)
    assert assess_change([before], [before], gpu="h100").changed == ()
    states = {c.name: (c.before is None, c.after is None) for c in assess_change([before], [other], gpu="h100").changed}
    assert states == {"service": (False, True), "other": (True, False)}


def test_counts_of_gpus() -> None:
    few = replace(read_argv(CHAT), gpus_per_pod=2)
    many = replace(read_argv(CHAT), gpus_per_pod=8)
    assert "needs 4 GPUs, the pods of a replica get 2" in assess([few], gpu="h100").to_text(200)
    assert "4 of a replica's 8 GPUs stay unused" in assess([many], gpu="h100").to_text(200)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vllm serve no-such/model", "unknown model 'no-such/model'"),
        ("vllm serve Qwen/Qwen3-8B --kv-cache-dtype int4_per_token_head", "int4_per_token_head is not modelled"),
        ("vllm serve Qwen/Qwen3-8B --quantization quark", "quark on a bf16 checkpoint is not modelled"),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 400000", "400,000 is beyond the model's"),
        ("vllm serve Qwen/Qwen3-8B --max-num-batched-tokens 64 --max-num-seqs 128", "vllm refuses to start"),
        ("vllm serve Qwen/Qwen3-8B --enable-expert-parallel", "a model without experts"),
        ("vllm serve Qwen/Qwen3-8B --swap-space 4", "--swap-space is not a flag of vllm 0.33.0"),
        ("vllm serve Qwen/Qwen3-8B --speculative-config.method ngram", "its acceptance is not known"),
        ("vllm serve Qwen/Qwen3-8B --enforce-eager", "CUDA graphs are off"),
    ],
)
def test_what_is_not_known_or_not_possible_is_said(line: str, said: str) -> None:
    assert said in judge(line, gpu="h100").to_text(400)


def test_which_gpu_is_asked_for() -> None:
    a = judge("vllm serve Qwen/Qwen3-8B")
    assert "nothing says which GPU it runs on" in a.to_text(200)
    assert a.judged[0].starts is None
    h200 = Fleet.model_validate({"name": "f", "pools": [{"name": "big", "gpu": "h200-sxm", "nodes": 2}]})
    assert judge("vllm serve Qwen/Qwen3-8B", fleet=h200).judged[0].gpu == "h200-sxm"
    elsewhere = replace(read_argv("vllm serve Qwen/Qwen3-8B"), gpu="l40s")
    assert "which fleet f does not have (it has h200-sxm)" in assess([elsewhere], fleet=h200).to_text(200)


def test_dense_data_parallelism_is_copies() -> None:
    asked = intent("Qwen/Qwen3-8B", rate="10/s", slo={"itl": "100ms"})
    one = judge("vllm serve Qwen/Qwen3-8B -dp 2 --max-model-len 8192", replicas=2, asked=asked, gpu="h100").judged[0]
    two = judge("vllm serve Qwen/Qwen3-8B --max-model-len 8192", replicas=4, asked=asked, gpu="h100").judged[0]
    assert one.capacity_rps == pytest.approx(two.capacity_rps)
    assert [f.value_s for f in one.figures] == pytest.approx([f.value_s for f in two.figures])


def test_more_replicas_never_worsen_a_figure() -> None:
    asked = intent()
    figures = [
        {f.metric: f.value_s for f in judge(f"{CHAT} --max-num-batched-tokens 1024", replicas=n, asked=asked, gpu="h100").judged[0].figures}
        for n in (10, 14, 24)
    ]  # fmt: skip
    for a, b in itertools.pairwise(figures):
        assert all(b[m] <= a[m] * 1.001 for m in ("ttft.p95", "itl.mean"))


def test_prefill_and_decode_are_judged_together() -> None:
    asked = intent(slo={"itl": "50ms", "ttft.p95": "2s"}, rate="6/s")
    fleet = Fleet.model_validate(
        {"name": "f", "pools": [{"name": "h100", "gpu": "h100-sxm", "nodes": 8, "rdma": True}]}
    )
    base = CHAT + " --max-num-batched-tokens 8192 --kv-transfer-config "
    found: list[Found] = []
    for role, kv, replicas in (("prefill", "kv_producer", 6), ("decode", "kv_consumer", 3)):
        one = read_argv(base + f'\'{{"kv_connector":"NixlConnector","kv_role":"{kv}"}}\'')
        found.append(replace(one, name=f"chat-{role}", replicas=replicas))
    a = assess(found, intent=asked, fleet=fleet)
    p, d = a.judged
    assert {f.metric for f in p.figures} == {"ttft.p95", "ttft.p99"}
    assert "itl.p99" in {f.metric for f in d.figures}
    no_rdma = fleet.model_copy(update={"pools": (fleet.pools[0].model_copy(update={"rdma": False}),)})
    assert "need RDMA" in assess(found, intent=asked, fleet=no_rdma).to_text(200)
    assert "0 prefill and 1 decode deployments" in assess(found[1:], intent=asked, fleet=fleet).to_text(200)


def test_services_that_nothing_serves_are_named() -> None:
    two = Intent.model_validate(
        {
            "services": [
                {"name": "chat", "model": "llama-3.3-70b", "traffic": {"rate": "1/s", "input": 10, "output": 10}},
                {"name": "other", "model": "Qwen/Qwen3-8B", "traffic": {"rate": "1/s", "input": 10, "output": 10}},
            ]
        }
    )
    a = judge("vllm serve Qwen/Qwen3-8B", asked=two, gpu="h100")
    assert a.idle_services == ("chat",)
    assert a.judged[0].service == "other"
    assert "chat: nothing that was read serves it" in a.to_text()


def test_baseline_speaks_the_solvers_keys() -> None:
    fleet = Fleet.model_validate({"name": "f", "pools": [{"name": "h100-prod", "gpu": "h100-sxm", "nodes": 8}]})
    found = [replace(read_argv(f"{CHAT} --max-num-batched-tokens 1024"), name="chat", replicas=9)]
    (pool,) = as_baseline(found, intent=intent(), fleet=fleet)
    assert pool.key == "h100-prod h100-sxm tp4 fp8 kv-bf16 b1024 s96 aggregated"
    assert (pool.service, pool.replicas, pool.gpus_per_replica) == ("chat", 9, 4)
    with pytest.raises(UserError, match="number of replicas is not said"):
        as_baseline([replace(found[0], replicas=None)], intent=intent(), fleet=fleet)


def test_forms() -> None:
    a = judge(f"{CHAT} --max-num-batched-tokens 8192", replicas=24, asked=intent(), gpu="h100")
    for width in (60, 100):
        long = [line for line in a.to_text(width).splitlines() if len(line) > width]
        assert not long, long
    data = json.loads(a.to_json())["deployments"][0]
    assert data["tp"] == 4
    assert data["starts"] is True
    assert "| itl.p99 | 50ms |" in a.to_markdown()
    manifest = read_files({"a.yaml": "kind: Deployment\nmetadata: {name: x}\nspec: {replicas: 1, template: {spec: {containers: [{name: c, image: 'a|b', resources: {limits: {nvidia.com/gpu: 1}}}]}}}\n"})  # fmt: skip
    assert "a\\|b" in assess(manifest).to_markdown()
