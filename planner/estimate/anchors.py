"""Which measured corrections a measured row can use, by name."""

from __future__ import annotations

from planner.estimate.rows import Row
from planner.perf import anchors


def effect_keys(row: Row, metric: str) -> tuple[str, ...]:
    """Names of the corrections that apply to a row, the general ones first.

    With prefill apart, TTFT is another quantity (hand-over, a pool of its own): only its own rows correct it.
    """
    own = anchors.configuration_key(row.configuration)
    if metric == "ttft" and row.decode is not None:
        return (own,)
    return (
        anchors.release_key(model=row.model, precision=row.precision, release=row.engine_version or row.date[:7]),
        anchors.family_key(model=row.model, gpu=row.gpu, precision=row.precision),
        anchors.prompt_key(model=row.model, prompt_tokens=row.isl_tokens),
        own,
    )
