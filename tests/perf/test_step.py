"""Step model: the pure roofline comes out exactly, the table stands for the model, and physics is monotone."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog.gpus import find_gpu
from planner.catalog.models import find_model
from planner.intent.fleet import GpuOverride
from planner.perf.arch import ModelArch, Shape
from planner.perf.calibration import Constants, calibration_for, ideal, release_date, textbook, years
from planner.perf.checkpoints import checkpoint_for, weight_plan
from planner.perf.collectives import allreduce, alltoall
from planner.perf.deployment import Deployment, hardware
from planner.perf.families import read_arch
from planner.perf.groups import operations
from planner.perf.quantities import layer_kv_bytes_per_token, linear_flop_per_token
from planner.perf.step import coefficients, smooth_max, step_s
from planner.perf.steptable import build_step_table
from planner.perf.table import chunk_pairs

ARCHS: dict[str, ModelArch] = {}
MODELS = (
    ("meta-llama/Llama-3.1-8B-Instruct", "bf16", 1),
    ("meta-llama/Llama-3.3-70B-Instruct", "fp8", 4),
    ("deepseek-ai/DeepSeek-R1", "fp8", 8),
    ("openai/gpt-oss-120b", "mxfp4", 2),
    ("Qwen/Qwen3.5-397B-A17B", "nvfp4", 4),
    ("zai-org/GLM-5", "fp8", 8),
)


def deployment(
    model: str,
    precision: str,
    tp: int = 1,
    *,
    gpu: str = "h100-sxm",
    engine: str = "vllm",
    pp: int = 1,
    dp: int = 1,
    ep: bool = False,
    bandwidth: float | None = None,
    kv: str = "bf16",
) -> Deployment:
    m = find_model(model)
    arch = ARCHS.setdefault(model, read_arch(m.config, m.id))
    hw = hardware(find_gpu(gpu), override=GpuOverride(hbm_bandwidth=f"{bandwidth / 1e12}TB/s") if bandwidth else None)
    plan = weight_plan(arch, checkpoint_for(m, precision))
    return Deployment(
        arch, plan, precision, kv, hw, Shape(tp=tp, pp=pp, dp=dp, ep=ep), engine, "0.19.0" if engine == "vllm" else ""
    )


def shipped(d: Deployment):
    return calibration_for(d.engine, d.engine_version, d.hardware)


# ---------------------------------------------------------------- the roofline


def test_ideal_step_is_bytes_over_bandwidth() -> None:
    d = deployment("meta-llama/Llama-3.1-8B-Instruct", "bf16")
    weights = sum(op.weight_bytes for op in operations(d).matrices)
    kv = 1000 * sum(g.count * layer_kv_bytes_per_token(g.mixer, "bf16") for g in d.arch.layers)
    assert step_s(d, ideal(), decode_seqs=1, context_tokens=1000) == pytest.approx((weights + kv) / 3.35e12, rel=1e-12)
    # Everything but the embedding table is read: 16.06 GB less 1.05 GB.
    assert weights == pytest.approx(15.01e9, rel=0.002)


def test_ideal_step_turns_compute_bound_at_the_ridge() -> None:
    d = deployment("meta-llama/Llama-3.1-8B-Instruct", "bf16")
    flop = linear_flop_per_token(d.arch)
    assert step_s(d, ideal(), decode_seqs=4096, context_tokens=0) == pytest.approx(4096 * flop / 989e12, rel=0.001)


def test_textbook_is_the_usual_estimate() -> None:
    d = deployment("meta-llama/Llama-3.1-8B-Instruct", "bf16")
    one = step_s(d, ideal(), decode_seqs=1, context_tokens=0)
    assert step_s(d, textbook(), decode_seqs=1, context_tokens=0) == pytest.approx(one / 0.8, rel=1e-9)


def test_tensor_parallel_shards_and_kv_heads_replicate() -> None:
    whole = operations(deployment("meta-llama/Llama-3.3-70B-Instruct", "fp8", 1))
    eighth = operations(deployment("meta-llama/Llama-3.3-70B-Instruct", "fp8", 8))

    def weights(o):
        return sum(x.weight_bytes for x in o.matrices)

    assert weights(eighth) == pytest.approx(weights(whole) / 8, rel=0.001)
    assert eighth.contexts[0].kv_bytes_per_token == pytest.approx(whole.contexts[0].kv_bytes_per_token / 8)
    # Eight KV heads over sixteen ranks: each rank still holds one.
    wide = operations(replace(deployment("meta-llama/Llama-3.3-70B-Instruct", "fp8", 8), shape=Shape(tp=16)))
    assert wide.contexts[0].kv_bytes_per_token == eighth.contexts[0].kv_bytes_per_token


def test_latent_cache_is_on_every_rank() -> None:
    one, eight = (operations(deployment("deepseek-ai/DeepSeek-R1", "fp8", tp)) for tp in (1, 8))
    assert one.contexts[0].kv_bytes_per_token == eight.contexts[0].kv_bytes_per_token
    assert eight.contexts[0].decode_flop_per_token == pytest.approx(one.contexts[0].decode_flop_per_token / 8)


def test_experts_are_read_as_far_as_the_batch_touches_them() -> None:
    d = deployment("deepseek-ai/DeepSeek-R1", "fp8", 8)
    k = coefficients(d, ideal())
    moe = int(np.argmax(k.mem_s))
    touched = -math.expm1(k.log_miss[moe] * 64)
    assert touched == pytest.approx(1 - (1 - 8 / 256) ** 64)


def test_attention_dp_meets_experts_of_all_ranks() -> None:
    tp, dp = (
        deployment("deepseek-ai/DeepSeek-R1", "fp8", 8, ep=True),
        deployment("deepseek-ai/DeepSeek-R1", "fp8", 1, dp=8, ep=True),
    )
    routed = [next(o for o in operations(d).matrices if o.group == "routed_expert") for d in (tp, dp)]
    assert routed[0].weight_bytes == pytest.approx(routed[1].weight_bytes)
    # A rank's own tokens count once per rank that sends as many.
    assert routed[1].flop_per_token == pytest.approx(8 * routed[0].flop_per_token)
    assert operations(dp).alltoall_calls == 2 * operations(dp).moe_layers
    assert operations(tp).alltoall_calls == 0


def test_emulated_formats_compute_in_bf16() -> None:
    hopper = operations(deployment("openai/gpt-oss-120b", "mxfp4", 2))
    blackwell = operations(deployment("openai/gpt-oss-120b", "mxfp4", 2, gpu="b200-sxm"))
    assert {o.rate for o in hopper.matrices} == {"bf16"}
    assert "fp8" in {o.rate for o in blackwell.matrices}


# ---------------------------------------------------------------- table and model


@pytest.mark.parametrize(("model", "precision", "tp"), MODELS)
def test_table_stands_for_the_model(model: str, precision: str, tp: int) -> None:
    d = deployment(model, precision, tp, gpu="b200-sxm")
    calib = shipped(d)
    table = build_step_table(d, calib, max_num_seqs=256, max_num_batched_tokens=8192)
    for seqs, context, chunk, start in (
        (1, 200, 0, 0),
        (7, 3000, 0, 0),
        (100, 9000, 0, 0),
        (256, 131_000, 0, 0),
        (0, 0, 512, 0),
        (33, 1500, 2048, 0),
        (200, 700, 8000, 0),
        (200, 700, 8000, 16000),
    ):
        pairs = chunk_pairs(start_tokens=start, chunk_tokens=chunk)
        a = table.step_s(decode_seqs=seqs, context_tokens=seqs * context, prefill_tokens=chunk, prefill_pairs=pairs)
        b = step_s(d, calib, decode_seqs=seqs, context_tokens=seqs * context, prefill_tokens=chunk, prefill_pairs=pairs)
        assert a == pytest.approx(b, rel=0.01)


def test_a_table_is_quick_to_build() -> None:
    d = deployment("deepseek-ai/DeepSeek-R1", "fp8", 8)
    calib = shipped(d)
    operations(d)
    times = []
    for n in range(5):
        start = time.perf_counter()
        build_step_table(d, calib, max_num_seqs=250 + n, max_num_batched_tokens=8192)
        times.append(time.perf_counter() - start)
    assert min(times) < 5e-3


# ---------------------------------------------------------------- monotone where physics is

case = st.tuples(
    st.sampled_from(MODELS),
    st.sampled_from(["h100-sxm", "h200-sxm", "b200-sxm"]),
    st.sampled_from(["vllm", "sglang", "trtllm"]),
)


@given(case, st.integers(1, 512), st.integers(1, 64), st.floats(1, 100_000))
def test_a_step_does_not_get_faster_with_more_sequences(c, seqs: int, more: int, context: float) -> None:
    (model, precision, tp), gpu, engine = c
    d = deployment(model, precision, tp, gpu=gpu, engine=engine)
    calib = shipped(d)
    assert step_s(d, calib, decode_seqs=seqs + more, context_tokens=(seqs + more) * context) >= step_s(
        d, calib, decode_seqs=seqs, context_tokens=seqs * context
    )


@given(case, st.integers(1, 256), st.floats(0, 100_000), st.floats(1, 50_000))
def test_a_step_does_not_get_faster_with_more_context(c, seqs: int, context: float, more: float) -> None:
    (model, precision, tp), gpu, engine = c
    d = deployment(model, precision, tp, gpu=gpu, engine=engine)
    calib = shipped(d)
    assert step_s(d, calib, decode_seqs=seqs, context_tokens=seqs * (context + more)) >= step_s(
        d, calib, decode_seqs=seqs, context_tokens=seqs * context
    )


@given(case, st.integers(1, 256), st.floats(0, 20_000), st.integers(0, 8192), st.floats(1.01, 2.0))
def test_a_step_does_not_get_slower_with_bandwidth(c, seqs: int, context: float, chunk: int, factor: float) -> None:
    (model, precision, tp), gpu, engine = c
    slow = deployment(model, precision, tp, gpu=gpu, engine=engine, bandwidth=2e12)
    fast = replace(slow, hardware=replace(slow.hardware, hbm_bytes_per_s=2e12 * factor))
    calib = shipped(slow)
    load = {
        "decode_seqs": seqs,
        "context_tokens": seqs * context,
        "prefill_tokens": chunk,
        "prefill_pairs": chunk**2 / 2,
    }
    assert step_s(fast, calib, **load) <= step_s(slow, calib, **load)


@given(case, st.integers(0, 256), st.integers(1, 8192), st.integers(1, 4096))
def test_a_longer_chunk_is_not_faster(c, seqs: int, chunk: int, more: int) -> None:
    (model, precision, tp), gpu, engine = c
    d = deployment(model, precision, tp, gpu=gpu, engine=engine)
    calib = shipped(d)

    def t(n: int) -> float:
        return step_s(
            d,
            calib,
            decode_seqs=seqs,
            context_tokens=seqs * 500,
            prefill_tokens=n,
            prefill_pairs=chunk_pairs(start_tokens=0, chunk_tokens=n),
        )

    assert t(chunk + more) >= t(chunk)


def test_smooth_maximum() -> None:
    a, b = np.array([3.0, 0.0, 5.0]), np.array([3.0, 2.0, 0.0])
    assert smooth_max(a, b, math.inf).tolist() == [3.0, 2.0, 5.0]
    assert smooth_max(a, b, 3.0).tolist() == pytest.approx([3.0 * 2 ** (1 / 3), 2.0, 5.0])


# ---------------------------------------------------------------- collectives, releases


def test_collectives_grow_with_size_and_cost_more_between_nodes() -> None:
    hw = hardware(find_gpu("h100-sxm"))
    assert allreduce(hw, 1)(1e6) == 0
    assert allreduce(hw, 8)(2**20) > allreduce(hw, 8)(2**14) > 0
    assert allreduce(hw, 16)(2**20) > allreduce(hw, 8)(2**20)
    assert alltoall(hw, 16)(2**20) > alltoall(hw, 8)(2**20)
    # Over PCIe a large message costs several times what it does over NVLink.
    assert allreduce(hardware(find_gpu("l40s")), 4)(2**25) > 5 * allreduce(hw, 4)(2**25)


def test_rack_scale_links_need_no_nic() -> None:
    rack = hardware(find_gpu("gb200-nvl72"))
    assert allreduce(rack, 16)(2**20) < 3 * allreduce(rack, 4)(2**20)


def test_releases_have_dates_and_no_drift_is_extrapolated() -> None:
    assert release_date("vllm", "0.19.0") == "2026-04-10"
    assert release_date("vllm", "v0.11.2") == "2025-10-01"
    assert release_date("vllm", "0.33.0") == release_date("vllm", "0.99.0") != ""
    assert release_date("vllm", "nightly") == ""
    assert years("2030-01-01") == -years("2020-01-01") == 0.5


def test_what_was_never_measured_says_so() -> None:
    hw = hardware(find_gpu("l4"))
    c = calibration_for("vllm", "0.33.0", hw)
    assert "Ada" in (c.warning or "")
    assert not c.gpu_measured
    assert calibration_for("vllm", "0.33.0", hardware(find_gpu("h100-sxm"))).warning is None


def test_every_constant_of_a_shipped_file_is_one_of_ours() -> None:
    from planner.catalog.calibrations import calibration_files

    known = set(Constants.__dataclass_fields__) | {"yearly_ratio", "host_yearly_ratio"}
    for name, f in calibration_files().items():
        for values in (f.constants, *f.architectures.values(), *(e.constants for e in f.engines.values())):
            assert set(values) <= known, name
