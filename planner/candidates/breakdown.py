"""Where the time of a replica's best step goes, in one line: what a promise below physics runs into."""

from __future__ import annotations

from planner.candidates.ask import Ask
from planner.candidates.candidate import Candidate
from planner.candidates.replica import calibration_of
from planner.candidates.sizing import mix_of
from planner.perf.breakdown import OpGroup, step_groups
from planner.perf.table import chunk_pairs
from planner.units import show_bytes, show_time

_NAMED = {
    "collectives": "exchange between GPUs",
    "launches and layer overheads": "launches and fixed time of layers",
    "host: scheduler, sampling": "the engine's host",
}


def step_note(ask: Ask, candidate: Candidate, metric: str) -> str | None:
    """The idle replica's decode step (ITL, TPOT) or prefill step (TTFT) by what takes it; none for other metrics."""
    if candidate.memory is None or metric not in ("itl", "tpot", "ttft"):
        return None
    d = candidate.deployment
    classes = [c for c in ask.classes if c.name in candidate.class_names]
    mix = mix_of(classes, {})
    if metric == "ttft":
        chunk = min(float(candidate.caps.max_num_batched_tokens), mix.mean_prompt_tokens)
        step = step_groups(
            d,
            calibration_of(d),
            decode_seqs=0,
            context_tokens=0,
            prefill_tokens=chunk,
            prefill_pairs=chunk_pairs(start_tokens=0, chunk_tokens=chunk),
        )
        what = f"a prefill step of {chunk:,.0f} tokens"
    else:
        step = step_groups(d, calibration_of(d), decode_seqs=1, context_tokens=mix.mean_context_tokens)
        what = "a decode step of one sequence"
    # Matrices are the groups with an efficiency of their own that read weights; attention reads the cache.
    weights = [g for g in step.groups if g.efficiency is not None and g.read_bytes > 0 and not _attends(g)]
    rest = sorted((g for g in step.groups if g not in weights), key=lambda g: -g.seconds)
    parts = [_weights(weights, metric, d.hardware.hbm_bytes_per_s)] if weights else []
    parts += [
        f"{show_time(g.seconds)} {_NAMED.get(g.name, g.name)}" for g in rest[:3] if g.seconds > 0.02 * step.seconds
    ]
    return f"{what} takes {show_time(step.seconds)}: " + "; ".join(parts)


def _attends(group: OpGroup) -> bool:
    return group.name.startswith(("attention over context", "sparse indexer"))


def _weights(groups: list[OpGroup], metric: str, hbm_bytes_per_s: float) -> str:
    seconds = sum(g.seconds for g in groups)
    read = sum(g.read_bytes for g in groups)
    if metric == "ttft":
        return f"{show_time(seconds)} matrix products"
    share, peak = read / (seconds * hbm_bytes_per_s), show_bytes(hbm_bytes_per_s)
    # Small matrices are served from cache in part: then a share of the memory's bandwidth says nothing.
    how = f"at {share:.0%} of {peak}/s" if share <= 1 else f"({peak}/s)"
    return f"{show_time(seconds)} reads {show_bytes(read)} of weights per GPU {how}"
