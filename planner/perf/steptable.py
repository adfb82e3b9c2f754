"""The step model as a table (`table.py`), for the load model and the simulation.

Decode attention is linear in the context up to windows, so its curve is exact; prefill attention is linear in the
pairs, or a square root above a window; everything else is a smooth function of the tokens, cut at knots close
enough for 0.5%. A test holds table against model.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from planner.perf.calibration import Calibration
from planner.perf.deployment import Deployment
from planner.perf.identity import ByIdentity
from planner.perf.step import coefficients, decode_attention_s, linear_s, prefill_attention_s
from planner.perf.table import Curve, StepTable

_LARGEST_CONTEXT = 4_000_000.0
_SMALLEST_PAIRS, _LARGEST_PAIRS = 1.0, 1e13


@functools.lru_cache(maxsize=64)
def _token_knots(most: int) -> tuple[int, ...]:
    """1 to 16 one by one, then steps of about an eighth."""
    knots = list(range(1, min(most, 16) + 1))
    while knots[-1] < most:
        knots.append(min(most, max(knots[-1] + 1, round(knots[-1] * 1.14))))
    return tuple(knots)


_CACHE: ByIdentity[StepTable] = ByIdentity(4096)


def build_step_table(d: Deployment, calib: Calibration, *, max_num_seqs: int, max_num_batched_tokens: int) -> StepTable:
    """Table of one replica (or attention-DP rank) up to its caps; beyond them the curves go on straight."""
    key = (d.weights, d.kv_dtype, d.shape, d.hardware, calib.constants, max_num_seqs, max_num_batched_tokens)
    return _CACHE.get(d.arch, key, lambda: _build(d, calib, max_num_seqs, max_num_batched_tokens))


def _build(d: Deployment, calib: Calibration, max_num_seqs: int, max_num_batched_tokens: int) -> StepTable:
    c = coefficients(d, calib)
    k = c.one()

    def curve(xs: list[float], ys: np.ndarray) -> Curve:
        return Curve(tuple(xs), tuple(float(y) for y in ys))

    seqs = [float(x) for x in _token_knots(max(max_num_seqs, 2))]
    tokens = [float(x) for x in _token_knots(max(max_num_batched_tokens, 2) + max(max_num_seqs, 2))]
    rows = k.take(np.zeros(len(seqs), dtype=np.intp))
    decode = curve(seqs, linear_s(rows, np.array(seqs), mixed=False))
    rows = k.take(np.zeros(len(tokens), dtype=np.intp))
    mixed = curve(tokens, linear_s(rows, np.array(tokens), mixed=True))
    caps = sorted({float(v) for v in c.cap if math.isfinite(v)})
    contexts = [0.0, *caps, _LARGEST_CONTEXT]
    rows = k.take(np.zeros(len(contexts), dtype=np.intp))
    attention = curve(contexts, decode_attention_s(rows, np.ones(len(contexts)), np.array(contexts)))
    pairs = [0.0, *np.geomspace(_SMALLEST_PAIRS, _LARGEST_PAIRS, 140).tolist()] if caps else [0.0, _LARGEST_PAIRS]
    rows = k.take(np.zeros(len(pairs), dtype=np.intp))
    prefill = curve(pairs, prefill_attention_s(rows, np.array(pairs)))
    return StepTable(
        linear_decode=decode,
        linear_mixed=mixed,
        batch_knots=(1,),
        decode_attention=(attention,),
        prefill_attention=prefill,
        request_s=calib.constants.request_s + c.first_s,
    )
