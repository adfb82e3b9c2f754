"""How an engine divides cache memory: blocks of several layer kinds (vLLM), or token slots (SGLang, TensorRT-LLM).

vLLM 0.33.0. Layers that cache alike (full attention, one window, one kind of state) form a bucket; buckets are cut
into groups of equally many layers, and all groups draw blocks of one size from one pool:

    block bytes  = largest group's sum of pages        blocks = min over stages of floor(memory / block bytes)
    page         = block tokens x bytes per token; pages of all groups are made equal (larger blocks, or padding)
    a request    = sum over groups of  full: ceil(tokens / block)   state: one block, two with prefix caching
                                       window: ceil(min(window - 1 + tokens in flight, tokens) / block) + 1
    one block stays reserved.  tokens in flight = (pipeline stages + 1) x max_num_batched_tokens

Sources: vllm 0.33.0 v1/core/kv_cache_planning.py, v1/kv_cache_interface.py, platforms/interface.py; SGLang 0.5.23
model_executor/pool_configurator.py and mem_cache/kv_cache_configurator.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from planner.perf.arch import Attention, CompressedAttention, LayerGroup, Mla, ModelArch, Recurrent, Shape
from planner.perf.quantities import layer_kv_bytes_per_token, layer_state_bytes, stage_layers

BLOCK_TOKENS: Final = 16
MLA_BLOCK_TOKENS: Final = 64
"""FlashMLA and the TRT-LLM kernels work on 64 tokens."""
MLA_HYBRID_BLOCK_TOKENS: Final = 128

Kind = Literal["full", "window", "state"]


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one block table: their pages, by layer index, make up one block."""

    kind: Kind
    block_tokens: int
    pages: tuple[tuple[int, float], ...]
    window_tokens: int = 0
    state_blocks: int = 1

    @property
    def bytes(self) -> float:
        return sum(b for _, b in self.pages)

    def stage_bytes(self, stage: range) -> float:
        return sum(b for i, b in self.pages if i in stage)

    def blocks(self, tokens: int, in_flight_tokens: int) -> int:
        """Most blocks that one request of `tokens` ever holds."""
        if self.kind == "state":
            return self.state_blocks
        if self.kind == "full":
            return -(-tokens // self.block_tokens)
        return -(-min(self.window_tokens - 1 + in_flight_tokens, tokens) // self.block_tokens) + 1

    def mean_blocks(self, tokens: float) -> float:
        """Blocks that a decoding sequence of `tokens` holds on average: its last block is half full; a window holds
        the tokens of this step and the next besides, and begins anywhere in its first block."""
        if self.kind == "state":
            return self.state_blocks
        if self.kind == "full":
            return tokens / self.block_tokens + 0.5
        return min(self.window_tokens + 1, tokens) / self.block_tokens + 1


@dataclass(frozen=True, slots=True)
class Blocks:
    """vLLM's pool once memory is known."""

    groups: tuple[Group, ...]
    count: int
    in_flight_tokens: int
    convention: Literal["groups", "request"]

    def request_blocks(self, tokens: int) -> int:
        return sum(g.blocks(tokens, self.in_flight_tokens) for g in self.groups)

    def tokens(self, max_model_len: int) -> int:
        """What vLLM logs as "GPU KV cache size"."""
        if not self.groups or self.count <= 0:
            return 0
        if self.convention == "groups":
            return self.count // len(self.groups) * self.groups[0].block_tokens
        return int(self.count / self.request_blocks(max_model_len) * max_model_len)

    def fits_one(self, tokens: int) -> bool:
        return self.count > 0 and self.request_blocks(tokens) <= self.count - 1

    def sequences(self, tokens: float) -> float:
        """Sequences of a mean length that fit beside one prefill, which holds its tokens in flight."""
        if not self.groups:
            return math.inf
        each = sum(g.mean_blocks(tokens) for g in self.groups)
        prefill = sum(
            max(0.0, g.blocks(math.ceil(tokens), self.in_flight_tokens) - g.mean_blocks(tokens))
            for g in self.groups
            if g.kind == "window"
        )
        return max(0.0, (self.count - 1 - prefill) / each)

    def longest(self, limit: int) -> int:
        """The longest request that fits, at most `limit`."""
        low, high = 0, limit
        while low < high:
            mid = (low + high + 1) // 2
            low, high = (mid, high) if self.fits_one(mid) else (low, mid - 1)
        return low


@dataclass(frozen=True, slots=True)
class Slots:
    """SGLang's and TensorRT-LLM's pool: token slots of the full-attention layers, and what comes with them."""

    full_tokens: int
    window_slots: int = 0
    window_tokens: int = 0
    states: float = math.inf
    states_each: int = 1
    page_tokens: int = 1

    def tokens(self, max_model_len: int) -> int:
        return self.full_tokens

    def fits_one(self, tokens: int) -> bool:
        return self.sequences(tokens) >= 1

    def sequences(self, tokens: float) -> float:
        tokens = max(1.0, tokens)
        limits = [self.full_tokens / tokens, self.states / self.states_each]
        if self.window_slots:
            limits.append(self.window_slots / min(tokens, self.window_tokens + self.page_tokens))
        return max(0.0, min(limits))

    def longest(self, limit: int) -> int:
        return limit if self.fits_one(limit) else max(0, min(limit, self.full_tokens))


Pool = Blocks | Slots


# ---------------------------------------------------------------- vLLM's groups


@dataclass(frozen=True, slots=True)
class _Layer:
    index: int
    kind: Kind
    bytes: float
    """Per token, or per sequence for a state."""
    window_tokens: int = 0
    mla: bool = False


def _layers(arch: ModelArch, kv_dtype: str, tp: int) -> Iterator[_Layer]:
    for g in arch.layers:
        made = _layer(g, kv_dtype, tp)
        if made is not None:
            yield from (replace(made, index=i) for i in g.indices)


def _layer(g: LayerGroup, kv_dtype: str, tp: int) -> _Layer | None:
    m = g.mixer
    if isinstance(m, Recurrent):
        return _Layer(0, "state", layer_state_bytes(m, tp=tp))
    if isinstance(m, (Attention, Mla)):
        each = layer_kv_bytes_per_token(m, kv_dtype, tp=tp, engine=True)
        kind: Kind = "window" if m.window_tokens else "full"
        return _Layer(0, kind, each, m.window_tokens or 0, isinstance(m, Mla)) if each else None
    return None


def vllm_groups(arch: ModelArch, kv_dtype: str, shape: Shape, *, state_blocks: int) -> tuple[Group, ...]:
    """The cache groups of a model on one rank, all pipeline stages together."""
    if any(isinstance(g.mixer, CompressedAttention) for g in arch.layers):
        return _compressed_groups(arch, kv_dtype)
    layers = sorted(_layers(arch, kv_dtype, shape.tp), key=lambda x: x.index)
    buckets: dict[tuple[object, ...], list[_Layer]] = {}
    for x in layers:
        # All full-attention layers merge, whatever their page; windows and states only with their like.
        key = ("full",) if x.kind == "full" else (x.kind, x.window_tokens, x.bytes)
        buckets.setdefault(key, []).append(x)
    if len(buckets) <= 1:
        base = MLA_BLOCK_TOKENS if any(x.mla for x in layers) else BLOCK_TOKENS
        return tuple(_group(b, base, state_blocks, None) for b in buckets.values())
    base = _block_tokens(layers)
    page = max(x.bytes * (1 if x.kind == "state" else base) for x in layers)
    counts = [len(b) for b in buckets.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for b in buckets.values():
        parts = -(-len(b) // size)
        groups += [_group(b[i::parts], base, state_blocks, page) for i in range(parts)]
    return tuple(groups)


def _group(layers: Sequence[_Layer], base: int, state_blocks: int, page: float | None) -> Group:
    """Layers that are alike -> a group; `page` is the size that all groups' pages are brought to."""
    first = layers[0]
    block = base
    if page is not None and first.kind != "state" and page % (first.bytes * base) == 0:
        block = base * int(page // (first.bytes * base))  # a smaller page grows to more tokens, else it is padded
    pages = tuple((x.index, page or (x.bytes * (1 if x.kind == "state" else block))) for x in layers)
    return Group(first.kind, block, pages, first.window_tokens, state_blocks)


def _block_tokens(layers: Sequence[_Layer]) -> int:
    """Tokens per block: enough that an attention page holds a layer's state."""
    base = MLA_HYBRID_BLOCK_TOKENS if any(x.mla for x in layers) else BLOCK_TOKENS
    state = max((x.bytes for x in layers if x.kind == "state"), default=0.0)
    token = max((x.bytes for x in layers if x.kind != "state"), default=0.0)
    return base * math.ceil(state / (base * token)) if state and token else base


def _compressed_groups(arch: ModelArch, kv_dtype: str) -> tuple[Group, ...]:
    """DeepSeek-V4 as vLLM packs it: compressed entries and index keys in one group (blocks of 256 tokens), windows
    (64), and the compressors' running states, which live in tiny blocks of 4 or 8 tokens and take most of what a
    prefill holds. Pages are rounded up to 576 bytes for the FP8 record of 584 bytes, else to 512.

    Source: vllm 0.33.0 models/deepseek_v4/{attention,compressor}.py, v1/attention/backends/mla/sparse_swa.py.
    """
    fp8 = kv_dtype == "fp8"
    align = 576 if fp8 else 512

    def page(size: float) -> float:
        return math.ceil(size / align) * align

    full: list[tuple[int, float]] = []
    window: list[tuple[int, float]] = []
    fast: list[tuple[int, float]] = []
    slow: list[tuple[int, float]] = []
    window_tokens = 0
    for g in arch.layers:
        m = g.mixer
        if not isinstance(m, CompressedAttention):
            continue
        entry = 584 if fp8 else 2 * m.head_dim
        window_tokens = max(window_tokens, m.window_tokens)
        for i in g.indices:
            window.append((i, page(64 * entry)))
            if not m.compress_ratio:
                continue
            full.append((i, page(256 // m.compress_ratio * entry)))
            if m.indexer_dim:
                full.append((i, page(256 // m.compress_ratio * (m.indexer_dim + 4))))
            if m.compress_ratio <= 4:
                fast.append((i, page(4 * 2 * m.head_dim * 2 * 4)))
                if m.indexer_dim:
                    fast.append((i, page(4 * 2 * m.indexer_dim * 2 * 4)))
            else:
                slow.append((i, page(8 * m.head_dim * 2 * 4)))
    fast_layers = len({i for i, _ in fast})
    parts = -(-len(window) // _repeats([len(window), fast_layers, len(slow)]))
    groups = [Group("full", 256, tuple(full))]
    groups += [Group("window", 64, tuple(window[i::parts]), window_tokens) for i in range(parts)]
    # A ratio-4 compressor looks back over two windows of 4, a ratio-128 one over its own 128.
    groups += [Group("window", 4, tuple(fast), 8)] if fast else []
    groups += [Group("window", 8, tuple(slow), 128)] if slow else []
    return tuple(g for g in groups if g.pages)


def _repeats(counts: list[int]) -> int:
    """Layers per group that pad least when every count is cut into groups of it (at least the middle count's)."""
    known = [c for c in counts if c]
    floor = counts[1] or 1

    def padding(d: int) -> int:
        return sum(-c % d for c in known)

    return min(range(floor, max(known) + 1), key=lambda d: (padding(d), -d))


def block_count(groups: Iterable[Group], kv_bytes: Sequence[float], layers: int) -> int:
    """Blocks that fit on every stage, given each stage's bytes."""
    stages = stage_layers(layers, len(kv_bytes))
    groups = tuple(groups)
    found = []
    for stage, memory in zip(stages, kv_bytes, strict=True):
        each = max((g.stage_bytes(stage) for g in groups), default=0.0)
        if each:
            found.append(math.floor(max(0.0, memory) / each))
    return min(found, default=0)


# ---------------------------------------------------------------- SGLang's slots


def slots(
    arch: ModelArch,
    kv_dtype: str,
    shape: Shape,
    kv_bytes: Sequence[float],
    *,
    swa_full_tokens_ratio: float,
    mamba_full_memory_ratio: float,
    state_slots: int,
    page_tokens: int = 1,
) -> Slots:
    """SGLang 0.5.23: cell = sum of full layers' bytes per token + ratio x that of windowed layers; recurrent models
    give r / (1 + r) of the memory to states first. The stage with least decides."""
    layers = list(_layers(arch, kv_dtype, shape.tp))
    compressed = [g for g in arch.layers if isinstance(g.mixer, CompressedAttention)]
    full_tokens, states = math.inf, math.inf
    windows = {x.window_tokens for x in layers if x.kind == "window"}
    only_windows = bool(windows) and all(x.kind != "full" for x in layers)
    ratio = 1.0 if only_windows else swa_full_tokens_ratio
    for stage, memory in zip(stage_layers(arch.layer_count, shape.pp), kv_bytes, strict=True):
        here = [x for x in layers if x.index in stage]
        state = sum(x.bytes for x in here if x.kind == "state")
        rest = max(0.0, memory)
        if state:
            for_states = rest * mamba_full_memory_ratio / (1 + mamba_full_memory_ratio)
            states = min(states, math.floor(for_states / state))
            rest -= for_states
        cell = sum(x.bytes for x in here if x.kind == "full")
        cell += ratio * sum(x.bytes for x in here if x.kind == "window")
        cell += sum(_compressed_cell(g, kv_dtype, ratio) * sum(i in stage for i in g.indices) for g in compressed)
        if cell:
            full_tokens = min(full_tokens, rest // cell)
    tokens = 0 if full_tokens is math.inf else int(full_tokens) // page_tokens * page_tokens
    window = max(windows, default=0)
    return Slots(tokens, int(tokens * ratio) if windows else 0, window, states, state_slots, page_tokens)


def _compressed_cell(g: LayerGroup, kv_dtype: str, window_share: float) -> float:
    """Approximate bytes per token of a DeepSeek-V4 layer: compressed entries only. SGLang's own pools for it
    (request-sized windows) are not modelled."""
    m = g.mixer
    assert isinstance(m, CompressedAttention)
    entry = 584 if kv_dtype == "fp8" else 2 * m.head_dim
    index = m.indexer_dim + 4 if m.indexer_dim else 0
    return (entry + index) / m.compress_ratio if m.compress_ratio else 0.0
