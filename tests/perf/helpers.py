"""Deployments in one line for the tests of memory and rules."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

from planner.catalog.gpus import find_gpu
from planner.data import catalog_data
from planner.perf.arch import ModelArch, Shape, WeightPlan
from planner.perf.deployment import Deployment, Hardware, KvDtype, hardware
from planner.perf.families import read_arch
from planner.perf.memory import torch_bytes
from planner.perf.quantities import experts_only, uniform

GIB = 2.0**30

PLANS: dict[str, WeightPlan] = {
    "bf16": uniform("bf16"),
    "fp8": uniform("fp8_channel"),
    "fp8-block": uniform("fp8_block128"),
    "int8": uniform("int8_channel"),
    "int4": uniform("int4_g128"),
    "nvfp4": uniform("nvfp4"),
    "mxfp4-experts": experts_only("mxfp4"),
    "int4-experts": experts_only("int4_g32"),
    "fp8-block-mxfp4-experts": WeightPlan("fp8_block128", (("routed_expert", "mxfp4"), ("lm_head", "bf16"))),
}
PRECISIONS = {
    "fp8-block": "fp8",
    "mxfp4-experts": "mxfp4",
    "int4-experts": "int4",
    "fp8-block-mxfp4-experts": "fp8",
}


@functools.cache
def arch(model: str) -> ModelArch:
    path = catalog_data("models") / f"{model.replace('/', '--')}.json"
    return read_arch(json.loads(path.read_text(encoding="utf-8"))["config"], model)


def gpu(name: str, *, torch_gib: float | None = None, per_node: int | None = None) -> Hardware:
    """A GPU of the catalogue, with the memory that torch printed where a log says so."""
    found = hardware(find_gpu(name), gpus_per_node=per_node)
    if torch_gib is None:
        return found
    seen = torch_bytes(found)
    return replace(found, memory_bytes=found.memory_bytes + (torch_gib * GIB - seen) / 0.9985)


def deploy(
    model: str,
    plan: str = "bf16",
    on: Hardware | str = "h100-sxm",
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: bool = False,
    kv: KvDtype = "bf16",
    engine: str = "vllm",
    version: str | None = None,
) -> Deployment:
    return Deployment(
        arch=arch(model),
        weights=PLANS[plan],
        precision=PRECISIONS.get(plan, plan),
        kv_dtype=kv,
        hardware=gpu(on) if isinstance(on, str) else on,
        shape=Shape(tp=tp, pp=pp, dp=dp, ep=ep),
        engine=engine,
        engine_version=version or {"vllm": "0.33.0", "sglang": "0.5.23", "trtllm": "1.3.0"}[engine],
    )
