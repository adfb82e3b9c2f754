"""Asks about real models, for tests and benchmarks of candidates."""

from __future__ import annotations

from typing import Any

from planner.candidates.ask import Ask
from planner.catalog.engines import DEFAULT_VERSION
from planner.catalog.models import find_model
from planner.intent.document import Service
from planner.intent.fleet import Fleet
from planner.perf.traffic import class_load

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"


def real_ask(
    on: Fleet,
    *,
    model: str = LLAMA_8B,
    name: str = "chat",
    engine: str = "vllm",
    margins: tuple[tuple[str, float], ...] | None = None,
    **service: Any,
) -> Ask:
    """One service, resolved as the pipeline does it."""
    given = {"traffic": {"input": 3500, "output": 500}, "slo": {"itl": "50ms"}, **service}
    made = Service.model_validate({"name": name, "model": model, "engine": engine, **given})
    return Ask(
        made,
        on,
        model=find_model(model),
        classes=tuple(class_load(c, slos=made.slo) for c in made.traffic),
        engine_version=DEFAULT_VERSION[engine],
        margins=margins,
    )
