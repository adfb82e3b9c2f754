"""Values of a launch command that say nothing an engine can run with, named so that no default is taken for them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.errors import UserError, Where

if TYPE_CHECKING:
    from planner.assess.found import Found

COUNTS = ("tp", "pp", "dp", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
# Engines read these as "choose yourself" (vLLM --max-model-len auto or -1, SGLang --chunked-prefill-size -1).
CHOSEN = {("vllm", "max_model_len"): ("auto", "-1"), ("sglang", "max_num_batched_tokens"): ("-1",)}


def check_quotes(argv: str) -> None:
    """UserError where the text is not one whole command line."""
    try:
        shlex.split(argv, comments=False)
    except ValueError as e:
        said = str(e)[:1].lower() + str(e)[1:]
        where = Where("command line", 1, 8, f"--argv {argv}"[:200], max(1, min(len(argv), 100)))
        raise UserError("argv", f"the launch command is not complete: {said}", where, (), ("close the quote",)) from e


def with_unreadable(found: tuple[Found, ...]) -> tuple[Found, ...]:
    """Each launch with the values it gives and that cannot be meant among its problems."""
    return tuple(replace(f, problems=tuple(dict.fromkeys((*f.problems, *_unreadable(f))))) for f in found)


def _unreadable(f: Found) -> Iterator[str]:
    from planner.assess.found import NAMES

    if f.options is None or f.engine is None:
        return
    for name, flag in NAMES.get(f.engine, {}).items():
        text = f.options.text(flag)  # None also for what is known only at start
        if text is None or text in CHOSEN.get((f.engine, name), ()):
            continue
        written = f.options.written(flag) or flag
        if name in COUNTS:
            number = f.options.number(flag)
            if number is None or number < 1:
                yield f"{written} {text[:40]} is not a whole number of at least 1"
        elif name == "memory_ratio":
            ratio = f.options.ratio(flag)
            if ratio is None or not 0 < ratio <= 1:
                yield f"{written} {text[:40]} is not a share above 0 and at most 1"
