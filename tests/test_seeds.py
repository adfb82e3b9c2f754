"""The article's figures (seeds/*.yaml) come out of the library's own public functions."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from planner import units
from planner.catalog.models import find_model
from planner.documents import load_yaml
from planner.perf.arch import Shape, WeightPlan
from planner.perf.families import read_arch

SEEDS = Path(__file__).resolve().parent.parent / "seeds"
DOCUMENTS = [load_yaml(p).data for p in sorted(SEEDS.glob("*.yaml"))]
CASES = [case for d in DOCUMENTS for case in d["cases"]]
SHAPES = [shape for d in DOCUMENTS for shape in d["shapes"]]
DIMENSIONS = (units.TIME, units.BYTES, units.DATA_RATE, units.FLOP_RATE)
TOLERANCE = 0.02


def number(value: Any) -> Any:
    """A quantity as SI, anything else as it stands."""
    if isinstance(value, str) and re.match(r"^[\d.]+[A-Za-z]", value):
        for dimension in DIMENSIONS:
            try:
                return dimension.parse(value)
            except ValueError:
                continue
    return value


def argument(name: str, value: Any) -> Any:
    if name == "arch":
        model = find_model(value)
        return read_arch(model.config, model.id)
    if name == "plan":
        return WeightPlan(value)
    return number(value)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_seed_figure(case: dict[str, Any]) -> None:
    module, _, name = case["function"].rpartition(".")
    function = getattr(importlib.import_module(module), name)
    inputs = {k: argument(k, v) for k, v in case["inputs"].items()}
    positional = [inputs.pop(k) for k in ("arch", "plan", "name") if k in inputs]
    if "kv_dtype" in inputs:
        positional.append(inputs.pop("kv_dtype"))
        positional += [inputs.pop("context_tokens")] if "context_tokens" in inputs else []
    result = functools.reduce(
        getattr, case["take"].split(".") if "take" in case else [], function(*positional, **inputs)
    )
    assert result * case.get("times", 1) == pytest.approx(number(case["expect"]), rel=case.get("tolerance", TOLERANCE))


@pytest.mark.parametrize("case", SHAPES, ids=lambda c: c["name"])
def test_seed_shape(case: dict[str, Any]) -> None:
    assert Shape(**case["shape"]).gpus == case["gpus"]
