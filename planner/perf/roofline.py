"""The few formulas everything starts from: what one decode step must read, and when arithmetic catches up.

The step model (`step.py`) refines these by operation group; with efficiencies of one and no overheads it gives the
same numbers. `seeds/` holds the published figures they are tested against.
"""

from __future__ import annotations


def weight_stream_s(*, weights_bytes: float, tp: int = 1, hbm_bytes_per_s: float, mbu_ratio: float = 1.0) -> float:
    """Seconds to read one GPU's shard of the weights once.

    t = weights / tp / (HBM bandwidth * MBU)

    Every decode step reads all weights once whatever the batch, so this is the floor of ITL until the batch is
    compute-bound (`ridge_batch`). Ignores the embedding, of which only a row per token is read.

    >>> f"{weight_stream_s(weights_bytes=70.6e9, tp=8, hbm_bytes_per_s=3.35e12, mbu_ratio=0.85) * 1e3:.2f} ms"
    '3.10 ms'
    """
    return weights_bytes / tp / (hbm_bytes_per_s * mbu_ratio)


def decode_tokens_per_s(*, read_bytes: float, hbm_bytes_per_s: float, mbu_ratio: float = 1.0) -> float:
    """Highest tokens/s of one sequence when a step reads `read_bytes`: the inverse of the read time.

    >>> round(decode_tokens_per_s(read_bytes=16e9, hbm_bytes_per_s=3.35e12))
    209
    """
    return hbm_bytes_per_s * mbu_ratio / read_bytes


def ridge_flop_per_byte(*, flop_per_s: float, hbm_bytes_per_s: float) -> float:
    """Operations per byte read at which arithmetic takes as long as reading.

    >>> round(ridge_flop_per_byte(flop_per_s=989e12, hbm_bytes_per_s=3.35e12))
    295
    """
    return flop_per_s / hbm_bytes_per_s


def ridge_batch(*, flop_per_s: float, hbm_bytes_per_s: float, weight_bytes_per_param: float) -> float:
    """Batch at which the weights' arithmetic catches up with reading them.

    2 FLOP per parameter and token against `weight_bytes_per_param` bytes per parameter:
    batch = ridge * bytes_per_param / 2

    Attention never gets there: each sequence reads its own cache, so its intensity does not grow with the batch.

    >>> round(ridge_batch(flop_per_s=989e12, hbm_bytes_per_s=3.35e12, weight_bytes_per_param=2))
    295
    """
    return ridge_flop_per_byte(flop_per_s=flop_per_s, hbm_bytes_per_s=hbm_bytes_per_s) * weight_bytes_per_param / 2


def memory_left_bytes(
    *, memory_bytes: float, utilization_ratio: float = 1.0, weights_bytes: float, tp: int = 1
) -> float:
    """What one GPU has left for the cache after its shard of the weights (and nothing else).

    >>> memory_left_bytes(memory_bytes=80e9, weights_bytes=70e9) / 1e9
    10.0
    """
    return memory_bytes * utilization_ratio - weights_bytes / tp
