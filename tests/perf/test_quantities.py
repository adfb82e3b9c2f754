"""Parameters, bytes and arithmetic against independent figures, and the laws that hold for any layout."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog.models import find_model, models
from planner.perf.arch import ModelArch, Scheme, Shape, WeightPlan
from planner.perf.describe import model_json
from planner.perf.families import read_arch
from planner.perf.quantities import (
    SCHEMES,
    attention_flop_per_token,
    cache_bytes,
    cache_bytes_per_gpu,
    experts_only,
    kv_bytes_per_token,
    kv_bytes_per_token_per_gpu,
    linear_flop_per_token,
    matrix_bytes,
    params_active,
    params_total,
    stage_layers,
    state_bytes_per_sequence,
    state_bytes_per_sequence_per_gpu,
    uniform,
    weight_bytes,
    weight_bytes_by_stage,
    weight_bytes_per_gpu,
)

HERE = Path(__file__).parent


def table(name: str) -> list[dict[str, str]]:
    lines = (HERE / name).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def arch(name: str) -> ModelArch:
    model = find_model(name)
    return read_arch(model.config, model.id)


def close(value: float, expected: float) -> bool:
    return value == expected if expected == 0 else abs(value - expected) <= 1e-3 * abs(expected)


# ---------------------------------------------------------------- against figures from elsewhere


@pytest.mark.parametrize("row", table("expectations.csv"), ids=lambda r: r["model"])
def test_figures_agree_with_an_independent_calculation(row: dict[str, str]) -> None:
    a = arch(row["model"])
    want = {k: int(v) for k, v in row.items() if k != "model"}
    got = {
        "params": params_total(a),
        "params_with_mtp": params_total(a, mtp=True),
        "active": params_active(a),
        "active_no_embed": params_active(a, embed=False),
        **{s: weight_bytes(a, uniform(s)) for s in ("fp8_block128", "int8_channel", "int4_g128", "nvfp4", "mxfp4")},
        "kv_bf16": kv_bytes_per_token(a, "bf16"),
        "kv_fp8": kv_bytes_per_token(a, "fp8"),
        "state": state_bytes_per_sequence(a),
        "cache_8192": cache_bytes(a, "bf16", 8192),
        "cache_131072": cache_bytes(a, "bf16", 131072),
        "linear_flop": linear_flop_per_token(a),
        "attention_flop_8192": attention_flop_per_token(a, 8192),
        "attention_flop_131072": attention_flop_per_token(a, 131072),
    }
    assert {k: v for k, v in got.items() if not close(v, want[k])} == {}
    # Counts are integers of the same definition: equal, but for DeepSeek-V4's lookup table and GLM's pooling gate,
    # which that calculation leaves out.
    assert abs(got["params"] - want["params"]) <= 6e6


@pytest.mark.parametrize("row", table("published_counts.csv"), ids=lambda r: r["model"])
def test_counts_are_those_of_the_published_checkpoints(row: dict[str, str]) -> None:
    own = params_total(arch(row["model"]), mtp=row["counts"] == "mtp")
    assert int(row["count"]) - own == int(row["remainder"])
    assert bool(row["because"]) == (row["remainder"] != "0")


def test_most_published_counts_are_exact() -> None:
    rows = table("published_counts.csv")
    assert sum(r["remainder"] == "0" for r in rows) >= 79
    assert len(rows) >= 125


def test_every_value_of_the_reference_material(shared: Path) -> None:
    expected: dict[str, dict[str, Any]] = json.loads((shared / "facts" / "model_expectations.json").read_text())
    wrong = []
    for name, want in expected.items():
        got = model_json(find_model(name))
        pairs = {
            "params_total": (got["params_total"], want["params_text"]),
            "with mtp": (got["params_with_mtp"], want["params_with_mtp"]),
            "params_active": (got["params_active"], want["active_incl_embed"]),
            "no embed": (got["params_active_no_embedding"], want["active_no_embed"]),
            "state": (got["state_bytes_per_sequence"], want["state_bytes_fp32"]),
            "linear": (got["linear_flops_per_token"], want["linear_flops_per_token"]),
            "linear no head": (got["linear_flops_per_token_no_head"], want["linear_flops_per_token_no_head"]),
            "kv bf16": (got["kv_bytes_per_token"]["bf16"], want["kv_bytes_per_token_bf16"]),
            "kv fp8": (got["kv_bytes_per_token"]["fp8"], want["kv_bytes_per_token_fp8"]),
        }
        pairs |= {f"weights {s}": (got["weight_bytes"][s], v) for s, v in want["weight_bytes"].items()}
        pairs |= {f"cache {n}": (got["cache_bytes"][n], v) for n, v in want["cache_bytes_bf16"].items()}
        pairs |= {
            f"attention {n}": (got["attention_flops_per_token"][n], v) for n, v in want["attn_flops_decode"].items()
        }
        for s, v in (want["weight_bytes_experts_only"] or {}).items():
            if s in SCHEMES:
                pairs[f"experts {s}"] = (got["weight_bytes_experts_only"][s], v)
        wrong += [(name, k, a, b) for k, (a, b) in pairs.items() if not close(a, b)]
    assert wrong == []
    assert len(expected) >= 91


def test_every_config_of_the_reference_material_is_bundled_and_read(shared: Path) -> None:
    files = sorted((shared / "facts" / "models").glob("*.json"))
    assert len(files) >= 126
    for f in files:
        d = json.loads(f.read_text())
        bundled = models()[d["hf_id"]]
        # Trimming must not change what is understood.
        assert read_arch(d["config"], d["hf_id"]) == read_arch(bundled.config, d["hf_id"]), d["hf_id"]
        assert bundled.kind == d["kind"]


@pytest.mark.parametrize(
    ("model", "embed", "head", "billions"),
    [
        ("deepseek-ai/DeepSeek-V3", True, True, 37.55),
        ("Qwen/Qwen3-235B-A22B", True, True, 22.19),
        ("openai/gpt-oss-120b", False, True, 5.13),
        ("openai/gpt-oss-20b", False, True, 3.61),
        ("zai-org/GLM-4.5", False, False, 32.1),
        ("zai-org/GLM-4.5-Air", False, False, 12.2),
        ("MiniMaxAI/MiniMax-M2", False, False, 9.8),
        ("moonshotai/Kimi-K2-Instruct", False, True, 31.7),
    ],
)
def test_headline_active_parameters_follow_three_conventions(
    model: str, embed: bool, head: bool, billions: float
) -> None:
    assert params_active(arch(model), embed=embed, head=head) / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize(
    ("model", "kv", "state"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", 327_680, 0),
        ("meta-llama/Llama-3.1-8B-Instruct", 131_072, 0),
        ("Qwen/Qwen3-235B-A22B", 192_512, 0),
        ("deepseek-ai/DeepSeek-V3", 70_272, 0),
        ("zai-org/GLM-5.2", 92_628, 0),
        ("Qwen/Qwen3.5-397B-A17B", 30_720, 192_061_440),
        ("moonshotai/Kimi-K3", 27_648, 449_372_160),
        ("openai/gpt-oss-120b", 73_728, 0),
        # Own reading of configs that the independent calculation does not cover.
        ("google/gemma-4-31B-it", 50 * 16 * 2 * 256 * 2 + 10 * 4 * 2 * 512 * 2, 0),
        ("XiaomiMiMo/MiMo-V2-Flash", 9 * 4 * (192 + 128) * 2 + 39 * 8 * (192 + 128) * 2, 0),
        ("MiniMaxAI/MiniMax-M3", 60 * 4 * 2 * 128 * 2 + 57 * 132, 0),
    ],
)
def test_cache_and_state_per_sequence(model: str, kv: int, state: int) -> None:
    a = arch(model)
    assert kv_bytes_per_token(a, "bf16") == kv
    assert state_bytes_per_sequence(a) == state


def test_windows_stop_the_cache() -> None:
    a = arch("openai/gpt-oss-120b")
    # Half of the layers keep 128 tokens: 4.84 GB at 128k, not 9.66.
    assert cache_bytes(a, "bf16", 131072) == 18 * 2048 * 131072 + 18 * 2048 * 128


def test_mla_decode_is_dearer_than_its_matrices() -> None:
    a = arch("deepseek-ai/DeepSeek-V3")
    assert attention_flop_per_token(a, 8192) == pytest.approx(139e9, rel=0.01)
    assert linear_flop_per_token(a) == pytest.approx(73e9, rel=0.01)


@pytest.mark.parametrize(
    ("model", "plan", "gigabytes"),
    [
        ("openai/gpt-oss-120b", experts_only("mxfp4"), 65.2),
        ("meta-llama/Llama-3.1-70B-Instruct", uniform("int8_channel"), 72.7),
        ("Qwen/Qwen3-8B", uniform("bf16"), 16.4),
        ("Qwen/Qwen3-8B", uniform("nvfp4"), 6.4),
        ("meta-llama/Llama-3.3-70B-Instruct", uniform("bf16"), 141.1),
        ("meta-llama/Llama-3.3-70B-Instruct", uniform("nvfp4"), 42.7),
        ("meta-llama/Llama-3.3-70B-Instruct", uniform("mxfp4"), 40.6),
    ],
)
def test_published_checkpoint_sizes(model: str, plan: WeightPlan, gigabytes: float) -> None:
    assert weight_bytes(arch(model), plan) / 1e9 == pytest.approx(gigabytes, rel=0.003)


def test_bf16_size_of_the_largest_model_to_five_digits() -> None:
    size = weight_bytes(arch("Qwen/Qwen3.8-2.4T-A95B"), uniform("bf16"), mtp=True)
    assert size == pytest.approx(4_892_388_705_238, rel=1e-5)


def test_cut_blocks_count_whole() -> None:
    assert matrix_bytes("fp8_block128", 129, 1) == 129 + 2 * 4
    assert matrix_bytes("int4_g128", 128, 3) == 192 + 3 * 2.5
    assert matrix_bytes("fp8_tensor", 10, 10) == 108


# ---------------------------------------------------------------- per GPU


def test_a_70b_on_eight_gpus() -> None:
    a = arch("meta-llama/Llama-3.3-70B-Instruct")
    whole, eighth = weight_bytes(a, uniform("bf16")), weight_bytes_per_gpu(a, uniform("bf16"), Shape(tp=8))
    norms = 2 * sum(g.count * g.norm_params for g in a.layers) + 2 * a.final_norm_params
    assert eighth == (whole - norms) / 8 + norms
    assert kv_bytes_per_token_per_gpu(a, "bf16", Shape(tp=8)) == 327_680 / 8
    # More ranks than KV heads: one head each.
    assert kv_bytes_per_token_per_gpu(a, "bf16", Shape(tp=16)) == 327_680 / 8


def test_kv_stops_shrinking_at_two_heads() -> None:
    a = arch("Qwen/Qwen3.5-397B-A17B")
    per_gpu = [kv_bytes_per_token_per_gpu(a, "bf16", Shape(tp=n)) for n in (1, 2, 4, 8)]
    assert per_gpu == [30_720, 15_360, 15_360, 15_360]
    state = [state_bytes_per_sequence_per_gpu(a, Shape(tp=n)) for n in (1, 2, 8)]
    assert state == [192_061_440, 96_030_720, 24_007_680]


def test_latents_stand_on_every_rank_and_sparse_fp8_records_are_wider() -> None:
    v3, v32 = arch("deepseek-ai/DeepSeek-V3"), arch("deepseek-ai/DeepSeek-V3.2")
    assert kv_bytes_per_token_per_gpu(v3, "bf16", Shape(tp=8)) == 70_272
    assert kv_bytes_per_token_per_gpu(v3, "fp8", Shape(tp=8)) == 35_136
    assert kv_bytes_per_token_per_gpu(v32, "fp8", Shape(tp=8)) == 61 * (656 + 132)
    assert kv_bytes_per_token(v32, "fp8") == 61 * (576 + 132)


def test_experts_split_or_are_dealt_out() -> None:
    a = arch("deepseek-ai/DeepSeek-V3")
    plan = uniform("fp8_block128")
    spread = weight_bytes_per_gpu(a, plan, Shape(dp=8, ep=True))
    split = weight_bytes_per_gpu(a, plan, Shape(tp=8))
    # Attention data parallelism keeps attention, dense and shared matrices whole on every rank.
    assert spread > split
    more = weight_bytes_per_gpu(a, plan, Shape(dp=8, ep=True), redundant_experts=32)
    expert = matrix_bytes("fp8_block128", 7168, 2048) * 2 + matrix_bytes("fp8_block128", 2048, 7168)
    assert more - spread == 58 * 4 * expert


def test_embedding_stands_on_the_first_stage_and_the_head_on_the_last() -> None:
    a = arch("meta-llama/Llama-3.3-70B-Instruct")
    first, middle, _, last = weight_bytes_by_stage(a, uniform("bf16"), Shape(pp=4))
    assert first - middle == 2 * a.embed.params
    assert last - middle == 2 * (a.lm_head.params + a.final_norm_params)
    tied = arch("Qwen/Qwen3-4B")
    one, two = weight_bytes_by_stage(tied, uniform("bf16"), Shape(pp=2))
    assert one + two == weight_bytes(tied, uniform("bf16")) + 2 * tied.embed.params


def test_remainder_layers_go_to_the_middle() -> None:
    assert [len(r) for r in stage_layers(61, 4)] == [15, 15, 16, 15]
    assert [len(r) for r in stage_layers(7, 2)] == [4, 3]
    assert [len(r) for r in stage_layers(10, 4)] == [2, 3, 3, 2]


NAMES = sorted(models())
SCHEME = st.sampled_from(sorted(SCHEMES))
MODEL = st.sampled_from(NAMES)
POWER = st.sampled_from([1, 2, 4, 8, 16])


@given(MODEL, SCHEME, POWER)
def test_law_weights_fall_with_tp_and_never_below_their_share(name: str, scheme: Scheme, tp: int) -> None:
    a, plan = arch(name), uniform(scheme)
    here = weight_bytes_per_gpu(a, plan, Shape(tp=tp))
    assert here >= weight_bytes(a, plan) / tp * (1 - 1e-12)
    assert weight_bytes_per_gpu(a, plan, Shape(tp=2 * tp)) <= here * (1 + 1e-12) + _padding(a)


def _padding(a: ModelArch) -> float:
    """What padding the vocabulary may add once there is more than one rank."""
    return 2 * 64 * a.hidden * 2


@given(MODEL, SCHEME, POWER, st.sampled_from([1, 2, 3, 4]), st.booleans())
def test_law_pp_and_ep_never_lose_weights(name: str, scheme: Scheme, dp: int, pp: int, ep: bool) -> None:
    a, plan = arch(name), uniform(scheme)
    shape = Shape(pp=pp, dp=dp, ep=ep and a.moe)
    assert weight_bytes_per_gpu(a, plan, shape) >= weight_bytes(a, plan) / shape.gpus * (1 - 1e-12)


@given(MODEL, st.sampled_from(["bf16", "fp8"]), POWER, st.sampled_from([1, 2, 3]))
def test_law_kv_per_gpu_never_below_its_share(name: str, dtype: str, tp: int, pp: int) -> None:
    a = arch(name)
    shape = Shape(tp=tp, pp=pp)
    assert kv_bytes_per_token_per_gpu(a, dtype, shape) >= kv_bytes_per_token(a, dtype) / (tp * pp) - 1e-9
    assert state_bytes_per_sequence_per_gpu(a, shape) >= state_bytes_per_sequence(a) / (tp * pp) - 1e-9


@given(MODEL, st.sampled_from(["bf16", "fp8"]), POWER, st.integers(0, 300_000), st.integers(0, 300_000))
def test_law_a_longer_context_never_frees_memory(name: str, dtype: str, tp: int, one: int, two: int) -> None:
    a = arch(name)
    short, long = sorted((one, two))
    assert cache_bytes(a, dtype, short) <= cache_bytes(a, dtype, long)
    per_gpu = [cache_bytes_per_gpu(a, dtype, Shape(tp=tp), n) for n in (short, long)]
    assert per_gpu[0] <= per_gpu[1]
    assert attention_flop_per_token(a, short) <= attention_flop_per_token(a, long)


@given(MODEL, st.integers(1, 200_000))
def test_law_windows_and_sparsity_only_save(name: str, context: int) -> None:
    a = arch(name)
    if a.family == "compressed":
        return
    most = kv_bytes_per_token(a, "bf16") * context + state_bytes_per_sequence(a)
    assert cache_bytes(a, "bf16", context) <= most
    assert math.isfinite(attention_flop_per_token(a, context))


@given(MODEL, SCHEME)
def test_law_narrower_formats_are_smaller_and_stages_cover_all_layers(name: str, scheme: Scheme) -> None:
    a = arch(name)
    assert weight_bytes(a, uniform(scheme)) <= weight_bytes(a, uniform("bf16"))
    assert weight_bytes(a, WeightPlan("bf16")) == 2 * (params_total(a))
    assert sorted(i for g in a.layers for i in g.indices) == list(range(a.layer_count))
