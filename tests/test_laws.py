"""Laws of the whole: stricter is never cheaper, more bandwidth never slower, the step's parts add up."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.candidates import candidates, predict
from planner.catalog.gpus import find_gpu
from planner.catalog.models import find_model
from planner.errors import Exit, UserError
from planner.intent.fleet import GpuOverride
from planner.intent.resolve import Words
from planner.perf.arch import Shape
from planner.perf.breakdown import step_groups
from planner.perf.calibration import Calibration, calibration_for, ideal
from planner.perf.checkpoints import checkpoint_for, weight_plan
from planner.perf.deployment import Deployment, hardware
from planner.perf.families import read_arch
from planner.perf.step import step_s
from planner.pipeline import make_plan
from planner.pipeline.question import ask
from planner.solve import solve

ROOT = Path(__file__).resolve().parent.parent
SHAPES = (
    ("meta-llama/Llama-3.1-8B-Instruct", "bf16", Shape(tp=1)),
    ("meta-llama/Llama-3.3-70B-Instruct", "fp8", Shape(tp=4)),
    ("Qwen/Qwen3-30B-A3B", "bf16", Shape(tp=2)),
    ("deepseek-ai/DeepSeek-V3", "fp8", Shape(tp=8)),
    ("openai/gpt-oss-120b", "mxfp4", Shape(tp=2)),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "bf16", Shape(tp=4)),
)


def deployment(which: int, *, gpu: str = "h200-sxm", bandwidth_ratio: float = 1.0) -> Deployment:
    name, precision, shape = SHAPES[which]
    model = find_model(name)
    arch = read_arch(model.config, model.id)
    found = find_gpu(gpu)
    own = GpuOverride(hbm_bandwidth=found.memory.bandwidth * bandwidth_ratio)
    return Deployment(
        arch=arch, weights=weight_plan(arch, checkpoint_for(model, precision)), precision=precision, kv_dtype="bf16",
        hardware=hardware(found, override=own), shape=shape, engine="vllm", engine_version="0.33.0",
    )  # fmt: skip


def cost(slo: str, rate: str) -> float | None:
    """Cost of the optimum at one fixed shape, or None where there is no plan."""
    question = ask(
        fleet=ROOT / "fleets" / "h100.yaml",
        words=Words(slo=(slo,), rate=rate, tp=1, input="1000", output="200"),
    )
    try:
        return make_plan(question, verify=False).totals.cost
    except UserError as e:
        if e.exit_code != Exit.NO_PLAN:
            raise
        return None


@settings(max_examples=6)
@given(st.integers(6, 60), st.integers(1, 40), st.integers(10, 80), st.sampled_from(["itl", "itl.mean", "ttft.p95"]))
def test_a_stricter_slo_is_never_cheaper(limit_ms: int, step_ms: int, rate: int, metric: str) -> None:
    scale = 10 if metric == "ttft.p95" else 1
    strict = cost(f"{metric}={limit_ms * scale}ms", f"{rate}/s")
    loose = cost(f"{metric}={(limit_ms + step_ms) * scale}ms", f"{rate}/s")
    if strict is not None:
        assert loose is not None
        assert loose <= strict


@pytest.mark.parametrize(
    ("model", "fleet", "precision", "rate", "limits_ms"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "h100", "fp8", "10/s", (12, 14, 16, 17, 18, 19, 20, 21, 22, 25, 30, 60)),
        ("meta-llama/Llama-3.1-8B-Instruct", "l40s", "bf16", "4/s", (9, 15, 21, 25, 30, 33, 36, 40, 50)),
    ],
)
def test_a_looser_gap_never_takes_more_gpus(
    model: str, fleet: str, precision: str, rate: str, limits_ms: tuple[int, ...]
) -> None:
    """Nothing fixed: the law is one of everything that is asked about, not of one pair of caps."""
    before = math.inf
    for limit_ms in limits_ms:
        words = Words(
            model=model, precision=(precision,), slo=(f"itl={limit_ms}ms",), rate=rate, input="1000", output="200"
        )
        question = ask(fleet=ROOT / "fleets" / f"{fleet}.yaml", words=words)
        try:
            gpus = solve(
                question.asks, question.fleet, evaluate=candidates, predict=predict, objective="gpus", explain=False
            ).value
        except UserError as e:
            if e.exit_code != Exit.NO_PLAN:
                raise
            gpus = math.inf
        assert gpus <= before, f"{limit_ms}ms takes {gpus}, a stricter limit {before}"
        before = gpus
    assert before < math.inf


@given(st.integers(0, len(SHAPES) - 1), st.integers(1, 512), st.integers(1, 60_000), st.floats(1.0, 4.0))
def test_more_bandwidth_never_slows_a_step(which: int, seqs: int, context: int, ratio: float) -> None:
    slow, fast = deployment(which), deployment(which, bandwidth_ratio=ratio)
    calib = calibration_for("vllm", "0.33.0", slow.hardware)
    for c in (calib, ideal()):
        before = step_s(slow, c, decode_seqs=seqs, context_tokens=seqs * context)
        assert step_s(fast, c, decode_seqs=seqs, context_tokens=seqs * context) <= before * (1 + 1e-12)


@given(
    st.integers(0, len(SHAPES) - 1), st.integers(0, 300), st.integers(1, 30_000), st.integers(0, 8192), st.booleans()
)
def test_parts_of_a_step_add_up(which: int, seqs: int, context: int, chunk: int, pure: bool) -> None:
    if seqs + chunk == 0:
        return
    d = deployment(which)
    calib: Calibration = ideal() if pure else calibration_for("vllm", "0.33.0", d.hardware)
    load = {
        "decode_seqs": float(seqs),
        "context_tokens": float(seqs * context),
        "prefill_tokens": float(chunk),
        "prefill_pairs": chunk * chunk / 2,
    }
    found = step_groups(d, calib, **load)
    assert sum(g.seconds for g in found.groups) == pytest.approx(step_s(d, calib, **load), rel=1e-9)
    assert all(g.seconds > -1e-9 for g in found.groups)
    assert 0 <= found.mbu <= 1.001
    assert 0 <= found.mfu <= 1.001


def test_the_pure_roofline_reads_the_weights_once() -> None:
    """Without losses a decode step of one short sequence takes exactly its weights over the bandwidth."""
    d = deployment(0, gpu="h100-sxm")
    found = step_groups(d, ideal(), decode_seqs=1, context_tokens=0)
    read = sum(g.read_bytes for g in found.groups if g.roof == "memory")
    assert found.seconds == pytest.approx(read / d.hardware.hbm_bytes_per_s, rel=1e-6)
    # All weights but the embedding, of which one row is looked up.
    assert read == pytest.approx(2 * (8_030_261_248 - 128_256 * 4096), rel=1e-3)
