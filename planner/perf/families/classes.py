"""Every architecture class the planner knows, by the name in config.json, and how to read it.

To add one: if it is a usual decoder, add a `Traits` row to `DECODERS` and its class names to `CLASSES`; if its
arithmetic differs, write a family module with `read(fields, traits) -> Read` and name it in `SPECIAL`.
Rows follow the class definitions in transformers 5.24.0 and are checked by the published checkpoints' element counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from planner.perf.families.base import Fields
from planner.perf.families.compressed import deepseek_v4
from planner.perf.families.decoder import Read, Traits
from planner.perf.families.gemma import gemma4
from planner.perf.families.hybrid import (
    bailing,
    bamba,
    falcon_h1,
    glm_next,
    granite,
    kimi_linear,
    lfm2,
    minimax_text,
    nemotron_h,
    qwen_next,
)
from planner.perf.families.nas import nas
from planner.perf.families.sparse import dots3, minimax_m3, mistral_large4

_BIAS = ("attention_bias", False)
_ALL_BIASED = Traits(qkv_bias=_BIAS, o_bias=_BIAS, mlp_bias=("mlp_bias", False), window="none")
_QWEN2 = Traits(qkv_bias=True, window="switched")
_QWEN3 = Traits(head_dim=128, qkv_bias=_BIAS, o_bias=_BIAS, qk_norm="head", window="switched", step_from_one=True)
_DEEPSEEK = Traits(mixer="mla", router_bias=True, mtp="layer", mtp_copies_embeddings=True)
_GLM4 = Traits(head_dim=128, qkv_bias=("attention_bias", True), norms_per_layer=4, window="none")
_GLM_MOE = Traits(
    qkv_bias=_BIAS,
    qk_norm="head",
    qk_norm_field=("use_qk_norm", False),
    window="none",
    router_bias=True,
    first_dense=1,
    mtp="layer",
    mtp_copies_embeddings=True,
)
_GEMMA2 = Traits(head_dim=256, qkv_bias=_BIAS, o_bias=_BIAS, norms_per_layer=4, tied=True, window="alternate")
_GPT = Traits(
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
    gated=False,
    norm_bias=True,
    tied=True,
    window="none",
    four_hidden=True,
    dense_width=("n_inner", "intermediate_size", "ffn_dim", "ffn_hidden_size"),
)
_STEP = Traits(
    head_dim=128,
    qkv_bias=_BIAS,
    o_bias=_BIAS,
    mlp_bias=("mlp_bias", False),
    qk_norm="head",
    gate_fields=("gating", "use_head_wise_attn_gate"),
    router_bias=True,
    first_dense=3,
)

DECODERS: Final[dict[str, Traits]] = {
    "apertus": Traits(qkv_bias=_BIAS, o_bias=_BIAS, qk_norm="head", gated=False, window="none", activation_params=2),
    "arcee": replace(_ALL_BIASED, gated=False),
    "baichuan": Traits(window="none"),
    "bailing_hybrid": Traits(router_bias=True, first_dense=2),
    "bamba": Traits(),
    "bloom": replace(_GPT, embed_norm=True),
    "chatglm": Traits(qkv_bias=("add_qkv_bias", False), o_bias=("add_bias_linear", False), window="none"),
    "cohere": Traits(
        qkv_bias=_BIAS,
        o_bias=_BIAS,
        qk_norm="per_head",
        qk_norm_field=("use_qk_norm", False),
        norms_per_layer=1,
        tied=True,
        window="none",
    ),
    "cohere2": Traits(qkv_bias=_BIAS, o_bias=_BIAS, norms_per_layer=1, tied=True, window="period", window_period=4),
    "decilm": Traits(),
    "deepseek_v2": Traits(mixer="mla"),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v4": Traits(),
    "dots1": Traits(qkv_bias=_BIAS, o_bias=_BIAS, qk_norm="head", window="switched", router_bias=True),
    "dots3_note": Traits(mixer="mla", router_bias=True, first_dense=1),
    "ernie4_5": Traits(
        head_dim=128,
        qkv_bias=("use_bias", False),
        o_bias=("use_bias", False),
        mlp_bias=("use_bias", False),
        tied=True,
        window="none",
    ),
    "ernie4_5_moe": Traits(
        qkv_bias=("use_bias", False),
        o_bias=("use_bias", False),
        mlp_bias=("use_bias", False),
        tied=True,
        window="none",
        router_bias=True,
        first_dense=1,
        step_from_one=True,
    ),
    "exaone": Traits(window="none"),
    "exaone4": Traits(qk_norm="head", window="period", window_period=4),
    "exaone_moe": Traits(
        qk_norm="head", window="period", window_period=4, router_bias=True, first_dense=1, default_shared=1
    ),
    "falcon": Traits(),
    "falcon_h1": Traits(),
    "gemma": Traits(head_dim=256, qkv_bias=_BIAS, o_bias=_BIAS, tied=True, window="none"),
    "gemma2": _GEMMA2,
    "gemma3": replace(_GEMMA2, qk_norm="head", window="period", window_period=6),
    "gemma4": Traits(tied=True),
    "glm": replace(_GLM4, norms_per_layer=2),
    "glm4": _GLM4,
    "glm4_moe": _GLM_MOE,
    "glm4_moe_lite": _DEEPSEEK,
    "glm5_next": Traits(mixer="mla", router_bias=True),
    "glm_moe_dsa": replace(_DEEPSEEK, mtp_copies_embeddings=False),
    "gpt2": replace(_GPT, position_rows=0),
    "gpt_bigcode": replace(_GPT, position_rows=0),
    "gpt_neox": replace(_GPT, qkv_bias=("attention_bias", True), o_bias=("attention_bias", True), tied=False),
    "gpt_oss": Traits(
        head_dim=64,
        qkv_bias=("attention_bias", True),
        o_bias=("attention_bias", True),
        window="alternate",
        sinks=True,
        router_bias=True,
        expert_bias=True,
    ),
    "granite": _ALL_BIASED,
    "granitemoe": Traits(qkv_bias=_BIAS, o_bias=_BIAS, window="none"),
    "granitemoehybrid": Traits(tied=True),
    "hunyuan_v1_dense": Traits(qkv_bias=_BIAS, o_bias=_BIAS, qk_norm="head", window="none"),
    "hunyuan_v1_moe": Traits(qkv_bias=_BIAS, o_bias=_BIAS, qk_norm="head", window="none", default_shared=1),
    "hy_v3": Traits(
        qkv_bias=_BIAS,
        o_bias=_BIAS,
        qk_norm="head",
        window="none",
        router_bias=True,
        mtp="layer",
        first_dense=1,
        default_shared=1,
        head_dim=128,
    ),
    "internlm2": Traits(qkv_bias=("bias", False), o_bias=("bias", False), window="none"),
    "internlm3": Traits(qkv_bias=("qkv_bias", False), o_bias=("bias", False), mlp_bias=("bias", False), window="none"),
    "kimi_linear": Traits(router_bias=True),
    "laguna": Traits(
        qkv_bias=_BIAS,
        o_bias=_BIAS,
        qk_norm="head",
        gate_fields=("gating",),
        gate_default=True,
        head_dim=128,
        router_bias=True,
        first_dense=1,
    ),
    "lfm2": Traits(tied=True),
    "lfm2_moe": Traits(tied=True, router_bias=True, first_dense=2),
    "llama": _ALL_BIASED,
    "llama4": Traits(
        head_dim=128,
        qkv_bias=_BIAS,
        o_bias=_BIAS,
        window="chunked",
        default_shared=1,
        step_from_one=True,
        dense_width=("intermediate_size_mlp",),
    ),
    "mimo": Traits(qkv_bias=True, window="switched", mtp="layer"),
    "mimo_v2_flash": Traits(
        window_kv_factor=2,
        head_dim=192,
        qkv_bias=_BIAS,
        router_bias=True,
        first_dense=1,
        sinks=("add_full_attention_sink_bias", False),
        window_sinks=("add_swa_attention_sink_bias", True),
        window="first_and_period",
        window_period=6,
    ),
    "minimax": Traits(),
    "minimax_m2": Traits(
        head_dim=128, qk_norm="full", qk_norm_field=("use_qk_norm", True), window="none", router_bias=True
    ),
    "minimax_m3": Traits(qk_norm="head", router_bias=True),
    "ministral3": Traits(window="all", head_dim=128),
    "mistral": Traits(window="all"),
    "mistral4": replace(_DEEPSEEK, router_bias=False, mtp_copies_embeddings=False),
    "mistral_large4": Traits(mixer="mla", first_dense=1),
    "mixtral": Traits(window="all"),
    "nemotron": replace(_ALL_BIASED, gated=False, norm_bias=True),
    "nemotron_h": Traits(),
    "olmo": replace(_ALL_BIASED, norms_per_layer=0, final_norm=False),
    "olmo2": Traits(qkv_bias=_BIAS, o_bias=_BIAS, qk_norm="full", window="none"),
    "olmo3": Traits(qkv_bias=_BIAS, o_bias=_BIAS, qk_norm="full", window="period", window_period=4),
    "olmoe": Traits(qkv_bias=_BIAS, o_bias=_BIAS, qk_norm="full", window="none"),
    "opt": replace(_GPT, position_rows=2),
    "phi": replace(
        _GPT, norms_per_layer=1, tied=False, head_bias=True, qk_norm="head", qk_norm_field=("qk_layernorm", False)
    ),
    "phi3": Traits(window="all"),
    "phimoe": Traits(qkv_bias=_BIAS, o_bias=_BIAS, norm_bias=True, head_bias=("lm_head_bias", False), window="all"),
    "qwen2": _QWEN2,
    "qwen2_moe": Traits(qkv_bias=("qkv_bias", True), window="switched", shared_gate=True, step_from_one=True),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_next": Traits(qkv_bias=_BIAS, o_bias=_BIAS, shared_gate=True, step_from_one=True),
    "seed_oss": Traits(
        head_dim=128,
        qkv_bias=("attention_bias", True),
        o_bias=("attention_out_bias", False),
        mlp_bias=("mlp_bias", False),
        window="none",
    ),
    "smollm3": replace(_ALL_BIASED, tied=True, window="switched"),
    "stablelm": Traits(qkv_bias=("use_qkv_bias", False), norm_bias=True, window="none"),
    "starcoder2": Traits(
        qkv_bias=("use_bias", True),
        o_bias=("use_bias", True),
        mlp_bias=("use_bias", True),
        gated=False,
        norm_bias=True,
        tied=True,
    ),
    "step3p7": _STEP,
}
"""Traits by key; most keys are the config's own `model_type`."""


def _falcon(f: Fields, t: Traits) -> Traits:
    """Falcon: one KV head unless the newer layout names more; one shared norm per layer or one for each half."""
    new = f.flag("new_decoder_architecture", default=False)
    parallel = f.flag("parallel_attn", default=True)
    old_kv = 1 if f.flag("multi_query", default=True) else f.heads
    kv = f.whole("num_kv_heads", default=f.heads) if new else old_kv
    count = f.whole("num_ln_in_parallel_attn", default=2 if new else 1)
    bias = f.flag("bias", default=False)
    return Traits(
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        gated=False,
        norm_bias=True,
        norms_per_layer=count if parallel else 2,
        tied=True,
        window="none",
        forced_kv=kv,
        dense_width=("ffn_hidden_size",),
        four_hidden=True,
    )


def _multi_query(f: Fields, t: Traits) -> Traits:
    return replace(t, forced_kv=1) if f.flag("multi_query", default=True) else t


def _stablelm(f: Fields, t: Traits) -> Traits:
    if f.flag("qk_layernorm", default=False):
        raise f.error("qk_layernorm is not known for StableLM")
    return replace(t, norms_per_layer=1) if f.flag("use_parallel_residual", default=False) else t


REFINED: Final[dict[str, Callable[[Fields, Traits], Traits]]] = {
    "falcon": _falcon,
    "gpt_bigcode": _multi_query,
    "stablelm": _stablelm,
}
"""Classes whose traits depend on several fields of the config."""

SPECIAL: Final[dict[str, Callable[[Fields, Traits], Read]]] = {
    "bailing_hybrid": bailing,
    "bamba": bamba,
    "decilm": nas,
    "deepseek_v4": deepseek_v4,
    "dots3_note": dots3,
    "falcon_h1": falcon_h1,
    "gemma4": gemma4,
    "glm5_next": glm_next,
    "granitemoehybrid": granite,
    "kimi_linear": kimi_linear,
    "lfm2": lfm2,
    "lfm2_moe": lfm2,
    "minimax": minimax_text,
    "minimax_m3": minimax_m3,
    "mistral_large4": mistral_large4,
    "nemotron_h": nemotron_h,
    "qwen3_next": qwen_next,
}
"""Keys with a reader of their own."""

CLASSES: Final[dict[str, str]] = {
    "ApertusForCausalLM": "apertus",
    "ArceeForCausalLM": "arcee",
    "BaichuanForCausalLM": "baichuan",
    "BaiChuanForCausalLM": "baichuan",
    "BailingHybridForCausalLM": "bailing_hybrid",
    "BambaForCausalLM": "bamba",
    "BloomForCausalLM": "bloom",
    "ChatGLMModel": "chatglm",
    "ChatGLMForConditionalGeneration": "chatglm",
    "Cohere2ForCausalLM": "cohere2",
    "CohereForCausalLM": "cohere",
    "DeciLMForCausalLM": "decilm",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV32ForCausalLM": "deepseek_v3",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "Dots1ForCausalLM": "dots1",
    "Dots3NoteForCausalLM": "dots3_note",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5_moe",
    "Exaone4ForCausalLM": "exaone4",
    "ExaoneForCausalLM": "exaone",
    "ExaoneMoeForCausalLM": "exaone_moe",
    "ExaoneMoEForCausalLM": "exaone_moe",
    "FalconForCausalLM": "falcon",
    "FalconH1ForCausalLM": "falcon_h1",
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "gpt_bigcode",
    "GPTNeoXForCausalLM": "gpt_neox",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma4ForCausalLM": "gemma4",
    "GemmaForCausalLM": "gemma",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4_moe",
    "Glm4MoeLiteForCausalLM": "glm4_moe_lite",
    "GlmForCausalLM": "glm",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa",
    "GptOssForCausalLM": "gpt_oss",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeHybridForCausalLM": "granitemoehybrid",
    "GraniteMoeSharedForCausalLM": "granitemoe",
    "HunYuanDenseV1ForCausalLM": "hunyuan_v1_dense",
    "HunYuanMoEV1ForCausalLM": "hunyuan_v1_moe",
    "HYV3ForCausalLM": "hy_v3",
    "InternLM2ForCausalLM": "internlm2",
    "InternLM3ForCausalLM": "internlm3",
    "KimiLinearForCausalLM": "kimi_linear",
    "LagunaForCausalLM": "laguna",
    "Lfm2ForCausalLM": "lfm2",
    "Lfm2MoeForCausalLM": "lfm2_moe",
    "Llama4ForCausalLM": "llama4",
    "LlamaForCausalLM": "llama",
    "MiMoForCausalLM": "mimo",
    "MiMoV2FlashForCausalLM": "mimo_v2_flash",
    "MiniMaxForCausalLM": "minimax",
    "MiniMaxM1ForCausalLM": "minimax",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "MiniMaxM3ForCausalLM": "minimax_m3",
    "MiniMaxText01ForCausalLM": "minimax",
    "Ministral3ForCausalLM": "ministral3",
    "MinistralForCausalLM": "mistral",
    "MistralForCausalLM": "mistral",
    "MistralLarge3ForCausalLM": "deepseek_v3",
    "Mistral4ForCausalLM": "mistral4",
    "MistralLarge4ForCausalLM": "mistral_large4",
    "MixtralForCausalLM": "mixtral",
    "NemotronForCausalLM": "nemotron",
    "NemotronHForCausalLM": "nemotron_h",
    "OPTForCausalLM": "opt",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "OlmoForCausalLM": "olmo",
    "OlmoeForCausalLM": "olmoe",
    "Phi3ForCausalLM": "phi3",
    "PhiForCausalLM": "phi",
    "PhiMoEForCausalLM": "phimoe",
    "PhimoeForCausalLM": "phimoe",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForCausalLM": "qwen3_next",
    "Qwen3_5MoeForCausalLM": "qwen3_next",
    "SeedOssForCausalLM": "seed_oss",
    "SmolLM3ForCausalLM": "smollm3",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
    "Step3p5ForCausalLM": "step3p7",
    "Step3p7FlashForCausalLM": "step3p7",
    "Step3p7ForCausalLM": "step3p7",
}
"""Class name -> key. The class decides; `model_type` only where there is no class."""

WRAPPERS: Final[dict[str, str]] = {
    "AyaVisionForConditionalGeneration": "cohere2",
    "Cohere2VisionForConditionalGeneration": "cohere2",
    "Dots3NoteForConditionalGeneration": "dots3_note",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma4ForConditionalGeneration": "gemma4",
    "Gemma4UnifiedForConditionalGeneration": "gemma4",
    "Glm4vMoeForConditionalGeneration": "glm4_moe",
    "Glm5NextForConditionalGeneration": "glm5_next",
    "InternVLForConditionalGeneration": "qwen2",
    "InternVLChatModel": "qwen2",
    "KimiK25ForConditionalGeneration": "deepseek_v3",
    "KimiK3ForConditionalGeneration": "kimi_linear",
    "Llama4ForConditionalGeneration": "llama4",
    "LlavaForConditionalGeneration": "llama",
    "LlavaNextForConditionalGeneration": "mistral",
    "MiniMaxM3SparseForConditionalGeneration": "minimax_m3",
    "Mistral3ForConditionalGeneration": "mistral",
    "MistralLarge4ForConditionalGeneration": "mistral_large4",
    "Qwen2VLForConditionalGeneration": "qwen2",
    "Qwen2_5_VLForConditionalGeneration": "qwen2",
    "Qwen3VLForConditionalGeneration": "qwen3",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_moe",
    "Qwen3_5ForConditionalGeneration": "qwen3_next",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_next",
    "Step3p7ForConditionalGeneration": "step3p7",
}
"""Multimodal classes: the text part is what its own config says, or this key where that is silent."""

TYPES: Final[dict[str, str]] = {
    "deepseek_v32": "deepseek_v3",
    "dots3_note_text": "dots3_note",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "gemma4_unified_text": "gemma4",
    "glm4v_moe_text": "glm4_moe",
    "glm5_next_text": "glm5_next",
    "granitemoeshared": "granitemoe",
    "kimi_k2": "deepseek_v3",
    "llama4_text": "llama4",
    "minimax_m3_vl_text": "minimax_m3",
    "ministral": "mistral",
    "mistral_large4_text": "mistral_large4",
    "nemotron-nas": "decilm",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_5_moe_text": "qwen3_next",
    "qwen3_5_text": "qwen3_next",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
    "step3p5": "step3p7",
    "step3p7_text": "step3p7",
} | {k: k for k in DECODERS}
"""`model_type` -> key, for text parts of multimodal models and for configs without a class."""
