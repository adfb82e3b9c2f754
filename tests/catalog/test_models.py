"""Models by the names people write, their checkpoints, and a user's own folder."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from planner.catalog.models import LARGEST_CONFIG_BYTES, find_model, models, squeeze
from planner.data import catalog_data
from planner.errors import UserError, Where
from planner.perf.describe import model_json

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}


def folder(tmp_path: Path, **files: object) -> Path:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name.replace("__", ".")).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("written", "found", "shape"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"),
        ("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"),
        ("llama 3.1 8b instruct", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"),
        ("LLAMA_3_1_8B_INSTRUCT", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"),
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("Llama-2-7B", "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-7b-hf"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3"),
        ("deepseek-v3-0324", "deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V3"),
        ("qwen/qwen3-8b", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("Qwen3-235B-A22B-Instruct-2507", "Qwen/Qwen3-235B-A22B-Instruct-2507", "Qwen/Qwen3-235B-A22B"),
        ("gpt-oss-120b", "openai/gpt-oss-120b", "openai/gpt-oss-120b"),
        ("gemma-3-27b", "google/gemma-3-27b-it", "google/gemma-3-27b-it"),
        ("unsloth/Llama-3.2-1B-Instruct", "unsloth/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),
        ("zhipuai/GLM-5", "zai-org/GLM-5", "zai-org/GLM-5"),
        ("DeepSeek-V4-Pro (FP4 experts)", "deepseek-ai/DeepSeek-V4-Pro", "deepseek-ai/DeepSeek-V4-Pro"),
        ("microsoft/Phi-3-mini-4k-instruct?", "microsoft/Phi-3-mini-4k-instruct", "microsoft/Phi-3-mini-4k-instruct"),
        ("Qwen/Qwen2.5-14B-Instruct-1M", "Qwen/Qwen2.5-14B-Instruct-1M", ""),
    ],
)
def test_names_as_people_write_them(written: str, found: str, shape: str) -> None:
    if not shape:
        with pytest.raises(UserError, match="unknown model"):
            find_model(written)
        return
    model = find_model(written, any_owner=True)
    assert (model.id, model.shape_of) == (found, shape)


@pytest.mark.parametrize(
    ("written", "model", "repo", "precision"),
    [
        ("Qwen/Qwen3-235B-A22B-FP8", "Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-235B-A22B-FP8", "fp8"),
        ("Qwen3-32B-AWQ", "Qwen/Qwen3-32B", "Qwen/Qwen3-32B-AWQ", "int4"),
        ("GLM-5.2-NVFP4", "zai-org/GLM-5.2", "nvidia/GLM-5.2-NVFP4", "nvfp4"),
        ("nvidia/Qwen3-8B-FP8", "Qwen/Qwen3-8B", "nvidia/Qwen3-8B-FP8", "fp8"),
        ("DeepSeek-V4-Flash-FP8", "deepseek-ai/DeepSeek-V4-Flash", "sgl-project/DeepSeek-V4-Flash-FP8", "fp8"),
        # Not in the catalogue: the name says what it is.
        ("somebody/Qwen3-8B-AWQ", "Qwen/Qwen3-8B", "somebody/Qwen3-8B-AWQ", "int4"),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-FP8-dynamic", "fp8"),
        ("nvidia/Qwen3-4B-NVFP4", "Qwen/Qwen3-4B", "nvidia/Qwen3-4B-NVFP4", "nvfp4"),
        ("RedHatAI/phi-4-quantized.w8a8", "microsoft/phi-4", "RedHatAI/phi-4-quantized.w8a8", "int8"),
    ],
)  # fmt: skip
def test_quantised_repositories_are_models_with_that_precision_first(
    written: str, model: str, repo: str, precision: str
) -> None:
    found = find_model(written, any_owner=True)
    assert (found.id, found.native.repo, found.native.precision) == (model, repo, precision)


def test_the_format_of_an_unlisted_copy_follows_its_owner() -> None:
    assert find_model("RedHatAI/Qwen3-8B-FP8-dynamic").native.scheme == "fp8_channel"
    assert find_model("RedHatAI/Qwen3-8B-FP8-block").native.scheme == "fp8_block128"
    assert find_model("nvidia/Qwen3-4B-FP8").native.scheme == "fp8_tensor"
    assert find_model("nvidia/Qwen3-4B-FP8").native.kv_precision == "fp8"
    assert find_model("zai-org/GLM-4.7-Flash-FP8").native.scheme == "fp8_block128"


def test_variants_have_their_own_context_and_repository() -> None:
    base, later = find_model("Qwen/Qwen3-235B-A22B"), find_model("Qwen/Qwen3-235B-A22B-Instruct-2507")
    assert base.config["max_position_embeddings"] == 40960
    assert later.config["max_position_embeddings"] == 262144
    assert later.native.repo == "Qwen/Qwen3-235B-A22B-Instruct-2507"
    assert later.source.startswith("same shape as Qwen/Qwen3-235B-A22B")
    assert [c.repo for c in later.checkpoints if c.precision == "fp8"] == ["Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"]


def test_an_unknown_name_has_near_misses() -> None:
    with pytest.raises(UserError) as e:
        find_model("Qwen/Qwen3-9B", where=Where("intent.yaml", 3, 10))
    assert e.value.code == "unknown-model"
    assert str(e.value.where) == "intent.yaml:3:10"
    assert "Qwen/Qwen3-8B" in e.value.helps[0]
    assert "config.json" in e.value.helps[-1]


def test_no_two_ids_are_the_same_when_squeezed() -> None:
    ids = list(models())
    assert len({squeeze(i) for i in ids}) == len(ids)


def test_native_precisions() -> None:
    natives = {i: m.native.precision for i, m in models().items()}
    assert natives["deepseek-ai/DeepSeek-V3"] == "fp8"
    assert natives["openai/gpt-oss-120b"] == "mxfp4"
    assert natives["moonshotai/Kimi-K2.6"] == "int4"
    assert natives["moonshotai/Kimi-K3"] == "mxfp4"
    assert natives["deepseek-ai/DeepSeek-V4-Pro"] == "mxfp4"
    assert natives["mistralai/Ministral-3-14B-Instruct-2512"] == "fp8"
    assert natives["zai-org/GLM-5.2"] == "bf16"
    for m in models().values():
        assert m.native.repo == m.id
        assert m.native.accuracy.value == 1.0


def test_every_prior_is_a_band_with_a_source() -> None:
    seen = 0
    for m in models().values():
        for c in m.checkpoints:
            a = c.accuracy
            assert a.low <= a.value <= a.high
            assert a.source
            assert c.source
            seen += c.precision != "bf16"
    assert seen > 150


def test_files_are_small_and_named_by_their_id() -> None:
    files = sorted(catalog_data("models").glob("*.json"))
    assert len(files) >= 140
    assert max(f.stat().st_size for f in files) < 30_000
    assert len(list(catalog_data("checkpoints").glob("*.json"))) == 38


def test_benchmark_files_resolve(shared: Path) -> None:
    """Every model named in the measurements, but for descriptions and models the catalogue does not cover."""
    left: set[str] = set()
    for path in sorted((shared / "measurements").glob("*.csv")):
        with path.open() as f:
            for row in csv.DictReader(f):
                name = row.get("model") or row.get("model_path") or ""
                if name:
                    try:
                        find_model(name, any_owner=True)
                    except UserError:
                        left.add(name)
    uncovered = {n for n in left if "/" in n and " " not in n}
    assert uncovered == {"TurbulenceDeterministe/Carnice-9b-W8A16-AWQ"}
    assert {n for n in left if " " not in n} - uncovered == {"Gemma-4-12B", "diffusiongemma-26B-A4B-it"}


# ---------------------------------------------------------------- a user's own


def test_a_folder_and_a_file_are_models(tmp_path: Path) -> None:
    folder(tmp_path, config__json=CONFIG)
    by_folder, by_file = find_model(str(tmp_path)), find_model(str(tmp_path / "config.json"))
    assert by_folder.kind == by_file.kind == "own"
    assert by_folder.config == CONFIG
    assert [(c.precision, c.online) for c in by_folder.checkpoints] == [("bf16", False), ("fp8", True)]
    assert model_json(by_folder)["params_total"] == model_json(by_file)["params_total"]


def test_the_index_gives_the_size(tmp_path: Path) -> None:
    folder(tmp_path, config__json=CONFIG, model__safetensors__index__json={"metadata": {"total_size": 123456}})
    native = find_model(str(tmp_path)).native
    assert (native.weights_bytes, native.weights_source) == (123456.0, "model.safetensors.index.json, total_size")
    assert model_json(find_model(str(tmp_path)))["checkpoints"][0]["weight_bytes"] == 123456


def test_a_quantised_folder_has_its_own_precision(tmp_path: Path) -> None:
    quantised = {**CONFIG, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    folder(tmp_path, config__json=quantised)
    model = find_model(str(tmp_path))
    assert [c.precision for c in model.checkpoints] == ["int4"]
    assert model_json(model)["checkpoints"][0]["default_format"] == "int4_g128"
    # Somebody's 4-bit copy is not the reference.
    assert model.native.accuracy.value < 1.0


def test_modelopts_own_file_is_read(tmp_path: Path) -> None:
    settings = {
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": ["lm_head", "model.layers.*.self_attn*"],
        }
    }
    folder(tmp_path, config__json=CONFIG, hf_quant_config__json=settings)
    native = find_model(str(tmp_path)).native
    assert (native.precision, native.kv_precision) == ("nvfp4", "fp8")
    formats = model_json(find_model(str(tmp_path)))["checkpoints"][0]["formats"]
    assert formats["attn:q_proj"] == "bf16"
    assert "dense_mlp:up_proj" not in formats


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "is not a mapping"),
        ('{"a": 1, "a": 2}', "key 'a' stands twice"),
        ('{"hidden_size": NaN}', "NaN stands in"),
        ('{"hidden_size": ' + "1" * 6000 + "}", "holds a number that cannot be read"),
        ("[" * 100_000, "nested too deeply"),
        ('{"quantization_config": "fp8"}', "quantization_config must be a mapping"),
    ],
)
def test_hostile_files_give_one_clear_error(tmp_path: Path, text: str, said: str) -> None:
    folder(tmp_path, config__json=text)
    with pytest.raises(UserError) as e:
        find_model(str(tmp_path))
    assert said in e.value.message


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as f:
        f.truncate(100 * 1000 * 1000)
    with pytest.raises(UserError, match=f"is 100 MB; at most {LARGEST_CONFIG_BYTES // 1_000_000} MB is read"):
        find_model(str(tmp_path))


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no config\.json"):
        find_model(str(tmp_path))
    with pytest.raises(UserError, match="does not exist"):
        find_model("./no/such/folder")


# ---------------------------------------------------------------- as JSON


def test_json_of_a_model() -> None:
    d = model_json(find_model("Qwen/Qwen3.5-397B-A17B"))
    asked = {"params_total", "params_active", "weight_bytes", "kv_bytes_per_token", "state_bytes_per_sequence",
             "cache_bytes", "linear_flops_per_token", "attention_flops_per_token"}  # fmt: skip
    assert asked <= set(d)
    assert json.loads(json.dumps(d)) == d
    assert (d["params_total"], d["state_bytes_per_sequence"]) == (396346350336, 192061440)
    assert d["kv_bytes_per_token"] == {"bf16": 30720, "fp8": 15360}
    assert d["cache_bytes"]["8192"] == 30720 * 8192 + 192061440
    nvfp4 = next(c for c in d["checkpoints"] if c["precision"] == "nvfp4")
    assert nvfp4["repo"] == "nvidia/Qwen3.5-397B-A17B-NVFP4"
    assert nvfp4["kv_precision"] == "fp8"
    assert nvfp4["accuracy"]["low"] < nvfp4["accuracy"]["value"]


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("meta-lama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("evil/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("evil/Llama-3.1-8B-Instruct-FP8", "meta-llama/Llama-3.1-8B-Instruct"),
        ("zhipuai/GLM-5", "zai-org/GLM-5"),
    ],
)
def test_an_owner_who_does_not_publish_the_model_is_refused(written: str, known: str) -> None:
    with pytest.raises(UserError, match="is not known to publish") as e:
        find_model(written)
    assert e.value.helps[0] == f"write {known}"


@pytest.mark.parametrize("written", ["unsloth/Llama-3.1-8B-Instruct", "RedHatAI/Qwen3-8B-FP8-dynamic", "llama-3.1-8b"])
def test_known_publishers_and_no_owner_are_taken(written: str) -> None:
    find_model(written)
