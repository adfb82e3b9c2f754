"""Models as measurement files name them -> their arithmetic and how a checkpoint of a precision stores them."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from planner.catalog.models import Model, find_model
from planner.errors import UserError
from planner.perf.arch import ModelArch, Scheme, WeightPlan
from planner.perf.checkpoints import weight_plan
from planner.perf.families import read_arch
from planner.perf.quantities import experts_only, uniform

# Quantised checkpoints of the same weights under another name than the catalogue lists.
_SAME = {
    "deepseek-ai/DeepSeek-V3": "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-R1-0528": "deepseek-ai/DeepSeek-R1",
}
# The engines that were measured on Mistral-7B ran it without its sliding window (TensorRT-LLM keeps the whole cache
# unless told; the vLLM runs stay below 4,096 tokens): v0.3 is the same shape without one.
_WITHOUT_WINDOW = {f"mistralai/Mistral-7B{v}": "mistralai/Mistral-7B-Instruct-v0.3" for v in ("", "-v0.1")}
# Formats a sweep used where no public checkpoint of that precision is in the catalogue.
_UNIFORM: dict[str, Scheme] = {
    "fp8": "fp8_tensor",
    "int8": "int8_channel",
    "int4": "int4_g128",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
}


@functools.cache
def model_of(name: str) -> Model:
    """The catalogue's model, with what measurement files add to a name cut off."""
    plain = name.rstrip("?").split(" (")[0]
    return find_model(_WITHOUT_WINDOW.get(plain, plain), any_owner=True)


@functools.cache
def _arch(shape_of: str) -> ModelArch:
    model = find_model(shape_of, any_owner=True)
    return read_arch(model.config, model.id)


def arch_of(name: str) -> ModelArch:
    """The model's arithmetic; models of one shape share one value."""
    return _arch(model_of(name).shape_of)


_CONTEXT = ("max_position_embeddings", "max_sequence_length", "seq_length", "n_positions", "model_max_length")


@functools.cache
def context_of(name: str) -> int | None:
    """The longest request the model's own config allows, tokens; None where the config does not say."""
    model = model_of(name)
    inner = model.config.get("text_config")
    parts = (model.config, inner if isinstance(inner, Mapping) else {})
    if not any(part.get(key) for part in parts for key in _CONTEXT):
        return None
    return read_arch(model.config, model.id).max_context_tokens


@functools.cache
def weights_of(name: str, precision: str) -> WeightPlan:
    """How the checkpoint of that precision stores the weights.

    Block-scaled FP8 is preferred where the catalogue has no say: where it has two, its first is what people run.
    """
    model, arch = model_of(name), arch_of(name)
    for m in (model, *((find_model(_SAME[model.id], any_owner=True),) if model.id in _SAME else ())):
        for checkpoint in m.checkpoints:
            if checkpoint.precision == precision:
                return weight_plan(arch, checkpoint)
    if precision == "bf16":
        return uniform("bf16")
    if precision not in _UNIFORM:
        raise UserError("case", f"no {precision} checkpoint of {name} is known")
    scheme = _UNIFORM[precision]
    # Four-bit checkpoints of MoE models quantise the experts, FP8 ones everything.
    return experts_only(scheme) if arch.moe and precision != "fp8" else uniform(scheme)
