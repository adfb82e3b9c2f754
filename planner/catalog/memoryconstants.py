"""What engines keep besides weights and cache: constants with their sources, by engine version."""

from __future__ import annotations

import functools
from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Field

from planner.catalog.quantsupport import Source, Version, version_key
from planner.data import catalog_data
from planner.documents import Strict, load_yaml, read_as
from planner.errors import not_supported
from planner.units import BYTES, Dimension

Ratio = Annotated[float, Field(gt=0, lt=1)]
_SIZE = Dimension(BYTES.name, BYTES.units, BYTES.example, zero_ok=True, largest=BYTES.largest)
Size = Annotated[float, BeforeValidator(_SIZE.parse)]
"""A size in bytes that may be zero."""


class Driver(Strict):
    """Memory between what the driver prints and what torch sees."""

    fixed: Size
    share_ratio: Ratio
    source: Source


class Context(Strict):
    """A process's CUDA context, there before the engine looks."""

    bytes: Size
    source: Source


class Graphs(Strict):
    """Captured graphs: a base, and so much per graph and layer."""

    base: Size
    per_layer: Size
    source: Source


class Overhead(Strict):
    """Memory outside torch: communication buffers and workspaces."""

    one: Size
    linked: Size
    unlinked: Size
    staged: Size
    source: Source


class Ranks(Strict):
    """How far the rank with least memory is below the first."""

    spread_ratio: Ratio
    source: Source


class Encoders(Strict):
    """Vision and audio encoders beside the text model."""

    bytes: Size
    source: Source


class Headroom(Strict):
    """What must be left over before a plan says that something fits."""

    ratio: Ratio
    source: Source


class Vllm(Strict):
    """vLLM from a version on."""

    since: Version
    utilization_ratio: Ratio
    logit_held: Size
    logit_peak: Size
    hidden_copies: float
    graphs_counted: bool
    tokens: Literal["groups", "request"]
    """What "GPU KV cache size" counts: tokens of one group's blocks, or concurrency x max_model_len."""
    state_blocks: int
    async_steps: bool
    """Whether a second step is in flight, whose tokens windowed layers hold too."""
    source: Source


class Sglang(Strict):
    """SGLang from a version on."""

    since: Version
    context_one: Size
    context_linked: Size
    context_unlinked: Size
    logit_peak: Size
    hidden_copies: float
    swa_full_tokens_ratio: Ratio
    mamba_full_memory_ratio: float
    state_slots: int
    source: Source


class Trtllm(Strict):
    """TensorRT-LLM from a version on; for prediction only."""

    since: Version
    free_fraction_ratio: Ratio
    other: Size
    communication: Size
    block_tokens: int
    source: Source


class Constants(Strict):
    """The whole file."""

    driver: Driver
    context: Context
    graphs: Graphs
    overhead: Overhead
    ranks: Ranks
    encoders: Encoders
    headroom: Headroom
    vllm: tuple[Vllm, ...]
    sglang: tuple[Sglang, ...]
    trtllm: tuple[Trtllm, ...]


@functools.cache
def constants() -> Constants:
    """The constants as they ship."""
    return read_as(Constants, load_yaml(catalog_data("memory_constants.yaml"), what="memory constants"), what="them")


E = TypeVar("E", Vllm, Sglang, Trtllm)


def _newest(entries: tuple[E, ...], engine: str, version: str) -> E:
    found = [e for e in entries if version_key(e.since) <= version_key(version)]
    if not found:
        raise not_supported(f"the memory of {engine} {version}", helps=(f"known from {entries[0].since} on",))
    return max(found, key=lambda e: version_key(e.since))


@functools.cache
def vllm(version: str) -> Vllm:
    """What holds for this version of vLLM."""
    return _newest(constants().vllm, "vllm", version)


@functools.cache
def sglang(version: str) -> Sglang:
    """What holds for this version of SGLang."""
    return _newest(constants().sglang, "sglang", version)


@functools.cache
def trtllm(version: str) -> Trtllm:
    """What holds for this version of TensorRT-LLM."""
    return _newest(constants().trtllm, "trtllm", version)
