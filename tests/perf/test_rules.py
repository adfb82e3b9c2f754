"""What divides by what, where a replica may stand, and which formats run: each with a case that passes and one that
does not, and the reference table of tensor-parallel sizes."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog.gpus import gpus
from planner.catalog.quantsupport import support, table, version_key
from planner.data import catalog_data
from planner.perf.arch import Shape
from planner.perf.deployment import Deployment
from planner.perf.rules import (
    DIVISIONS,
    check_division,
    check_shape,
    kv_support,
    quant_support,
    supported_formats,
    valid_dcps,
    valid_tps,
)
from tests.perf.helpers import PLANS, arch, deploy, gpu

BUNDLED = sorted(p.stem.replace("--", "/", 1) for p in catalog_data("models").glob("*.json"))


def codes(d: Deployment) -> set[str]:
    return {r.code for r in check_shape(d)}


def only(d: Deployment) -> str:
    (refusal,) = check_shape(d)
    return f"{refusal.code}: {refusal}"


# ---------------------------------------------------------------- division


@pytest.mark.parametrize(
    ("model", "plan", "expected"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "bf16", (1, 2, 4)),  # 28 heads, 4 KV heads: 7 divides heads but not KV heads
        ("microsoft/phi-4", "bf16", (1, 2, 5, 10, 20, 40)),
        ("Qwen/Qwen3-30B-A3B", "fp8-block", (1, 2)),  # experts 768 wide
        ("Qwen/Qwen3-235B-A22B", "fp8-block", (1, 2, 4)),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "fp8-block", (1, 2, 4)),
        ("MiniMaxAI/MiniMax-M2", "fp8-block", (1, 2, 4)),
        ("deepseek-ai/DeepSeek-V3", "fp8-block", (1, 2, 4, 8, 16)),
        ("openai/gpt-oss-120b", "mxfp4-experts", (1, 2, 4, 8, 16, 32, 64)),
        ("meta-llama/Meta-Llama-3.1-70B", "bf16", (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_valid_tensor_parallel_sizes(model: str, plan: str, expected: tuple[int, ...]) -> None:
    found = valid_tps(arch(model), PLANS[plan])
    assert tuple(tp for tp in found if tp in (1, 2, 4, 8, 16, 32, 64) or tp in expected) == expected
    assert set(expected) <= set(found)


def test_a_refusal_names_its_rule_and_what_would_do() -> None:
    d = deploy("Qwen/Qwen3-235B-A22B", "fp8-block", tp=8)
    assert only(d) == (
        "fp8-block: the FP8 checkpoint has blocks of 128, and expert gate_proj over 8 ranks leaves 192 of 1536; "
        "would do: tp 1, 2, 4, or expert parallelism"
    )
    assert check_shape(replace(d, shape=Shape(tp=8, ep=True))) == ()
    heads = check_shape(deploy("Qwen/Qwen2.5-7B-Instruct", tp=8))
    assert str(heads[0]) == "28 attention heads do not divide by tp 8; would do: tp 1, 2, 4"


@pytest.mark.parametrize(
    ("code", "bad", "good"),
    [
        ("heads", deploy("Qwen/Qwen2.5-7B-Instruct", tp=8), deploy("Qwen/Qwen2.5-7B-Instruct", tp=4)),
        ("kv-heads", deploy("microsoft/phi-4", tp=4), deploy("microsoft/phi-4", tp=2)),
        (
            "state-heads",
            deploy("nvidia/NVIDIA-Nemotron-Nano-9B-v2", tp=16, on=gpu("gb200-nvl72")),
            deploy("nvidia/NVIDIA-Nemotron-Nano-9B-v2", tp=8),
        ),
        (
            "width",
            deploy("google/gemma-4-26B-A4B", tp=3),
            deploy("google/gemma-4-26B-A4B", tp=2),
        ),
        ("fp8-block", deploy("Qwen/Qwen3-30B-A3B", "fp8-block", tp=4), deploy("Qwen/Qwen3-30B-A3B", "fp8", tp=4)),
        ("group-size", deploy("Qwen/Qwen2.5-72B-Instruct", "int4", tp=2), deploy("Qwen/Qwen3-32B", "int4", tp=2)),
        (
            "experts",
            deploy("Qwen/Qwen3-8B", tp=2, ep=True),
            deploy("Qwen/Qwen3-30B-A3B", tp=2, ep=True),
        ),
        ("tp-link", deploy("meta-llama/Meta-Llama-3.1-70B", tp=16), deploy("meta-llama/Meta-Llama-3.1-70B", tp=8)),
        ("pp-layers", deploy("Qwen/Qwen3-0.6B", pp=29), deploy("Qwen/Qwen3-0.6B", pp=28)),
        (
            "pp-support",
            deploy("google/gemma-2-9b-it", pp=2, engine="sglang"),
            deploy("google/gemma-2-9b-it", pp=2),
        ),
        ("precision", deploy("Qwen/Qwen3-8B", "int8", "b300-sxm"), deploy("Qwen/Qwen3-8B", "int8", "h100-sxm")),
        (
            "kv-dtype",
            deploy("Qwen/Qwen3-8B", on="a100-80-sxm", kv="fp8", engine="sglang"),
            deploy("Qwen/Qwen3-8B", on="a100-80-sxm", kv="fp8"),
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_every_rule_has_a_case_it_refuses_and_one_it_lets_through(code: str, bad: Deployment, good: Deployment) -> None:
    assert code in codes(bad)
    assert code not in codes(good)
    for refusal in check_shape(bad):
        assert refusal.message
        assert refusal.would_do


def test_the_rules_of_division_are_these() -> None:
    assert [r.code for r in DIVISIONS] == [
        "experts", "heads", "kv-heads", "state-heads", "width", "fp8-block", "group-size",
    ]  # fmt: skip


def test_expert_and_attention_data_parallelism() -> None:
    assert "no experts for attention data parallelism" in only(deploy("Qwen/Qwen3-8B", dp=8))
    assert "8 experts do not fill 16" in only(
        deploy("mistralai/Mixtral-8x7B-v0.1", tp=8, dp=2, ep=True, on=rdma("h100-sxm"))
    )
    # vLLM deals 128 experts over 3 ranks, SGLang wants them even.
    shape = Shape(tp=1, dp=3, ep=True)
    a, w = arch("Qwen/Qwen3-30B-A3B"), PLANS["bf16"]
    assert not check_division(a, w, shape)
    assert {r.code for r in check_division(a, w, shape, engine="sglang")} == {"experts"}


def rdma(name: str) -> Any:
    return replace(gpu(name), rdma=True)


def test_ranks_that_exchange_tokens_across_nodes_need_rdma() -> None:
    wide = deploy("deepseek-ai/DeepSeek-V3", "fp8-block", dp=16, ep=True)
    assert codes(wide) == {"ep-link"}
    assert codes(replace(wide, hardware=rdma("h100-sxm"))) == set()
    # A rack is one domain: 32 ranks of GB200 need no RDMA.
    assert codes(deploy("deepseek-ai/DeepSeek-V3", "fp8-block", "gb200-nvl72", dp=32, ep=True)) == set()


def test_decode_context_parallel_sizes() -> None:
    assert valid_dcps(arch("deepseek-ai/DeepSeek-V3"), tp=8) == (1, 2, 4, 8)
    assert valid_dcps(arch("Qwen/Qwen3-235B-A22B"), tp=8) == (1, 2)  # 4 KV heads: two copies each
    assert valid_dcps(arch("meta-llama/Meta-Llama-3.1-70B"), tp=8) == (1,)
    assert valid_dcps(arch("openai/gpt-oss-120b"), tp=16) == (1,)  # windows
    assert valid_dcps(arch("Qwen/Qwen3-Next-80B-A3B-Instruct"), tp=8) == (1,)


@given(st.sampled_from(BUNDLED), st.sampled_from(sorted(PLANS)))
def test_what_divides_for_a_size_divides_for_the_sizes_that_are_offered(model: str, plan: str) -> None:
    a, w = arch(model), PLANS[plan]
    for tp in valid_tps(a, w, limit=16):
        assert check_division(a, w, Shape(tp=tp)) == ()
    for refusal in check_division(a, w, Shape(tp=7)):
        assert refusal.would_do


# ---------------------------------------------------------------- the reference table

# (what, why) of rows where the rules refuse what the table allows: nothing is allowed that it refuses.
MORE_RANKS_THAN_EXPERTS = {
    "mistralai/Mixtral-8x7B-v0.1",
    "mistralai/Mixtral-8x22B-v0.1",
    "microsoft/Phi-3.5-MoE-instruct",
}
UNEVEN_EXPERTS = {
    "google/gemma-4-26B-A4B",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "openai/gpt-oss-120b",
    "openai/gpt-oss-20b",
}
"""An expert width that is no multiple of 128: vLLM's check of fused experts refuses it even unsplit."""
SHARED_EXPERT = {"ibm-granite/granite-4.0-h-small", "ibm-granite/granite-4.0-h-tiny"}
"""The shared expert is split by TP with expert parallelism too; the table looks at routed experts only."""
WIDTH_BY_LAYER = {"nvidia/Llama-3_3-Nemotron-Super-49B-v1"}
"""Layers of many widths; the table takes one."""


def test_agrees_with_the_reference_table(shared: Path) -> None:
    explained = MORE_RANKS_THAN_EXPERTS | UNEVEN_EXPERTS | SHARED_EXPERT | WIDTH_BY_LAYER
    differs: dict[str, list[str]] = defaultdict(list)
    rows = 0
    with (shared / "facts/tp_table.csv").open() as f:
        for row in csv.DictReader(f):
            if row["hf_id"] not in BUNDLED:
                continue
            rows += 1
            a, tp = arch(row["hf_id"]), int(row["tp"])
            for column, plan, ep in (
                ("ok_bf16", "bf16", False),
                ("ok_fp8block", "fp8-block", False),
                ("ok_fp8block_with_ep", "fp8-block", True),
            ):
                ok = not check_division(a, PLANS[plan], Shape(tp=tp, ep=ep))
                if ok == (row[column] == "True"):
                    continue
                assert not ok, f"{row['hf_id']} tp {tp} {column}: allowed against the table"
                differs[row["hf_id"]].append(f"{column} tp {tp}")
                assert column != "ok_bf16", f"{row['hf_id']} tp {tp}"
    assert rows >= 1400
    assert set(differs) <= explained, {m: d for m, d in differs.items() if m not in explained}
    for model in MORE_RANKS_THAN_EXPERTS | SHARED_EXPERT | UNEVEN_EXPERTS:
        assert all("with_ep" in d for d in differs[model]), differs[model]


# ---------------------------------------------------------------- formats


SUPPORT: list[tuple[str, str, str, str, bool, bool]] = [
    ("vllm", "0.33.0", "h100-sxm", "fp8", True, True),
    ("vllm", "0.33.0", "a100-80-sxm", "fp8", True, False),
    ("vllm", "0.33.0", "l40s", "fp8", True, True),
    ("vllm", "0.33.0", "h100-sxm", "nvfp4", True, False),
    ("vllm", "0.33.0", "b200-sxm", "nvfp4", True, True),
    ("vllm", "0.33.0", "rtx-pro-6000-server", "nvfp4", True, True),
    ("vllm", "0.33.0", "a100-80-sxm", "int8", True, True),
    ("vllm", "0.33.0", "b200-sxm", "int8", False, False),
    ("vllm", "0.33.0", "b300-sxm", "int8", False, False),
    ("vllm", "0.33.0", "gb300-nvl72", "int8", False, False),
    ("vllm", "0.33.0", "mi300x", "fp8", True, True),
    ("vllm", "0.33.0", "mi300x", "nvfp4", False, False),
    ("vllm", "0.33.0", "mi300x", "int8", False, False),
    ("vllm", "0.33.0", "mi355x", "mxfp4", True, True),
    ("vllm", "0.33.0", "mi300x", "mxfp4", True, False),
    ("vllm", "0.33.0", "mi250x", "fp8", False, False),
    ("vllm", "0.33.0", "h100-sxm", "mxfp4", True, False),
    ("vllm", "0.33.0", "h100-sxm", "int4", True, False),
    ("vllm", "0.33.0", "gaudi3", "bf16", False, False),
    ("vllm", "0.33.0", "tpu-v6e", "bf16", False, False),
    ("sglang", "0.5.23", "a100-80-sxm", "fp8", True, False),
    ("sglang", "0.5.5", "a100-80-sxm", "fp8", False, False),
    ("vllm", "0.11.0", "a100-80-sxm", "fp8", True, False),
    ("transformers", "4.44.0", "a100-80-sxm", "fp8", False, False),
    ("transformers", "4.44.0", "h100-sxm", "fp8", True, True),
]


@pytest.mark.parametrize("case", SUPPORT, ids=lambda c: " ".join(c[:4]))
def test_support_depends_on_engine_version_gpu_and_format(case: tuple[str, str, str, str, bool, bool]) -> None:
    engine, version, on, precision, supported, native = case
    found = quant_support(engine, version, gpu(on) if on != "tpu-v6e" else tpu(), precision)
    assert (found.supported, found.native) == (supported, native)
    assert found.reason
    assert found.source


def tpu() -> Any:
    return replace(gpu("gaudi3"), gpu_id="tpu-v6e", vendor="google", arch="TPU v6e")


def test_native_formats_have_a_rate_in_the_catalogue() -> None:
    """What the support table calls native must be a format whose rate the GPU's file gives."""
    rate = {"bf16": "bf16", "fp8": "fp8", "int8": "int8", "nvfp4": "fp4", "mxfp4": "fp4", "mxfp8": "fp8"}
    for g in gpus().values():
        if g.memory.reported is None:
            continue
        hw = gpu(g.id)
        for engine, version in (("vllm", "0.33.0"), ("sglang", "0.5.23")):
            for precision, number in rate.items():
                if quant_support(engine, version, hw, precision).native:
                    assert hw.peak(number) is not None, f"{engine} {precision} on {g.id}"


def test_formats_that_would_do_come_native_first() -> None:
    assert supported_formats("vllm", "0.33.0", gpu("a100-80-sxm")) == (
        "bf16", "int8", "fp8", "int4", "nvfp4", "mxfp4", "mxfp8",
    )  # fmt: skip
    assert supported_formats("vllm", "0.33.0", gpu("mi300x"), "kv") == ("bf16", "fp8")


def test_cache_formats_by_gpu() -> None:
    assert kv_support("vllm", "0.33.0", gpu("a100-80-sxm"), "fp8").supported
    assert not kv_support("vllm", "0.33.0", gpu("a100-80-sxm"), "fp8").native
    assert not kv_support("sglang", "0.5.23", gpu("a100-80-sxm"), "fp8").supported
    assert not kv_support("vllm", "0.33.0", gpu("mi250x"), "fp8").supported


def test_a_version_the_table_does_not_reach_is_not_supported() -> None:
    found = quant_support("vllm", "0.2.0", gpu("h100-sxm"), "bf16")
    assert not found.supported
    assert "vllm 0.2.0 is not known to run on nvidia GPUs" in found.reason


def test_the_newest_entry_that_is_not_newer_holds() -> None:
    assert version_key("0.33.0") == (0, 33, 0)
    assert version_key("v0.9.2.post1") == (0, 9, 2)
    a100 = {"vendor": "nvidia", "arch": "Ampere", "capability": (8, 0), "kind": "weights", "precision": "fp8"}
    assert support(engine="sglang", version="0.5.22", **a100).supported is False  # type: ignore[arg-type]
    assert support(engine="sglang", version="0.6.0", **a100).supported is True  # type: ignore[arg-type]
    assert all(e.weights["bf16"].source for e in table().entries)
