"""What a checkpoint says about its own number formats: `quantization_config` of config.json, or modelopt's
`hf_quant_config.json`, as one neutral value.

Checkpoints differ in what they leave alone: embedding, head, norms and router always; attention often; sometimes all
but the routed experts. So a label such as "NVFP4" does not decide the bytes; the lists in these files do.
Which matrix of a model each name means is worked out in `planner/perf/checkpoints.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from planner.errors import UserError, not_supported

Precision = Literal["bf16", "fp8", "int8", "int4", "nvfp4", "mxfp4", "mxfp8"]
"""Precision labels as people and plans use them; `planner/catalog/quant_support.yaml` is keyed by them."""

LABELS: dict[str, Precision] = {
    "bf16": "bf16",
    "fp8_block128": "fp8",
    "fp8_channel": "fp8",
    "fp8_tensor": "fp8",
    "int8_channel": "int8",
    "int4_g128": "int4",
    "int4_g32": "int4",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "mxfp8": "mxfp8",
}
"""Number format of weights -> label."""

NARROW_FIRST: tuple[Precision, ...] = ("nvfp4", "mxfp4", "int4", "mxfp8", "int8", "fp8", "bf16")

_EXCLUDES = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")


@dataclass(frozen=True, slots=True)
class Quantisation:
    """`default` is the format of every matrix that no rule names; names and patterns are the checkpoint's own."""

    default: str
    exclude: tuple[str, ...] = ()
    """Modules left in bf16: exact names, globs, or `re:` patterns."""
    layers: tuple[tuple[str, str], ...] = ()
    """(module name or pattern, format) of modules that are named one by one; they beat `exclude` and `default`."""
    experts: str | None = None
    """Format of the routed experts where it is given apart (DeepSeek-V4, gpt-oss)."""
    kv: Literal["fp8"] | None = None
    """The cache precision the checkpoint was calibrated for."""

    @property
    def precision(self) -> Precision:
        """The label of the format that most weights have: experts, else named modules, else the default."""
        if self.experts is not None:
            return LABELS[self.experts]
        # Mixed checkpoints are known by their narrowest format.
        found = {LABELS[self.default], *(LABELS[scheme] for _, scheme in self.layers)}
        return next(p for p in NARROW_FIRST if p in found)


def read_quantisation(
    config: Mapping[str, Any] | None,
    *,
    model: str,
    hf_quant: Mapping[str, Any] | None = None,
    expert_dtype: object = None,
) -> Quantisation | None:
    """Neutral facts from the files' own forms; None for an unquantised checkpoint."""
    inner = (hf_quant or {}).get("quantization")
    merged: dict[str, Any] = {**(inner if isinstance(inner, Mapping) else {}), **(config or {})}
    if not merged:
        return None
    if not isinstance(config or {}, Mapping):
        raise _error(model, "quantization_config must be a mapping")
    method = _text(merged, "quant_method", model).lower()
    algorithm = _text(merged, "quant_algo", model).upper()
    exclude = tuple(name for key in _EXCLUDES for name in modules(merged.get(key), model))
    kv = _kv(merged)
    experts = _experts(expert_dtype, model)
    if merged.get("weight_block_size") is not None or method in ("fp8", "deepseek_v4_fp8"):
        default = _fp8(merged, model)
        named = _named(merged, model) if algorithm == "MIXED_PRECISION" else ()
        # There, `ignore` lists what is not FP4: it stays FP8, except the head.
        exclude = tuple(n for n in exclude if "head" in n) if named else exclude
        return Quantisation(default, exclude, named, None if named else experts, kv)
    if method == "compressed-tensors":
        default, named = _groups(merged, model)
        return Quantisation(default, exclude, named, None, kv)
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return Quantisation("bf16", exclude, (), "mxfp4", kv)
    if method in (
        "awq",
        "gptq",
        "awq_marlin",
        "gptq_marlin",
        "auto_awq",
        "auto_gptq",
        "auto-round",
        "intel/auto-round",
    ):
        return Quantisation(_integer(merged, model), exclude, (), None, kv)
    if algorithm:
        if algorithm == "MIXED_PRECISION":
            return Quantisation("bf16", exclude, _named(merged, model), None, kv)
        return Quantisation(_modelopt(algorithm, model), exclude, (), None, kv)
    raise not_supported(f"quantisation method {method or 'without a name'!r} of {model}")


# ---------------------------------------------------------------- names


def modules(value: object, model: str) -> tuple[str, ...]:
    """Module names from a list, or from the catalogue's packed form {"layers.{}.mlp": "0-3,7"}."""
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return tuple(n for pattern, ranges in value.items() for n in _expand(str(pattern), str(ranges)))
    if isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise _error(model, "module lists in quantization_config must be lists of names")


def _expand(pattern: str, ranges: str) -> Iterable[str]:
    if not ranges:
        return (pattern,)
    found = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        found += [pattern.replace("{}", str(i), 1) for i in range(int(first), int(last or first) + 1)]
    return found


# ---------------------------------------------------------------- formats


def _error(model: str, message: str) -> UserError:
    return UserError("quantisation", f"config of {model}: {message}")


def _text(data: Mapping[str, Any], key: str, model: str) -> str:
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise _error(model, f"quantization_config.{key} must be text")
    return value or ""


def _number(value: object, what: str, model: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= 65536:
        raise _error(model, f"quantization_config.{what} must be a whole number")
    return value


def _kv(data: Mapping[str, Any]) -> Literal["fp8"] | None:
    scheme = data.get("kv_cache_quant_algo") or data.get("kv_cache_scheme")
    if isinstance(scheme, str):
        return "fp8" if scheme.upper().startswith("FP8") else None
    if isinstance(scheme, Mapping):
        return "fp8" if scheme.get("num_bits") == 8 and scheme.get("type") == "float" else None
    return None


def _experts(dtype: object, model: str) -> str | None:
    if dtype is None:
        return None
    if dtype in ("fp4", "mxfp4"):
        return "mxfp4"
    if dtype == "fp8":
        return None
    raise not_supported(f"expert_dtype {dtype!r} of {model}")


def _fp8(data: Mapping[str, Any], model: str) -> str:
    block = data.get("weight_block_size")
    if block is None:
        return "fp8_tensor"
    if block in ([128, 128], (128, 128)):
        return "fp8_block128"
    if block in ([1, 32], (1, 32)):
        return "mxfp8"
    raise not_supported(f"weight_block_size {block!r} of {model}")


def _modelopt(algorithm: str, model: str) -> str:
    known = {
        "FP8": "fp8_tensor",
        "FP8_PER_CHANNEL_PER_TOKEN": "fp8_channel",
        "FP8_PB_WO": "fp8_block128",
        "FP8_BLOCK_SCALES": "fp8_block128",
        "NVFP4": "nvfp4",
        "NVFP4_AWQ": "nvfp4",
        "W4A16_NVFP4": "nvfp4",
        "W4A16_AWQ": "int4_g128",
        "W4A8_AWQ": "int4_g128",
        "MXFP8": "mxfp8",
        "MXFP4": "mxfp4",
        "INT8_SQ": "int8_channel",
        "W8A8_SQ_PER_CHANNEL": "int8_channel",
    }
    if algorithm not in known:
        raise not_supported(f"quant_algo {algorithm} of {model}")
    return known[algorithm]


def _integer(data: Mapping[str, Any], model: str) -> str:
    bits = _number(data.get("bits", data.get("w_bit", 4)), "bits", model)
    group = _number(data.get("group_size", data.get("q_group_size", 128)), "group_size", model)
    return _grouped(bits, group, model)


def _grouped(bits: int, group: int, model: str) -> str:
    if bits == 4 and group in (32, 128):
        return f"int4_g{group}"
    raise not_supported(f"{bits}-bit integer weights in groups of {group} ({model})")


def _named(data: Mapping[str, Any], model: str) -> tuple[tuple[str, str], ...]:
    """Modules that are named with their format one by one (modelopt's mixed precision)."""
    layers = data.get("quantized_layers")
    if isinstance(layers, Mapping):
        pairs: list[tuple[tuple[str, ...], Any]] = [((str(name),), spec) for name, spec in layers.items()]
    elif isinstance(layers, (list, tuple)):
        pairs = [(modules(spec.get("modules"), model), spec) for spec in layers if isinstance(spec, Mapping)]
    else:
        raise _error(model, "mixed precision without quantized_layers")
    found = []
    for names, spec in pairs:
        if not isinstance(spec, Mapping):
            raise _error(model, "quantized_layers must give a mapping per module")
        scheme = _modelopt(_text(spec, "quant_algo", model).upper(), model)
        found += [(name, scheme) for name in names]
    return tuple(found)


def _groups(data: Mapping[str, Any], model: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """compressed-tensors: groups of targets with their weight format; "Linear" means every matrix."""
    groups = data.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise _error(model, "compressed-tensors without config_groups")
    default, named = "bf16", []
    for group in groups.values():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            raise _error(model, "config_groups must give weights")
        scheme = _weights(group["weights"], str(group.get("format") or data.get("format") or ""), model)
        targets = modules(group.get("targets") or ["Linear"], model)
        if any(re.fullmatch(r"\w*Linear|\w*MoE", t) for t in targets):
            default = scheme
        named += [(t, scheme) for t in targets if not re.fullmatch(r"\w*Linear|\w*MoE", t)]
    return default, tuple(named)


def _weights(w: Mapping[str, Any], form: str, model: str) -> str:
    bits = _number(w.get("num_bits"), "num_bits", model)
    kind, strategy = w.get("type", "int"), w.get("strategy")
    group = w.get("group_size")
    if kind == "float" and bits == 8:
        if strategy == "block":
            return _fp8({"weight_block_size": w.get("block_structure") or [128, 128]}, model)
        if group == 32 or form.startswith("mxfp8"):
            return "mxfp8"
        return "fp8_channel" if strategy == "channel" else "fp8_tensor"
    if kind == "float" and bits == 4:
        return "mxfp4" if group == 32 or form.startswith("mxfp4") else "nvfp4"
    if bits == 8 and strategy in ("channel", "tensor", None):
        return "int8_channel"
    return _grouped(bits, _number(group if group is not None else -1, "group_size", model), model)
