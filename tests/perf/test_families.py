"""Every class against the parameter count of its definition; what the layers are; and configs that make no sense."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog.models import find_model, models
from planner.errors import UserError
from planner.perf.arch import Attention, CompressedAttention, Mla, ModelArch, Recurrent
from planner.perf.families import read_arch
from planner.perf.families.classes import CLASSES, DECODERS, REFINED, SPECIAL, TYPES, WRAPPERS
from planner.perf.quantities import params_total

COUNTS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "class_counts.json").read_text())
"""Parameters (and load-balancing biases) of transformers 5.24.0's classes, instantiated without weights."""

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}


def arch(name: str) -> ModelArch:
    model = find_model(name)
    return read_arch(model.config, model.id)


@pytest.mark.parametrize("case", COUNTS, ids=lambda c: c["model_type"])
def test_parameters_are_those_of_the_class_definition(case: dict[str, Any]) -> None:
    a = read_arch({**case["config"], "model_type": case["model_type"]}, "case")
    assert params_total(a) == case["count"]


def test_every_row_is_reachable_and_every_class_has_one() -> None:
    named = {*CLASSES.values(), *WRAPPERS.values(), *TYPES.values()}
    assert named == set(DECODERS)
    assert set(SPECIAL) <= set(DECODERS)
    assert set(REFINED) <= set(DECODERS)


@pytest.mark.parametrize("name", sorted(models()))
def test_every_bundled_model_is_read(name: str) -> None:
    a = arch(name)
    assert a.name == name
    assert a.layer_count >= 12
    assert params_total(a) > 1e8
    for g in a.layers:
        for x in g.linears:
            assert min(x.inputs, x.outputs, x.copies) >= 1
            assert x.active <= x.copies
            # A matrix splits into whole units.
            assert (x.inputs if x.shard == "row" else x.outputs) % (x.units or 1) == 0, (g.name, x)


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "dense"),
        ("Qwen/Qwen3-235B-A22B", "moe"),
        ("deepseek-ai/DeepSeek-V3", "mla"),
        ("zai-org/GLM-5.2", "mla"),
        ("openai/gpt-oss-120b", "window"),
        ("google/gemma-3-27b-it", "window"),
        ("Qwen/Qwen3.5-397B-A17B", "hybrid"),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "hybrid"),
        ("deepseek-ai/DeepSeek-V4-Pro", "compressed"),
    ],
)
def test_family(model: str, family: str) -> None:
    assert arch(model).family == family


def mixers(a: ModelArch) -> dict[str, int]:
    found: dict[str, int] = {}
    for g in a.layers:
        m = g.mixer
        name = "none" if m is None else m.kind if isinstance(m, Recurrent) else type(m).__name__
        if isinstance(m, Attention) and m.window_tokens:
            name = f"window {m.window_tokens}"
        found[name] = found.get(name, 0) + g.count
    return found


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("openai/gpt-oss-120b", {"window 128": 18, "Attention": 18}),
        ("google/gemma-2-27b-it", {"window 4096": 23, "Attention": 23}),
        ("google/gemma-3-27b-it", {"window 1024": 52, "Attention": 10}),
        ("google/gemma-4-31B-it", {"window 1024": 50, "Attention": 10}),
        ("CohereLabs/command-a-03-2025", {"window 4096": 48, "Attention": 16}),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {"window 8192": 36, "Attention": 12}),
        ("XiaomiMiMo/MiMo-V2-Flash", {"window 128": 39, "Attention": 9}),
        ("stepfun-ai/Step-3.7-Flash", {"window 512": 33, "Attention": 12}),
        ("mistralai/Mistral-7B-v0.1", {"window 4096": 32}),
        ("mistralai/Mistral-7B-Instruct-v0.3", {"Attention": 32}),
        ("Qwen/Qwen2.5-7B-Instruct", {"Attention": 28}),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"gdn": 36, "Attention": 12}),
        ("moonshotai/Kimi-K3", {"kda": 69, "Mla": 24}),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", {"kda": 20, "Mla": 7}),
        ("ibm-granite/granite-4.0-h-small", {"mamba2": 36, "Attention": 4}),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", {"mamba2": 40, "Attention": 8, "none": 40}),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", {"Attention": 49, "none": 31}),
        ("deepseek-ai/DeepSeek-V4-Flash", {"CompressedAttention": 43}),
    ],
)
def test_layers_are_of_the_right_kinds(model: str, expected: dict[str, int]) -> None:
    assert mixers(arch(model)) == expected


def test_sparse_layers_say_so() -> None:
    v32 = arch("deepseek-ai/DeepSeek-V3.2").layers[0].mixer
    assert isinstance(v32, Mla)
    assert (v32.topk_tokens, v32.indexer_heads, v32.indexer_dim) == (2048, 64, 128)
    shared = [g for g in arch("zai-org/GLM-5.2").layers if isinstance(g.mixer, Mla) and not g.mixer.indexer_heads]
    assert sum(g.count for g in shared) == 57
    assert all(isinstance(g.mixer, Mla) and g.mixer.topk_tokens == 2048 and not g.mixer.indexer_cache for g in shared)
    m3 = [
        g.mixer for g in arch("MiniMaxAI/MiniMax-M3").layers if isinstance(g.mixer, Attention) and g.mixer.topk_tokens
    ]
    assert {m.topk_tokens for m in m3} == {2048}
    v4 = {
        g.mixer.compress_ratio
        for g in arch("deepseek-ai/DeepSeek-V4-Pro").layers
        if isinstance(g.mixer, CompressedAttention)
    }
    assert v4 == {4, 128}


def test_shared_caches_are_kept_once() -> None:
    a = arch("google/gemma-4-E2B-it")
    sharing = sum(g.count for g in a.layers if isinstance(g.mixer, Attention) and g.mixer.shares_kv)
    assert sharing == 20
    assert a.left_out == ("vision and audio encoders (text part only)",)


def test_approximate_models_say_so() -> None:
    assert arch("deepseek-ai/DeepSeek-V4-Flash").approximate
    assert not arch("deepseek-ai/DeepSeek-V3").approximate


# ---------------------------------------------------------------- the ways configs are written


def test_nested_text_config_reads_as_the_flat_one() -> None:
    flat = read_arch(LLAMA, "m")
    inner = {k: v for k, v in LLAMA.items() if k != "architectures"} | {"model_type": "llama"}
    nested = read_arch(
        {"architectures": ["LlavaForConditionalGeneration"], "text_config": inner, "vision_config": {"hidden_size": 8}},
        "m",
    )
    assert nested.layers == flat.layers
    assert nested.left_out
    assert not flat.left_out


def test_tie_may_stand_outside_the_text_config() -> None:
    inner = {k: v for k, v in LLAMA.items() if k != "architectures"} | {"model_type": "qwen3"}
    outer = {"architectures": ["Qwen3VLForConditionalGeneration"], "text_config": inner, "tie_word_embeddings": True}
    assert read_arch(outer, "m").tied_embeddings


def test_prediction_layers_may_be_listed_behind_the_others() -> None:
    config = {
        **LLAMA,
        "architectures": ["Step3p5ForCausalLM"],
        "head_dim": 8,
        "sliding_window": 16,
        "layer_types": ["full_attention", "sliding_attention"] * 2 + ["full_attention"],
        "num_nextn_predict_layers": 1,
        "attention_other_setting": {"num_attention_heads": 16, "num_attention_groups": 4, "head_dim": 8},
        "use_head_wise_attn_gate": True,
    }
    groups = {g.name: g for g in read_arch(config, "m").layers}
    wide = groups["window 16+dense"].mixer
    assert isinstance(wide, Attention)
    assert (wide.q_heads, wide.kv_heads) == (16, 4)


@pytest.mark.parametrize("key", ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"])
def test_experts_go_by_several_names(key: str) -> None:
    config = {
        **LLAMA,
        "architectures": ["Qwen3MoeForCausalLM"],
        key: 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 8,
    }
    a = read_arch(config, "m")
    assert {(g.moe.experts, g.moe.active, g.moe.expert_width) for g in a.layers if g.moe} == {(8, 2, 32)}


@pytest.mark.parametrize(
    ("extra", "sparse"),
    [
        ({"decoder_sparse_step": 2}, [1, 3]),
        ({"mlp_only_layers": [0, 3]}, [1, 2]),
        ({"first_k_dense_replace": 3}, [3]),
        ({"moe_layer_freq": [0, 1, 1, 0]}, [1, 2]),
        ({"mlp_layer_types": ["dense", "sparse", "dense", "sparse"]}, [1, 3]),
        ({"moe_layers": [2]}, [2]),
        ({"moe_layers_enum": "1,3"}, [1, 3]),
        ({}, [0, 1, 2, 3]),
    ],
)
def test_expert_layers_go_by_several_fields(extra: dict[str, Any], sparse: list[int]) -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8}
    a = read_arch({**LLAMA, "architectures": ["Qwen3MoeForCausalLM"], **experts, **extra}, "m")
    assert sorted(i for g in a.layers if g.moe for i in g.indices) == sparse


# ---------------------------------------------------------------- configs that make no sense


def test_an_unknown_architecture_is_refused_by_name() -> None:
    with pytest.raises(UserError) as e:
        read_arch({**LLAMA, "architectures": ["LlamaForCausalLMX"]}, "own/model")
    assert e.value.code == "unknown-architecture"
    assert e.value.render() == (
        "error[unknown-architecture]: own/model has the architecture LlamaForCausalLMX, "
        "which the planner does not know\n"
        "  = help: write LlamaForCausalLM or Llama4ForCausalLM or BambaForCausalLM\n"
        "  = help: add its class to planner/perf/families/classes.py, and a family module if its arithmetic differs"
    )


@pytest.mark.parametrize(
    "unknown", ["InklingForCausalLM", "Qwen4ExpForCausalLM", "MambaForCausalLM", "T5ForConditionalGeneration"]
)
def test_what_is_not_covered_is_refused(unknown: str) -> None:
    with pytest.raises(UserError, match=unknown):
        read_arch({**LLAMA, "architectures": [unknown], "model_type": "llama"}, "m")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": None}, "hidden_size (or n_embd, d_model, word_embed_proj_dim) is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number, not text '64'"),
        ({"hidden_size": 64.0}, "hidden_size must be a whole number, not number 64.0"),
        ({"hidden_size": True}, "hidden_size must be a whole number, not truth value True"),
        ({"hidden_size": -64}, "hidden_size is -64, outside 1 to 1000000"),
        ({"hidden_size": 10**5000}, "hidden_size is of hundreds of digits, outside"),
        ({"hidden_size": float("nan")}, "hidden_size must be a whole number, not number nan"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, outside 1 to 4096"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, outside"),
        ({"num_attention_heads": 7}, "7 attention heads do not divide into 2 KV heads"),
        ({"num_attention_heads": 6, "num_key_value_heads": 2}, "64 is not divisible by 6"),
        ({"vocab_size": []}, "vocab_size must be a whole number, not list []"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, not text 'yes'"),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be a list"),
        ({"architectures": [1]}, "architectures holds number 1 where str is expected"),
        ({"architectures": []}, "neither architectures nor model_type says what it is"),
        ({"text_config": 3}, "text_config must be a mapping, not number 3"),
        ({"text_config": {}}, "text_config.hidden_size (or n_embd, d_model, word_embed_proj_dim) is missing"),
        ({"attention_bias": 1}, "attention_bias must be true or false"),
    ],
)  # fmt: skip
def test_hostile_fields_give_one_clear_error(change: dict[str, Any], said: str) -> None:
    config = {**LLAMA, **change}
    with pytest.raises(UserError) as e:
        read_arch(config, "m")
    assert said in e.value.message


@pytest.mark.parametrize(
    ("model", "path", "value", "said"),
    [
        ("openai/gpt-oss-20b", "layer_types", ["full_attention"], "layer_types has 1 entries for 24 layers"),
        ("openai/gpt-oss-20b", "sliding_window", None, "sliding_window is missing"),
        ("openai/gpt-oss-20b", "num_experts_per_tok", 64, "64 experts per token of only 32 experts"),
        ("deepseek-ai/DeepSeek-V3", "kv_lora_rank", None, "kv_lora_rank is missing"),
        ("deepseek-ai/DeepSeek-V3.2", "index_n_heads", None, "index_n_heads is missing"),
        ("zai-org/GLM-5.2", "indexer_types", ["full"] * 77 + ["half"], "'half', not full or shared"),
        ("Qwen/Qwen3.8-2.4T-A95B", "linear_num_value_heads", 7, "7 linear value heads do not divide into 16"),
        ("Qwen/Qwen3.8-2.4T-A95B", "layer_types", ["rnn"] * 92, "'rnn', which is neither attention nor a known"),
        ("nvidia/Nemotron-H-56B-Base-8K", "hybrid_override_pattern", "M-X", "'X', not one of"),
        ("nvidia/Nemotron-H-56B-Base-8K", "hybrid_override_pattern", "M-", "has 2 layers, num_hidden_layers is 118"),
        ("nvidia/Nemotron-H-56B-Base-8K", "hybrid_override_pattern", "M" * 10**6, "more than any model has layers"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "block_configs", None, "block_configs is missing"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "block_configs", [{}] * 80, "attention and ffn must both be there"),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "linear_attn_config", {"full_attn_layers": [99]}, "outside 1 to"),
        ("deepseek-ai/DeepSeek-V4-Flash", "compress_ratios", [4], "compress_ratios needs 43 entries"),
        ("MiniMaxAI/MiniMax-M2", "use_qk_norm", "no", "use_qk_norm must be true or false"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "mamba_ssm_cache_dtype", "int3", "state precision 'int3' is not one of"),
    ],
)  # fmt: skip
def test_inconsistent_configs_name_what_is_wrong(model: str, path: str, value: object, said: str) -> None:
    config = copy.deepcopy(dict(find_model(model).config))
    config[path] = value
    if value is None:
        config.pop(path)
    with pytest.raises(UserError) as e:
        read_arch(config, model)
    assert said in e.value.message


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(-5, 5), st.text(max_size=3), st.none()), max_size=5),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=3),
)
SAMPLE = [
    "meta-llama/Meta-Llama-3.1-8B",
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash",
    "zai-org/GLM-5.2",
    "openai/gpt-oss-20b",
    "google/gemma-4-26B-A4B",
    "Qwen/Qwen3.5-35B-A3B",
    "moonshotai/Kimi-K3",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    "ibm-granite/granite-4.0-h-tiny",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "MiniMaxAI/MiniMax-M3",
    "XiaomiMiMo/MiMo-V2-Flash",
    "tiiuae/falcon-7b",
]


def refusal(config: dict[str, Any], name: str) -> UserError | None:
    """The error that reading ends in; anything else than a UserError fails the test."""
    try:
        assert params_total(read_arch(config, name)) > 0
    except UserError as e:
        return e
    return None


@given(st.data())
def test_law_any_mangled_config_is_read_or_refused_as_a_user_error(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(SAMPLE))
    config = copy.deepcopy(dict(models()[name].config))
    for _ in range(data.draw(st.integers(1, 3))):
        level = config
        if isinstance(config.get("text_config"), dict) and data.draw(st.booleans()):
            level = config["text_config"]
        if not level:
            continue
        key = data.draw(st.sampled_from(sorted(level)))
        if data.draw(st.booleans()):
            level.pop(key)
        else:
            level[key] = data.draw(JUNK)
    refused = refusal(config, name)
    assert refused is None or "\n" not in refused.message
