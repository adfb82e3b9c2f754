"""Which measured corrections a deployment can use, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping

from planner.estimate.rows import Row, canonical


def release_key(*, model: str, precision: str, engine_version: str, date: str) -> str:
    """Model and precision on one release of the engine; where the release is not known, the month of the run."""
    return f"release:{canonical(model)}/{precision}/{engine_version or date[:7] or 'unknown'}"


def effect_keys(row: Row, metric: str) -> tuple[str, ...]:
    """Names of the corrections that apply to a row, the general one first."""
    keys = (
        release_key(model=row.model, precision=row.precision, engine_version=row.engine_version, date=row.date),
        f"configuration:{row.configuration}",
    )
    if metric == "ttft":
        octave = round(math.log2(max(row.isl_tokens, 1.0)))
        return (*keys, f"prompt:{canonical(row.model)}/{octave}")
    return keys


def offset(row: Row, anchors: Mapping[str, float], metric: str) -> float:
    """What the anchors add to the logarithm of a prediction."""
    return sum(anchors.get(k, 0.0) for k in effect_keys(row, metric))
