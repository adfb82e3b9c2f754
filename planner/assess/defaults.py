"""What an engine takes where a launch says nothing: batch caps by GPU memory.

vLLM 0.33.0 (engine/arg_utils.py, get_batch_defaults; run on simulated GPUs): from 160 GiB 16384 tokens and 1024
sequences, from 70 GiB 8192 and 1024 (but not an A100), else 2048 and 256; the budget is never above
sequences x max_model_len. SGLang 0.5.23 (arg_groups/memory_hook.py): chunks of 2048 below 20 GiB, 4096 below 60,
8192 below 160, 16384 above; requests are bounded by the cache alone, at most 4096.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.perf.deployment import Hardware

GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Caps:
    """Caps as the engine would run with, and which of them nobody asked for."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    by_default: tuple[str, ...]


def caps(
    engine: str,
    hardware: Hardware,
    *,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    max_model_len: int | None,
    longest_tokens: int,
) -> Caps:
    """What is given, completed by the engine's defaults. `longest_tokens`: the model's own context."""
    gib = hardware.memory_bytes / GIB
    if engine == "vllm":
        if gib >= 160:
            tokens, seqs = 16384, 1024
        elif gib >= 70 and not hardware.gpu_id.startswith("a100"):
            tokens, seqs = 8192, 1024
        else:
            tokens, seqs = 2048, 256
    else:
        seqs = 4096
        tokens = 2048 if gib < 20 else 4096 if gib < 60 else 8192 if gib < 160 else 16384
    length = max_model_len or longest_tokens
    by_default = tuple(
        name
        for name, given in (
            ("max_num_seqs", max_num_seqs),
            ("max_num_batched_tokens", max_num_batched_tokens),
            ("max_model_len", max_model_len),
        )
        if given is None
    )
    running = max_num_seqs or seqs
    budget = max_num_batched_tokens or min(tokens, running * length)
    if engine == "vllm" and max_num_seqs is None:
        running = min(running, budget)
    return Caps(running, budget, length, by_default)
