"""Models as measurement files name them, and the number formats their checkpoints use."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

from planner.errors import UserError
from planner.perf.arch import ModelArch, WeightPlan
from planner.perf.families import read_arch
from planner.perf.quantities import experts_only, uniform

ALIASES = {
    "meta-llama/Llama-3.1-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-405B-Instruct": "meta-llama/Meta-Llama-3.1-405B",
    "meta-llama/Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Meta-Llama-3-8B": "meta-llama/Meta-Llama-3-8B-Instruct",
    "meta-llama/Meta-Llama-3-70B": "meta-llama/Meta-Llama-3-70B-Instruct",
    "meta-llama/Llama-2-70b-chat-hf": "meta-llama/Llama-2-70b-hf",
    "deepseek-ai/DeepSeek-R1 (V3 arch)": "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-R1-0528": "deepseek-ai/DeepSeek-R1",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-R1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-ai/DeepSeek-V3.1",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mistralai/Mixtral-8x7B-v0.1",
    "mistralai/Mistral-7B": "mistralai/Mistral-7B-Instruct-v0.3",
    "mistralai/Mistral-7B-v0.1": "mistralai/Mistral-7B-Instruct-v0.3",
    "Qwen/Qwen2-7B": "Qwen/Qwen2-7B-Instruct",
    "Qwen/Qwen2-72B": "Qwen/Qwen2.5-72B-Instruct",
    "zhipuai/GLM-5": "zai-org/GLM-5",
    "zai-org/GLM-5.1-FP8": "zai-org/GLM-5.1",
    "Qwen/Qwen3-235B-A22B-FP8": "Qwen/Qwen3-235B-A22B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
    "Qwen/Qwen3-14B-AWQ": "Qwen/Qwen3-14B",
    "nvidia/Nemotron-3-Nano-30B-A3B": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "google/gemma-4-26B-A4B-it": "google/gemma-4-26B-A4B",
}


@functools.cache
def arch_of(model: str) -> ModelArch:
    name = ALIASES.get(model, model)
    path = Path(os.environ.get("PLANNER_SHARED", "/work/shared")) / "facts/models" / (name.replace("/", "--") + ".json")
    if not path.exists():
        raise UserError("case", f"no configuration of {model} in the catalogue")
    p = json.loads(path.read_text())
    return read_arch(p.get("config", p), name)


@functools.cache
def weights_of(model: str, arch: ModelArch, precision: str) -> WeightPlan:
    n = model.lower()
    if precision == "bf16":
        return uniform("bf16")
    if precision == "fp8":
        return uniform("fp8_tensor" if any(x in n for x in ("llama", "mistral", "mixtral")) else "fp8_block128")
    if precision == "nvfp4":
        if "deepseek" in n:
            return WeightPlan("nvfp4", (("q_a_proj", "bf16"), ("q_b_proj", "bf16"), ("kv_a_proj_with_mqa", "bf16"), ("kv_b_proj", "bf16"), ("lm_head", "bf16"), ("indexer", "bf16")))
        if any(x in n for x in ("qwen3.5", "kimi", "minimax", "glm")):
            return experts_only("nvfp4")
        return uniform("nvfp4")
    if precision == "mxfp4":
        return experts_only("mxfp4")
    if precision == "int4":
        return experts_only("int4_g32") if arch.moe else uniform("int4_g128")
    return uniform("int8_channel")
