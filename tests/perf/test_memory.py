"""Memory per GPU and cache capacity, held against what engines logged and against their own rules."""

from __future__ import annotations

import csv
import statistics
import timeit
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import UserError
from planner.perf.arch import Shape
from planner.perf.deployment import Deployment
from planner.perf.kvpool import Blocks, Slots, vllm_groups
from planner.perf.memory import (
    Memory,
    default_utilization,
    kv_tokens_from_bytes,
    memory,
    mxfp4_padding_by_stage,
    sglang_fraction,
    torch_bytes,
)
from planner.perf.quantities import weight_bytes_per_gpu
from tests.perf.helpers import GIB, arch, deploy, gpu

TABLE = yaml.safe_load((Path(__file__).parent.parent / "cases" / "kv_capacity.yaml").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = TABLE["rows"]


def row_deployment(row: dict[str, Any]) -> Deployment:
    on = gpu(row["gpu"], torch_gib=row.get("torch_gib"))
    return deploy(
        row["model"], row["plan"], on, tp=row.get("tp", 1), ep=row.get("ep", False), kv=row.get("kv", "bf16"),
        engine=row["engine"], version=row["version"],
    )  # fmt: skip


def row_memory(row: dict[str, Any]) -> Memory:
    return memory(
        row_deployment(row),
        max_num_batched_tokens=row["batched_tokens"],
        max_num_seqs=row["seqs"],
        max_model_len=row["max_model_len"],
        utilization=row["memory"]["utilization"],
    )


def row_error(row: dict[str, Any]) -> float:
    """Predicted over logged capacity, minus one: tokens where they were logged, else gigabytes."""
    m = row_memory(row)
    logged = row["logged"]
    if "tokens" in logged:
        return m.kv_tokens / logged["tokens"] - 1
    return m.kv_bytes / GIB / logged["kv_gib"] - 1


BOTH = [r for r in ROWS if "tokens" in r["logged"] and "kv_gib" in r["logged"]]
KNOWN = [r for r in ROWS if "memory" in r]
STARTED = [r for r in KNOWN if not r["logged"].get("fails")]
FAILED = [r for r in ROWS if r["logged"].get("fails")]


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [r["id"] for r in rows]


@pytest.mark.parametrize("row", BOTH, ids=ids(BOTH))
def test_logged_gigabytes_become_the_logged_tokens(row: dict[str, Any]) -> None:
    tokens = kv_tokens_from_bytes(
        row_deployment(row),
        row["logged"]["kv_gib"] * GIB,
        max_model_len=row["max_model_len"],
        max_num_batched_tokens=row["batched_tokens"],
    )
    allowed = row.get("tokens_percent", 1.0)
    assert "tokens_percent" not in row or row["tokens_reason"]
    assert abs(tokens / row["logged"]["tokens"] - 1) * 100 <= allowed


@pytest.mark.parametrize("row", STARTED, ids=ids(STARTED))
def test_capacity_from_the_gpus_memory(row: dict[str, Any]) -> None:
    error = row_error(row)
    assert abs(error) <= 0.12 or row["memory"].get("reason"), f"{error:+.1%} without a named reason"
    # Whatever the reason, the cache is predicted within 4% of the GPU's memory.
    m = row_memory(row)
    if "kv_gib" in row["logged"] and "tokens_percent" not in row:
        logged_gib = row["logged"]["kv_gib"]
        assert abs(m.kv_bytes / GIB - logged_gib) <= 0.04 * m.total_bytes / GIB


def test_capacity_from_the_gpus_memory_is_right_in_the_middle() -> None:
    errors = [abs(row_error(r)) for r in STARTED if not r["memory"].get("inferred")]
    assert len(errors) >= 8
    assert statistics.median(errors) <= 0.05


@pytest.mark.parametrize("row", FAILED, ids=ids(FAILED))
def test_starts_that_failed_are_predicted_to_fail(row: dict[str, Any]) -> None:
    d = row_deployment(row)
    tokens = row["max_model_len"]
    given_bytes = max(0.0, row["logged"]["kv_gib"] * GIB)
    if given_bytes:
        # From the logged gigabytes: one request of max_model_len needs more.
        held = kv_tokens_from_bytes(d, given_bytes, max_model_len=tokens, max_num_batched_tokens=row["batched_tokens"])
        assert held < tokens
    if "memory" in row:
        m = row_memory(row)
        assert not m.fits
        assert m.reason


def test_fp8_cache_holds_twice_the_tokens() -> None:
    """vLLM 0.26 on A100: 389,872 tokens in bf16, 779,760 in FP8 (vllm-project/vllm issue 42058)."""
    assert abs(779760 / 389872 - 2) < 1e-3
    half, full = deploy("Qwen/Qwen3-8B"), deploy("Qwen/Qwen3-8B", kv="fp8")
    one, two = (kv_tokens_from_bytes(d, 50 * GIB, max_model_len=32768) for d in (half, full))
    assert two == pytest.approx(2 * one, abs=32)


def test_weights_per_gpu_of_a_405b() -> None:
    """vLLM logged 57.75 GiB per GPU for Llama-3.1-405B-Instruct-FP8 on 8 H100 (issue 6746): that checkpoint keeps
    attention and some layers in bf16, so the all-FP8 figure is a lower bound."""
    d = deploy("meta-llama/Meta-Llama-3.1-405B", "fp8", tp=8)
    assert 46 < weight_bytes_per_gpu(d.arch, d.weights, d.shape) / GIB < 57.75


def test_mxfp4_experts_are_padded_as_vllm_loads_them() -> None:
    """65.97 GiB for gpt-oss-120b, 13.72 for 20b, against 60.8 and 12.8 in the checkpoint."""
    for model, logged in (("openai/gpt-oss-120b", 65.9651), ("openai/gpt-oss-20b", 13.72)):
        d = deploy(model, "mxfp4-experts")
        m = memory(d, max_num_batched_tokens=2048, max_num_seqs=64, max_model_len=4096)
        assert m.weights_bytes / GIB == pytest.approx(logged, rel=0.005)
        assert sum(mxfp4_padding_by_stage(d)) / GIB > 0.8
    assert sum(mxfp4_padding_by_stage(deploy("Qwen/Qwen3-30B-A3B", "fp8"))) == 0


def test_what_torch_sees() -> None:
    for name, seen in (
        ("a10", 21.99),
        ("a100-40-sxm", 39.49),
        ("a100-80-sxm", 79.25),
        ("h100-sxm", 79.20),
        ("h200-sxm", 139.8),
        ("b200-sxm", 178.35),
    ):
        assert torch_bytes(gpu(name)) / GIB == pytest.approx(seen, abs=0.2)


# ---------------------------------------------------------------- activations and graphs


@pytest.mark.parametrize(
    ("model", "measured_gib"),
    [
        ("meta-llama/Meta-Llama-3.1-8B", 1.89),
        ("Qwen/Qwen2.5-7B-Instruct", 2.25),
        ("Qwen/Qwen3-8B", 2.21),
        ("microsoft/phi-4", 1.52),
        ("Qwen/Qwen3-30B-A3B", 2.68),
        ("google/gemma-2-9b-it", 3.65),
    ],
)
def test_activation_peak_against_measurements(model: str, measured_gib: float) -> None:
    """Peaks that llm-d-planner 0.3.3 measured with vLLM 0.19 on H100: 1024 sequences, 8192 tokens."""
    m = memory(deploy(model, version="0.19.0"), max_num_batched_tokens=8192, max_num_seqs=1024, max_model_len=8192)
    assert m.activation_bytes / GIB == pytest.approx(measured_gib, abs=0.25)


def test_activation_peak_of_a_long_prefill() -> None:
    """Llama-3.1-8B on an RTX 3090 without chunked prefill: 2.07 GiB at 20,000 tokens, 2.99 at 29,000 (issue 10517)."""
    for tokens, logged in ((20000, 2.07), (29000, 2.99)):
        d = deploy("meta-llama/Meta-Llama-3.1-8B", on=gpu("a10", torch_gib=23.58), version="0.6.4")
        m = memory(d, max_num_batched_tokens=tokens, max_num_seqs=256, max_model_len=tokens, utilization=0.9)
        assert m.activation_bytes / GIB == pytest.approx(logged, abs=0.05)


def test_attention_dp_makes_expert_workspaces_large_except_where_kernels_are_fused() -> None:
    caps = {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "max_model_len": 8192}
    hopper = memory(deploy("deepseek-ai/DeepSeek-V3", "fp8-block", "h200-sxm", dp=8, ep=True), **caps)
    blackwell = memory(deploy("deepseek-ai/DeepSeek-V3", "fp8-block", "b200-sxm", dp=8, ep=True), **caps)
    assert hopper.activation_bytes > 5 * blackwell.activation_bytes
    few = memory(
        deploy("deepseek-ai/DeepSeek-V3", "fp8-block", "h200-sxm", dp=8, ep=True),
        **(caps | {"max_num_batched_tokens": 1024}),
    )
    assert few.kv_tokens > hopper.kv_tokens


# ---------------------------------------------------------------- vLLM's groups


def test_hybrid_blocks_are_as_large_as_a_state() -> None:
    """vLLM chose 1568 tokens for Qwen3.8-27B at TP 2 with an FP8 cache: 2.31 requests of 131,072 in 4.99 GiB."""
    groups = vllm_groups(arch("Qwen/Qwen3.8-27B"), "fp8", Shape(tp=2), state_blocks=2)
    assert [g.kind for g in groups].count("state") == 3
    assert [g.kind for g in groups].count("full") == 1
    (full,) = (g for g in groups if g.kind == "full")
    assert full.block_tokens == 1568
    assert len({g.bytes for g in groups}) == 1
    count = int(4.99 * GIB // full.bytes)
    assert count / sum(g.blocks(131072, 16384) for g in groups) == pytest.approx(2.31, abs=0.01)


@pytest.mark.parametrize(("max_model_len", "tokens"), [(8192, 290979), (32768, 387217), (131072, 517297)])
def test_windowed_layers_hold_tokens_in_flight(max_model_len: int, tokens: int) -> None:
    """vLLM 0.33's own allocator: gpt-oss-120b in 20 GiB with 8192 batched tokens, by max_model_len."""
    d = deploy("openai/gpt-oss-120b", "mxfp4-experts")
    found = kv_tokens_from_bytes(d, 20 * GIB, max_model_len=max_model_len, max_num_batched_tokens=8192)
    assert found == pytest.approx(tokens, rel=0.002)


def test_fewer_batched_tokens_leave_room_in_windowed_models() -> None:
    d = deploy("openai/gpt-oss-120b", "mxfp4-experts")
    found = kv_tokens_from_bytes(d, 20 * GIB, max_model_len=131072, max_num_batched_tokens=2048)
    assert found == pytest.approx(564274, rel=0.002)


def test_compressed_caches_form_five_groups() -> None:
    """vLLM 0.22 asked for 6.66 GiB for one request of 30,000 tokens of DeepSeek-V4-Flash, 5.44 for 13,528."""
    groups = vllm_groups(arch("deepseek-ai/DeepSeek-V4-Flash"), "fp8", Shape(tp=2), state_blocks=1)
    assert len(groups) == 5
    block = max(g.bytes for g in groups)
    for tokens, gib in ((30000, 6.66), (13528, 5.44)):
        assert block * sum(g.blocks(tokens, 16384) for g in groups) / GIB == pytest.approx(gib, rel=0.06)


def test_latent_caches_do_not_shrink_with_tp_but_with_attention_dp() -> None:
    caps = {"max_num_batched_tokens": 1024, "max_num_seqs": 64, "max_model_len": 8192}
    one = deploy("deepseek-ai/DeepSeek-V3", "fp8-block", "h200-sxm", tp=8)
    assert kv_tokens_from_bytes(one, 10 * GIB, max_model_len=8192, first_rank=False) == pytest.approx(
        10 * GIB / 70272, rel=0.001
    )
    shared = memory(one, **caps)
    apart = memory(deploy("deepseek-ai/DeepSeek-V3", "fp8-block", "h200-sxm", dp=8, ep=True), **caps)
    # Per rank fewer tokens (attention weights stand on every rank), over eight ranks several times more.
    assert 2.5 * shared.kv_tokens < 8 * apart.kv_tokens


def test_pipeline_stages_split_the_cache_and_the_fullest_decides() -> None:
    caps = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "max_model_len": 8192}
    whole = memory(deploy("meta-llama/Meta-Llama-3.1-70B", "fp8", tp=2), **caps)
    cut = memory(deploy("meta-llama/Meta-Llama-3.1-70B", "fp8", tp=2, pp=2), **caps)
    assert cut.kv_tokens > 2 * whole.kv_tokens
    assert cut.weights_bytes < 0.6 * whole.weights_bytes


# ---------------------------------------------------------------- SGLang and TensorRT-LLM


SGLANG_DEFAULTS: list[tuple[str, str, dict[str, Any], int, int, Any, float]] = [
    ("meta-llama/Meta-Llama-3.1-8B", "h100-sxm", {}, 8192, 256, "aggregated", 0.83),
    ("meta-llama/Meta-Llama-3.1-70B", "h100-sxm", {"tp": 8}, 8192, 512, "aggregated", 0.812),
    ("meta-llama/Meta-Llama-3.1-70B", "h200-sxm", {"tp": 8}, 8192, 512, "aggregated", 0.893),
    ("deepseek-ai/DeepSeek-V3", "h200-sxm", {"tp": 8}, 8192, 512, "aggregated", 0.886),
    ("deepseek-ai/DeepSeek-V3", "b200-sxm", {"tp": 8}, 16384, 512, "aggregated", 0.844),
    ("meta-llama/Meta-Llama-3.1-8B", "b200-sxm", {}, 16384, 512, "aggregated", 0.854),
    ("meta-llama/Meta-Llama-3.1-8B", "rtx-4090", {}, 4096, 48, "aggregated", 0.704),
    ("meta-llama/Meta-Llama-3.1-8B", "l40s", {}, 4096, 32, "aggregated", 0.843),
    ("deepseek-ai/DeepSeek-V3", "h200-sxm", {"dp": 8}, 8192, 512, "aggregated", 0.758),
    ("deepseek-ai/DeepSeek-V3", "h200-sxm", {"tp": 8}, 8192, 512, "prefill", 0.893),
    ("deepseek-ai/DeepSeek-V3", "h200-sxm", {"tp": 8}, 8192, 512, "decode", 0.929),
    ("meta-llama/Meta-Llama-3.1-70B", "h100-sxm", {"tp": 4, "pp": 2}, 8192, 512, "aggregated", 0.818),
    ("Qwen/Qwen3-235B-A22B", "h100-sxm", {"tp": 4}, 8192, 512, "aggregated", 0.819),
    ("Qwen/Qwen3-235B-A22B", "h100-sxm", {"tp": 4, "ep": True}, 8192, 64, "aggregated", 0.83),
]


@pytest.mark.parametrize("case", SGLANG_DEFAULTS, ids=lambda c: f"{c[0].split('/')[1]} {c[1]} {c[5]}")
def test_sglangs_default_fraction(case: tuple[str, str, dict[str, Any], int, int, Any, float]) -> None:
    """What SGLang 0.5.23 itself resolves, run on a CPU machine with a faked GPU."""
    model, gpu_id, layout, chunk, largest, role, fraction = case
    d = replace(deploy(model, "bf16", gpu_id, engine="sglang", **layout), role=role)
    assert sglang_fraction(d, chunk_tokens=chunk, largest_graph=largest) == fraction


def test_sglang_shares_memory_between_states_and_cache() -> None:
    d = deploy("Qwen/Qwen3-Next-80B-A3B-Instruct", "fp8", "h100-sxm", tp=2, engine="sglang")
    m = memory(d, max_num_batched_tokens=8192, max_num_seqs=64, max_model_len=8192)
    pool = m.pool
    assert isinstance(pool, Slots)
    assert pool.states < 1e4
    assert m.max_sequences(100) == pool.states / 3
    assert m.max_sequences(60000) == pytest.approx(pool.full_tokens / 60000)


def test_sglang_refuses_a_fraction_that_leaves_no_activations() -> None:
    d = deploy("meta-llama/Meta-Llama-3.1-8B", engine="sglang")
    m = memory(d, max_num_batched_tokens=8192, max_num_seqs=256, max_model_len=8192, utilization=0.999)
    assert not m.fits
    assert "for activations" in m.reason


def test_trtllm_keeps_nine_tenths_of_what_is_free() -> None:
    d = deploy("meta-llama/Meta-Llama-3.1-8B", engine="trtllm")
    m = memory(d, max_num_batched_tokens=8192, max_num_seqs=256, max_model_len=8192)
    assert m.kv_bytes == pytest.approx(0.9 * (m.total_bytes - m.weights_bytes - m.activation_bytes - m.overhead_bytes))
    assert m.kv_tokens % 32 == 0


# ---------------------------------------------------------------- the interface


def test_defaults_and_refusals() -> None:
    assert default_utilization(deploy("Qwen/Qwen3-8B")) == 0.92
    assert default_utilization(deploy("Qwen/Qwen3-8B", version="0.10.0")) == 0.9
    m = memory(deploy("Qwen/Qwen3-8B"), max_num_batched_tokens=8192, max_num_seqs=256, max_model_len=8192)
    assert m.fits
    assert m.reason == ""
    assert "vllm 0.33.0" in m.source
    assert m.fits_one(40960)
    too_much = memory(
        deploy("Qwen/Qwen3-8B"), max_num_batched_tokens=8192, max_num_seqs=256, max_model_len=8192, utilization=0.999
    )
    assert not too_much.fits
    assert "free at start" in too_much.reason
    none = memory(
        deploy("meta-llama/Meta-Llama-3.1-70B"), max_num_batched_tokens=8192, max_num_seqs=256, max_model_len=8192
    )
    assert "no memory is left for the cache" in none.reason
    assert (none.kv_tokens, none.max_sequences(1000), none.longest_request(1000)) == (0, 0.0, 0)
    with pytest.raises(UserError, match="memory of engine 'tgi'"):
        memory(
            replace(deploy("Qwen/Qwen3-8B"), engine="tgi"), max_num_batched_tokens=1, max_num_seqs=1, max_model_len=1
        )
    with pytest.raises(UserError, match=r"memory of vllm 0\.1\.0"):
        memory(deploy("Qwen/Qwen3-8B", version="0.1.0"), max_num_batched_tokens=1, max_num_seqs=1, max_model_len=1)


def test_a_measured_checkpoint_size_beats_the_formula() -> None:
    plain = deploy("Qwen/Qwen3-8B", "fp8", tp=2)
    own = replace(plain, weights_bytes_measured=10e9)
    caps = {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "max_model_len": 8192}
    assert memory(own, **caps).weights_bytes == pytest.approx(5e9, rel=0.01)
    assert memory(own, **caps).kv_bytes != memory(plain, **caps).kv_bytes


SHAPES = st.sampled_from([Shape(1), Shape(2), Shape(4), Shape(8), Shape(4, pp=2), Shape(2, pp=4)])
MODELS = st.sampled_from(
    [
        "Qwen/Qwen3-8B",
        "openai/gpt-oss-120b",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "google/gemma-3-27b-it",
        "deepseek-ai/DeepSeek-V3",
    ]
)


@given(MODELS, SHAPES, st.integers(1, 64), st.sampled_from(["vllm", "sglang"]))
def test_a_larger_context_never_frees_memory(model: str, shape: Shape, thousands: int, engine: str) -> None:
    d = replace(deploy(model, "fp8", "h200-sxm", engine=engine), shape=shape)
    caps = {"max_num_batched_tokens": 2048, "max_num_seqs": 64}
    short = memory(d, max_model_len=1024 * thousands, **caps)
    long = memory(d, max_model_len=1024 * thousands + 4096, **caps)
    assert short.kv_bytes == long.kv_bytes
    assert short.fits or not long.fits
    n = 1024.0 * thousands
    assert short.max_sequences(n) >= short.max_sequences(n + 4096)


@given(MODELS, SHAPES, st.integers(1, 16), st.integers(1, 8))
def test_larger_caps_never_leave_more_cache(model: str, shape: Shape, kilotokens: int, seqs: int) -> None:
    d = replace(deploy(model, "fp8", "h200-sxm"), shape=shape)
    small = memory(d, max_num_batched_tokens=1024 * kilotokens, max_num_seqs=32 * seqs, max_model_len=8192)
    more_tokens = memory(d, max_num_batched_tokens=1024 * kilotokens + 512, max_num_seqs=32 * seqs, max_model_len=8192)
    more_seqs = memory(d, max_num_batched_tokens=1024 * kilotokens, max_num_seqs=32 * seqs + 32, max_model_len=8192)
    assert small.kv_bytes >= more_tokens.kv_bytes
    assert small.kv_bytes >= more_seqs.kv_bytes


@given(MODELS, st.sampled_from(["bf16", "fp8"]), SHAPES)
def test_the_parts_add_up(model: str, plan: str, shape: Shape) -> None:
    d = replace(deploy(model, plan, "h200-sxm"), shape=shape)
    m = memory(d, max_num_batched_tokens=4096, max_num_seqs=128, max_model_len=8192)
    parts = m.weights_bytes + m.activation_bytes + m.cudagraph_bytes + m.overhead_bytes
    left = m.usable_bytes - parts
    assert m.kv_bytes == pytest.approx(left * (0.99 if shape.tp > 1 and left > 0 else 1.0))
    assert m.total_bytes > m.usable_bytes
    assert isinstance(m.pool, Blocks)


def test_it_is_quick() -> None:
    d = deploy("openai/gpt-oss-120b", "mxfp4-experts")

    def ask() -> None:
        memory(d, max_num_batched_tokens=8192, max_num_seqs=256, max_model_len=32768)

    ask()
    best = min(timeit.repeat(ask, number=200, repeat=5)) / 200
    assert best < 200e-6  # 30 us on the machine it was written on; the bound only catches a lost cache


def test_every_row_of_the_reference_table_is_used_or_left_out_by_name(shared: Path) -> None:
    known = {r["source"] for r in ROWS} | {r["source"] for r in TABLE["left_out"]}
    with (shared / "measurements/kv_capacity_open.csv").open() as f:
        for row in csv.DictReader(f):
            url = row["source_url"]
            assert url in known or url.startswith("public file"), url
