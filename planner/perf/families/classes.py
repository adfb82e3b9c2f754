"""Every architecture class the planner knows, by the name in config.json, and how to read it.

To add one: if it is a usual decoder, add a `Traits` row to `DECODERS` and its class names to `CLASSES`; if its
arithmetic differs, write a family module with `read(fields) -> Read` and name it in `SPECIAL`.
Rows follow the class definitions in transformers 5.24.0 and are checked by the published checkpoints' element counts.
"""

from __future__ import annotations

from typing import Final

from planner.perf.families.decoder import Traits

_QWEN2 = Traits(qkv_bias=True, window="switched")
_QWEN3 = Traits(qkv_bias=("attention_bias", False), o_bias=("attention_bias", False), qk_norm="head", window="switched")
_DEEPSEEK = Traits(mixer="mla", router_bias=True, mtp="layer", mtp_copies_embeddings=True)

DECODERS: Final[dict[str, Traits]] = {
    "llama": Traits(
        qkv_bias=("attention_bias", False),
        o_bias=("attention_bias", False),
        mlp_bias=("mlp_bias", False),
        window="none",
    ),
    "mistral": Traits(window="all"),
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "mixtral": Traits(window="all"),
    "qwen3_moe": _QWEN3,
    "deepseek_v2": Traits(mixer="mla"),
    "deepseek_v3": _DEEPSEEK,
}
"""Traits by key; most keys are the config's own `model_type`."""

CLASSES: Final[dict[str, str]] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV32ForCausalLM": "deepseek_v3",
}
"""Class name -> key."""
