"""Peak of temporary memory in one step, and what captured CUDA graphs keep.

    held    = hidden states (a few copies of tokens x hidden) + expert workspace + held per-logit buffers
    peak    = the larger of the widest layer (tokens x what its matrices read and write) and sampling
              (max_num_seqs x vocabulary x bytes per logit); one is over when the other begins

The expert workspace takes every token of all attention-DP ranks, k times: tokens x dp x k x two buffers of
max(width, hidden). Blackwell's fused kernels keep no such buffers. Constants: catalog/memory_constants.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.perf.arch import CompressedAttention, LayerGroup, Shape
from planner.perf.deployment import Deployment
from planner.perf.quantities import rank_share

WIDE = 2
HYPER_CONNECTIONS = 4
"""DeepSeek-V4 carries four residual streams per token (hc_mult in its config), in float32 while they mix."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a deployment's temporary memory grows with; computed once per shape."""

    layer_bytes_per_token: float
    expert_bytes_per_token: float
    hidden: int
    """Width of the residual, in 16-bit values."""
    vocab: int
    layers: int


def footprint(d: Deployment) -> Footprint:
    """The widest layer and the expert workspace of one rank."""
    widest = max(_widest(g, d.shape) for g in d.arch.layers)
    fused = d.hardware.capability is not None and d.hardware.capability >= (10, 0) and d.precision != "bf16"
    experts = max((_workspace(g, d.shape, fused=fused) for g in d.arch.layers), default=0.0)
    stage = -(-d.arch.layer_count // d.shape.pp)
    streams = any(isinstance(g.mixer, CompressedAttention) for g in d.arch.layers)
    hidden = d.arch.hidden * (2 * HYPER_CONNECTIONS if streams else 1)
    return Footprint(widest, experts, hidden, d.arch.vocab, stage)


def _widest(g: LayerGroup, shape: Shape) -> float:
    """Bytes per token that the widest part of a layer reads and writes beside the hidden state."""
    parts: dict[str, float] = {}
    for x in g.linears:
        if x.copies > 1 or x.group in ("router", "other"):
            continue
        inputs, outputs, _ = rank_share(x, shape)
        parts[x.group] = parts.get(x.group, 0.0) + (inputs if x.shard == "row" else outputs)
    return WIDE * max(parts.values(), default=0.0)


def _workspace(g: LayerGroup, shape: Shape, *, fused: bool) -> float:
    """Bytes per token of one rank's own batch."""
    if g.moe is None:
        return 0.0
    routed = [x for x in g.linears if x.group == "routed_expert"]
    down = next((x for x in routed if x.shard == "row"), None)
    if down is None:
        return 0.0
    width, outputs, _ = rank_share(down, shape)
    gated = sum(x.shard == "column" for x in routed)
    if fused:
        return WIDE * shape.dp * outputs
    return WIDE * shape.dp * g.moe.active * (max(width, outputs) + max(gated * width, outputs))


def activation_bytes(
    f: Footprint,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    hidden_copies: float,
    logit_held_bytes: float,
    logit_peak_bytes: float,
) -> float:
    """Temporary memory at the worst moment of a step."""
    logits = min(max_num_seqs, max_num_batched_tokens) * f.vocab
    held = max_num_batched_tokens * (WIDE * hidden_copies * f.hidden + f.expert_bytes_per_token)
    held += max_num_seqs * f.vocab * logit_held_bytes
    return held + max(max_num_batched_tokens * f.layer_bytes_per_token, logits * logit_peak_bytes)


def graph_sizes(largest: int) -> int:
    """How many batch sizes vLLM captures up to `largest`: 1, 2, 4, every 8 to 256, every 16 beyond.

    >>> graph_sizes(512), graph_sizes(1024)
    (51, 83)
    """
    small = sum(n <= largest for n in (1, 2, 4))
    return small + min(largest, 256) // 8 + max(0, largest - 256) // 16


def graph_bytes(f: Footprint, *, max_num_seqs: int, largest: int, base_bytes: float, layer_bytes: float) -> float:
    """Full decode graphs up to max_num_seqs and piecewise ones up to twice that, capped at `largest`."""
    graphs = graph_sizes(min(max_num_seqs, largest)) + graph_sizes(min(2 * max_num_seqs, largest))
    return base_bytes + graphs * f.layers * layer_bytes
