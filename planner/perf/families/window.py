"""Which layers see a sliding window or a chunk instead of the whole context, and how long it is.

A windowed layer attends to at most `window` tokens and its cache never holds more. Configs say which layers are
windowed in five ways: a list of kinds, a period, alternation, "all of them", or a list of layers without rope.
"""

from __future__ import annotations

from typing import Literal

from planner.perf.families.base import Fields

Rule = Literal["none", "all", "alternate", "period", "first_and_period", "switched", "chunked"]
"""How `sliding_window` is meant where the config has no list of layer kinds.

none: the class ignores it; all: every layer; alternate: even layers (Gemma-2, gpt-oss); period: all but every n-th
(Gemma-3, Command-A, OLMo-3, EXAONE-4); first_and_period: the same, and the first sees everything too
(MiMo-V2); switched: only where use_sliding_window is true (Qwen2/3); chunked: all layers
with rope attend within chunks (Llama-4).
"""

_SLIDING = {"sliding_attention", "chunked_attention", "local_attention", "sliding", "local"}


def windows(f: Fields, rule: Rule, *, period: int = 0) -> list[int | None]:
    """Window in tokens per layer, None for full attention."""
    n = f.layers
    if rule == "chunked":
        chunk = f.whole_or_none("attention_chunk_size")
        return [chunk if roped else None for roped in _roped(f)]
    window = f.whole_or_none("sliding_window", "sliding_window_size", low=0) or None
    pattern = f.items("hybrid_layer_pattern", int, length=n) if rule == "first_and_period" else None
    if pattern is not None:
        return [window if x else None for x in pattern]
    kinds = f.items("layer_types", str, length=n) if rule != "none" else None
    if kinds is not None and any(k in _SLIDING for k in kinds):
        if window is None:
            raise f.error(
                f"{f.path}layer_types has windowed layers but sliding_window is missing", "add sliding_window"
            )
        return [window if k in _SLIDING else None for k in kinds]
    if window is None or rule == "none" or kinds is not None:
        return [None] * n
    if rule == "all":
        return [window] * n
    if rule == "alternate":
        return [window if i % 2 == 0 else None for i in range(n)]
    if rule == "switched":
        if not f.flag("use_sliding_window", default=False):
            return [None] * n
        first = f.whole("max_window_layers", default=n, low=0)
        return [window if i >= first else None for i in range(n)]
    every = _period(f, period)
    opens = rule == "first_and_period"
    return [None if (i + 1) % every == 0 or (opens and i == 0) else window for i in range(n)]


def _period(f: Fields, default: int) -> int:
    """The period as a number, or as letters with G for global (EXAONE-4: "LLLG")."""
    pattern = f.raw("sliding_window_pattern", "_sliding_window_pattern")
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"}:
            raise f.error(f"{f.path}sliding_window_pattern must be letters L and G, not {pattern!r}")
        return len(pattern)
    return f.whole("sliding_window_pattern", "_sliding_window_pattern", default=default, low=1)


def _roped(f: Fields) -> list[bool]:
    """Llama-4: layers with rope are chunked; every fourth has none and sees everything."""
    n = f.layers
    listed = f.items("no_rope_layers", int)
    if listed:
        if len(listed) != n:
            raise f.error(f"{f.path}no_rope_layers has {len(listed)} entries for {n} layers")
        return [x != 0 for x in listed]
    every = f.whole("no_rope_layer_interval", default=4)
    return [(i + 1) % every != 0 for i in range(n)]
