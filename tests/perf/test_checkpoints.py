"""Which matrix a checkpoint stores how, held against the sizes and element counts of the real repositories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.catalog.models import Checkpoint, find_model, models
from planner.catalog.quantisation import LABELS, read_quantisation
from planner.errors import UserError
from planner.perf.arch import ModelArch, WeightPlan
from planner.perf.checkpoints import checkpoint_for, exceptions, precisions, weight_plan
from planner.perf.families import read_arch
from planner.perf.quantities import SCHEMES, params_total, weight_bytes

LATENT = {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"}


def load(repo: str) -> tuple[ModelArch, Checkpoint, WeightPlan]:
    model = find_model(repo)
    arch = read_arch(model.config, model.id)
    return arch, model.native, weight_plan(arch, model.native)


def formats(arch: ModelArch, plan: WeightPlan) -> dict[str, set[str]]:
    """Formats by group, of what can be quantised at all."""
    found: dict[str, set[str]] = {"lm_head": {plan.scheme_of(arch.lm_head)}}
    for g in arch.layers:
        for x in g.linears:
            if x.quantisable:
                found.setdefault(x.group, set()).add(plan.scheme_of(x))
    return found


def test_schemes_have_labels_and_formats() -> None:
    assert set(LABELS) == set(SCHEMES)


WIDE = """
nvidia/Qwen3.5-397B-A17B-NVFP4: attn=bf16 linear_attn=bf16 shared=bf16 routed=nvfp4 lm_head=bf16
nvidia/GLM-5.1-NVFP4: attn=bf16 indexer=bf16 dense_mlp=bf16 shared=bf16 routed=nvfp4 lm_head=bf16
nvidia/Gemma-4-31B-IT-NVFP4: attn=bf16 dense_mlp=nvfp4 lm_head=bf16
nvidia/Gemma-4-26B-A4B-NVFP4: attn=bf16 dense_mlp=bf16 routed=nvfp4 lm_head=bf16
nvidia/Qwen3.6-27B-NVFP4: attn=fp8_tensor linear_attn=bf16|fp8_tensor dense_mlp=nvfp4 lm_head=nvfp4
nvidia/MiniMax-M2.5-NVFP4: attn=bf16 routed=nvfp4 lm_head=bf16
nvidia/DeepSeek-V4-Flash-NVFP4: attn=block indexer=block shared=block routed=nvfp4 lm_head=bf16
deepseek-ai/DeepSeek-V4-Flash: attn=block indexer=block shared=block routed=mxfp4 lm_head=bf16
sgl-project/DeepSeek-V4-Flash-FP8: attn=block indexer=block shared=block routed=block lm_head=bf16
deepseek-ai/DeepSeek-V3: attn=block dense_mlp=block shared=block routed=block lm_head=bf16
moonshotai/Kimi-K2.5: attn=bf16 dense_mlp=bf16 shared=bf16 routed=int4_g32 lm_head=bf16
moonshotai/Kimi-K2-Thinking: attn=bf16 dense_mlp=bf16 shared=bf16 routed=int4_g32 lm_head=bf16
openai/gpt-oss-120b: attn=bf16 routed=mxfp4 lm_head=bf16
MiniMaxAI/MiniMax-M2: attn=block routed=block lm_head=bf16
Qwen/Qwen3-32B-FP8: attn=block dense_mlp=block lm_head=bf16
nvidia/Llama-3.1-70B-Instruct-FP8: attn=fp8_tensor dense_mlp=fp8_tensor lm_head=bf16
RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic: attn=fp8_channel dense_mlp=fp8_channel lm_head=bf16
"""
"""Repository: group=format(s), of what can be quantised."""


@pytest.mark.parametrize("line", WIDE.strip().splitlines(), ids=lambda x: x.partition(":")[0])
def test_what_stays_wide(line: str) -> None:
    repo, _, said = line.partition(": ")
    names = {"shared": "shared_expert", "routed": "routed_expert", "block": "fp8_block128"}
    parts = [part.split("=") for part in said.split()]
    expected = {names.get(group, group): {names.get(x, x) for x in of.split("|")} for group, of in parts}
    arch, _, plan = load(repo)
    assert formats(arch, plan) == expected


def test_deepseek_nvfp4_keeps_the_latent_projections_but_not_the_output() -> None:
    arch, _, plan = load("nvidia/DeepSeek-V3.1-NVFP4")
    by_name = {x.name: plan.scheme_of(x) for g in arch.layers for x in g.linears if x.group == "attn"}
    assert by_name == dict.fromkeys(LATENT, "bf16") | {"o_proj": "nvfp4"}
    # Layer 61 is the prediction layer: left wide.
    assert plan.mtp == "bf16"


def test_prediction_layers_named_layers_0_are_not_layer_0() -> None:
    arch, checkpoint, plan = load("nvidia/Qwen3.5-122B-A10B-NVFP4")
    assert exceptions(arch, checkpoint) == ()
    assert plan.mtp == "bf16"


def test_layers_that_differ_are_said() -> None:
    arch, checkpoint, _ = load("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4")
    assert exceptions(arch, checkpoint) == ("linear_attn of 6 layers is bf16",)


# ---------------------------------------------------------------- real sizes


@pytest.mark.parametrize(
    ("repo", "published_bytes", "tolerance"),
    [
        ("Inferact/Qwen3.8-2.4T-A95B-NVFP4", 1_447_265_951_488, 0.0),
        ("Qwen/Qwen3.8-2.4T-A95B-FP8", 2_496_154_358_768, 1e-4),
        ("openai/gpt-oss-120b", 65.2e9, 2e-3),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", 72.7e9, 1e-3),
    ],
)
def test_formula_reaches_the_published_size(repo: str, published_bytes: float, tolerance: float) -> None:
    arch, _, plan = load(repo)
    assert weight_bytes(arch, plan, mtp=True) == pytest.approx(published_bytes, rel=tolerance, abs=0)


def test_a_measured_size_beats_the_formula_where_it_does_not() -> None:
    arch, checkpoint, plan = load("Inferact/Qwen3.8-2.4T-A95B-MXFP4")
    assert checkpoint.weights_bytes == 1_597_051_793_152
    assert weight_bytes(arch, plan, mtp=True) < 0.93 * checkpoint.weights_bytes


def stored_elements(arch: ModelArch, plan: WeightPlan, *, mtp: bool) -> int:
    """Elements of a modelopt checkpoint as Hugging Face counts them: two 4-bit weights per byte, no scales."""
    packed = 0
    for groups, scheme_of in ((arch.layers, plan.scheme_of), (arch.mtp if mtp else (), plan.mtp_scheme_of)):
        for g in groups:
            packed += g.count * sum(x.weights // 2 for x in g.linears if SCHEMES[scheme_of(x)].bits == 4)
    if SCHEMES[plan.scheme_of(arch.lm_head)].bits == 4:
        packed += arch.lm_head.weights // 2
    return params_total(arch, mtp=mtp) - packed


@pytest.mark.parametrize(
    ("repo", "elements", "mtp", "besides"),
    [
        # What stands besides: the vision tower (as in the bf16 repository), less router biases and small vectors.
        ("nvidia/Qwen3-14B-NVFP4", 8_162_278_400, False, 0),
        ("nvidia/MiniMax-M2.5-NVFP4", 116_349_510_656, False, -62 * 256),
        ("nvidia/Gemma-4-31B-IT-NVFP4", 20_868_591_152, False, 575_743_536 - 2364),
        ("nvidia/Gemma-4-26B-A4B-NVFP4", 14_386_941_232, False, 572_794_416 - 2334),
        ("nvidia/Qwen3.5-122B-A10B-NVFP4", 64_580_759_280, False, 451_290_864),
        ("nvidia/Qwen3.6-27B-NVFP4", 18_164_649_200, False, 460_730_096),
        ("nvidia/Qwen3.8-27B-NVFP4", 18_164_649_200, False, 460_730_096),
        ("Inferact/Qwen3.8-27B-NVFP4", 17_631_212_272, True, 460_730_096),
    ],
)
def test_stored_elements_are_those_of_the_repository(repo: str, elements: int, mtp: bool, besides: int) -> None:
    arch, _, plan = load(repo)
    assert elements - stored_elements(arch, plan, mtp=mtp) == besides


@pytest.mark.parametrize(
    ("repo", "scales"),
    [
        # FP8 128x128 repositories count one scale per block: the difference to the bf16 repository's count.
        ("Qwen/Qwen3.6-27B-FP8", 27_782_935_472 - 27_781_427_952),
        ("Qwen/Qwen3.6-35B-A3B-FP8", 35_953_925_552 - 35_951_822_704),
        ("Qwen/Qwen3-8B-FP8", 8_191_159_296 - 8_190_735_360),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", 235_107_904_512 - 235_093_634_560),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", 480_184_064_000 - 480_154_875_392),
        ("deepseek-ai/DeepSeek-V3", 684_531_386_000 - 684_489_845_504),
        ("MiniMaxAI/MiniMax-M2.5", 228_703_644_928 - 228_689_764_864),
    ],
)  # fmt: skip
def test_fp8_repositories_hold_one_scale_per_block_of_what_they_quantise(repo: str, scales: int) -> None:
    arch, _, plan = load(repo)
    blocks = 0
    for groups, scheme_of in ((arch.layers, plan.scheme_of), (arch.mtp, plan.mtp_scheme_of)):
        for g in groups:
            for x in g.linears:
                if scheme_of(x) == "fp8_block128":
                    blocks += g.count * x.copies * -(-x.inputs // 128) * -(-x.outputs // 128)
    assert blocks == scales


def test_every_checkpoint_of_the_catalogue_has_a_plan_and_a_plausible_size() -> None:
    seen = 0
    for model in models().values():
        arch = read_arch(model.config, model.id)
        whole = weight_bytes(arch, WeightPlan("bf16"))
        for c in model.checkpoints:
            plan = weight_plan(arch, c)
            assert {s for _, s in plan.rules} | {plan.default} <= set(SCHEMES)
            size = weight_bytes(arch, plan)
            narrow = c.precision in ("int4", "nvfp4", "mxfp4")
            assert (0.24 if narrow else 0.49) * whole < size <= whole, (c.repo, size / whole)
            known = {x.name for g in arch.layers for x in g.linears} | {x.group for g in arch.layers for x in g.linears}
            assert set(c.wide) <= known | {"dense_mlp", "shared_expert"}, c.repo
            seen += 1
    assert seen > 250


# ---------------------------------------------------------------- choosing


def test_precisions_and_the_checkpoint_for_each() -> None:
    model = find_model("meta-llama/Llama-3.1-8B-Instruct")
    assert precisions(model) == ("bf16", "int8", "int4", "nvfp4", "fp8")
    assert checkpoint_for(model).repo == "meta-llama/Llama-3.1-8B-Instruct"
    assert checkpoint_for(model, "int8").repo == "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8"
    fp8 = checkpoint_for(model, "fp8")
    assert (fp8.repo, fp8.online, fp8.kv_precision) == ("nvidia/Llama-3.1-8B-Instruct-FP8", False, "fp8")


def test_fp8_without_a_repository_is_the_engines_own() -> None:
    model = find_model("microsoft/phi-4")
    fp8 = checkpoint_for(model, "fp8")
    assert (fp8.repo, fp8.online, fp8.scheme) == ("microsoft/phi-4", True, "fp8_tensor")
    assert "nvfp4" not in precisions(model)


def test_a_quantised_id_is_its_models_own_precision() -> None:
    model = find_model("Qwen/Qwen3-235B-A22B-FP8")
    assert model.id == "Qwen/Qwen3-235B-A22B"
    assert precisions(model)[0] == "fp8"
    assert checkpoint_for(model).repo == "Qwen/Qwen3-235B-A22B-FP8"
    assert checkpoint_for(model, "bf16").repo == "Qwen/Qwen3-235B-A22B"


def test_a_precision_there_is_not_names_those_there_are() -> None:
    with pytest.raises(UserError) as e:
        checkpoint_for(find_model("openai/gpt-oss-120b"), "fp8")
    assert e.value.message == "openai/gpt-oss-120b has no fp8 checkpoint in the catalogue"
    assert e.value.notes == ("it has mxfp4",)
    with pytest.raises(UserError) as e:
        checkpoint_for(find_model("openai/gpt-oss-120b"), "fp9")
    assert "precisions are bf16, fp8" in e.value.notes[0]


# ---------------------------------------------------------------- the files' own words


def compressed(**weights: object) -> dict[str, Any]:
    """A compressed-tensors setting with one group for every matrix."""
    return {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights": weights}}}


@pytest.mark.parametrize(
    ("config", "default", "precision"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block128", "fp8"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8_tensor", "fp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4_g128", "int4"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "int4_g32", "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8_tensor", "fp8"),
        ({"quant_method": "mxfp4"}, "bf16", "mxfp4"),
        (compressed(num_bits=8, type="float", strategy="channel"), "fp8_channel", "fp8"),
        (compressed(num_bits=8, type="float", strategy="block"), "fp8_block128", "fp8"),
        (compressed(num_bits=8, type="int", strategy="channel"), "int8_channel", "int8"),
        (compressed(num_bits=4, type="int", strategy="group", group_size=128), "int4_g128", "int4"),
        (compressed(num_bits=4, type="float", group_size=16), "nvfp4", "nvfp4"),
        (compressed(num_bits=4, type="float", group_size=32), "mxfp4", "mxfp4"),
    ],
)  # fmt: skip
def test_methods_are_told_apart(config: dict[str, Any], default: str, precision: str) -> None:
    q = read_quantisation(config, model="m")
    assert q is not None
    assert (q.default, q.precision) == (default, precision)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quant_method": "bitsandbytes"}, "quantisation method 'bitsandbytes' of m is not supported yet"),
        ({"quant_method": "gguf"}, "'gguf'"),
        ({"bits": 4}, "quantisation method 'without a name'"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "3-bit integer weights in groups of 128"),
        ({"quant_method": "awq", "bits": "4"}, "quantization_config.bits must be a whole number"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "weight_block_size [64, 64] of m"),
        ({"quant_method": "modelopt", "quant_algo": "W2A2"}, "quant_algo W2A2 of m"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "mixed precision without quantized_layers"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors without config_groups"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": 1}}, "config_groups must give weights"),
        ({"quant_method": "fp8", "ignore": "lm_head"}, "module lists in quantization_config must be lists of names"),
        ({"quant_method": 3}, "quantization_config.quant_method must be text"),
    ],
)
def test_settings_that_are_not_known_are_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as e:
        read_quantisation(config, model="m")
    assert said in e.value.message


def test_packed_settings_mean_the_same_as_the_real_files(shared: Path) -> None:
    files = sorted((shared / "facts" / "models" / "quantised").glob("*.json"))
    assert len(files) >= 38
    for f in files:
        d = json.loads(f.read_text())
        text = d["config"].get("text_config") or {}
        settings = d["config"].get("quantization_config") or text.get("quantization_config")
        real = read_quantisation(
            settings,
            model=d["hf_id"],
            hf_quant=d["config"].get("_hf_quant_config"),
            expert_dtype=d["config"].get("expert_dtype"),
        )
        arch, own, plan = load(d["hf_id"])
        assert real is not None
        assert own.quantisation is not None
        assert (real.precision, real.kv) == (own.precision, own.kv_precision), d["hf_id"]
        from_file = Checkpoint(own.repo, own.precision, own.accuracy, own.source, quantisation=real)
        assert weight_plan(arch, from_file) == plan, d["hf_id"]
