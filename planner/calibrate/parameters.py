"""Which constants are fitted for which engine generation, from where, and how far the data may pull them.

Scopes: `shared` by the generation's engines, `engine` (one value per engine), `arch` (one per GPU architecture). Every
value is positive and fitted as a logarithm with a Gaussian prior around its hand-set start: kernel tables and engine
documents say where it should be, measurements move it. What an engine generation uses of them is at most twenty;
everything else in `Constants` stays as `base` sets it, rounded, and is not fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from planner.perf.calibration import Constants

Scope = Literal["shared", "engine", "arch"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One fitted constant. `sd` is the prior's standard deviation of the logarithm."""

    name: str
    scope: Scope
    start: float
    sd: float
    engines: tuple[str, ...] = ()
    """Engines that have it at all; empty: every one."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What is fitted for one engine generation."""

    name: str
    base: Constants
    parameters: tuple[Parameter, ...]
    prefill_first: tuple[str, ...] = ()
    weights: tuple[float, float, float] = (1.0, 0.5, 0.7)
    """Of TPOT, TTFT and throughput residuals."""


P = Parameter

# Set once from a wider fit (all of them free), rounded, and left alone: each is weakly identified by serving rows.
_SET = replace(
    Constants(),
    moe_skew=0.72,
    moe_narrow=20.0,
    prefill_attention_ratio=0.9,
    host_step_s=0.35e-3,
    host_seq_s=8e-6,
    smooth=3.0,
    lockstep_prompts=1.3,
    dp_stall_ratio=1.2,
    ep_imbalance_ratio=1.15,
    handover_s=0.05,
)

MODERN = Generation(
    "modern",
    _SET,
    (
        P("hbm_ratio", "shared", 1.07, 0.05),
        P("flop_ratio", "shared", 1.1, 0.15),
        P("moe_flop_ratio", "shared", 0.6, 0.3),
        P("int4_ratio", "shared", 0.5, 0.3),
        P("attention_layer_s", "shared", 18e-6, 0.4),
        P("mla_layer_s", "shared", 25e-6, 0.4),
        P("sparse_layer_s", "shared", 40e-6, 0.5),
        P("recurrent_layer_s", "shared", 25e-6, 0.5),
        P("moe_layer_s", "shared", 33e-6, 0.5),
        P("kv_ratio", "shared", 0.9, 0.15),
        P("allreduce_ratio", "shared", 1.2, 0.3),
        P("traffic_ratio", "shared", 1.3, 0.3),
        P("moe_fp8_ratio", "engine", 0.75, 0.2),
        P("launch_ratio", "engine", 1.0, 0.2),
        P("first_kernel_s", "engine", 12e-6, 0.7),
        P("request_s", "engine", 30e-3, 1.0),
        P("stream_s", "engine", 0.4e-3, 1.0),
        P("yearly_ratio", "engine", 0.9, 0.08),
        P("host_yearly_ratio", "engine", 0.7, 0.3),
        P("dp_wait_steps", "engine", 5.0, 0.7, ("tensorrt-llm",)),
    ),
    prefill_first=("sglang",),
)

_OLD = (
    P("hbm_ratio", "arch", 1.05, 0.2),
    P("flop_ratio", "arch", 1.0, 0.3),
    P("launch_ratio", "shared", 1.0, 0.3),
    P("attention_layer_s", "shared", 25e-6, 0.6),
    P("kv_ratio", "shared", 0.95, 0.2),
    P("allreduce_ratio", "shared", 1.2, 0.5),
    P("traffic_ratio", "shared", 1.3, 0.5),
    P("host_step_s", "shared", 1e-3, 1.0),
    P("host_seq_s", "shared", 10e-6, 1.0),
    P("request_s", "shared", 20e-3, 1.0),
)
_MOE = (P("moe_flop_ratio", "shared", 0.6, 0.5), P("moe_narrow", "shared", 60.0, 0.7))

VLLM_2023 = Generation("vllm-2023", _SET, _OLD)
VLLM_2024 = Generation("vllm-2024", _SET, _OLD)
TRTLLM_2024 = Generation("trtllm-2024", _SET, (*_OLD, *_MOE))
AMD = Generation("amd", _SET, (*_OLD, *_MOE))

GENERATIONS: dict[str, Generation] = {g.name: g for g in (MODERN, VLLM_2023, VLLM_2024, TRTLLM_2024, AMD)}


def fitted_by(generation: Generation, engine: str) -> int:
    """How many fitted constants one engine on one GPU of the generation uses."""
    return sum(1 for p in generation.parameters if not p.engines or engine in p.engines)
