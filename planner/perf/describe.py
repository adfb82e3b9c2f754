"""A model as plain data, for `plan catalog models NAME --format json`."""

from __future__ import annotations

from typing import Any

from planner.catalog.models import Checkpoint, Model
from planner.perf.arch import ModelArch
from planner.perf.checkpoints import exceptions, weight_plan
from planner.perf.families import read_arch
from planner.perf.quantities import (
    SCHEMES,
    attention_flop_per_token,
    cache_bytes,
    experts_only,
    kv_bytes_per_token,
    linear_flop_per_token,
    params_active,
    params_total,
    state_bytes_per_sequence,
    uniform,
    weight_bytes,
)

CACHE_CONTEXTS = (1024, 8192, 32768, 131072)
FLOP_CONTEXTS = (1024, 8192, 131072)


def whole(value: float) -> int | float:
    """A whole number as an integer: exact figures stay readable."""
    return int(value) if value == int(value) else value


def model_json(model: Model) -> dict[str, Any]:
    """Everything the arithmetic says of a model, by name.

    `weight_bytes` is of the whole text model by number format, with embedding, head, norms, router and indexer wide;
    `weight_bytes_experts_only` quantises routed experts alone. `state_bytes_per_sequence` has the recurrent state in
    float32 (or as the config says) and convolution tails in bf16; `cache_bytes` is one sequence's bf16 cache and state
    with windows capped. `params_active` counts embedding and head; the narrower conventions stand beside it.
    """
    arch = read_arch(model.config, model.id)
    return {
        "id": model.id,
        "shape_of": model.shape_of,
        "kind": model.kind,
        "sources": [model.source],
        "family": arch.family,
        "architecture": arch.architecture,
        "layers": arch.layer_count,
        "hidden": arch.hidden,
        "vocab": arch.vocab,
        "max_context_tokens": arch.max_context_tokens,
        "params_total": params_total(arch),
        "params_with_mtp": params_total(arch, mtp=True),
        "params_active": params_active(arch),
        "params_active_no_embedding": params_active(arch, embed=False),
        "params_active_no_embedding_no_head": params_active(arch, embed=False, head=False),
        "weight_bytes": {s: weight_bytes(arch, uniform(s)) for s in SCHEMES},
        "weight_bytes_experts_only": (
            {s: weight_bytes(arch, experts_only(s)) for s in SCHEMES if s != "bf16"} if arch.moe else None
        ),
        "kv_bytes_per_token": {d: whole(kv_bytes_per_token(arch, d)) for d in ("bf16", "fp8")},
        "state_bytes_per_sequence": whole(state_bytes_per_sequence(arch)),
        "cache_bytes": {str(n): whole(cache_bytes(arch, "bf16", n)) for n in CACHE_CONTEXTS},
        "linear_flops_per_token": whole(linear_flop_per_token(arch)),
        "linear_flops_per_token_no_head": whole(linear_flop_per_token(arch, head=False)),
        "attention_flops_per_token": {str(n): whole(attention_flop_per_token(arch, n)) for n in FLOP_CONTEXTS},
        "left_out": list(arch.left_out),
        "approximate": list(arch.approximate),
        "checkpoints": [checkpoint_json(arch, c) for c in model.checkpoints],
    }


def checkpoint_json(arch: ModelArch, c: Checkpoint) -> dict[str, Any]:
    """One checkpoint: where it is, how big, how its weights are stored, what it keeps of the accuracy."""
    plan = weight_plan(arch, c)
    computed = weight_bytes(arch, plan)
    return {
        "repo": c.repo,
        "precision": c.precision,
        "online": c.online,
        "weight_bytes": whole(c.weights_bytes) if c.weights_bytes is not None else computed,
        "weight_bytes_source": c.weights_source or "computed",
        "default_format": plan.default,
        "formats": {what: scheme for what, scheme in plan.rules if scheme != plan.default},
        "exceptions": list(exceptions(arch, c)),
        "kv_precision": c.kv_precision,
        "accuracy": {
            "value": c.accuracy.value,
            "low": c.accuracy.low,
            "high": c.accuracy.high,
            "source": c.accuracy.source,
        },
        "source": c.source,
    }
