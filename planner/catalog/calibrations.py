"""Shipped calibration constants: one file per engine generation in `calibrations/`.

Written by `planner.calibrate` from measurements; read here. A file says when its data was taken, how many rows it
used, what error it reached when whole configurations were left out, and on which GPUs and models.
"""

from __future__ import annotations

import functools
from typing import Annotated, Literal

from pydantic import Field

from planner.data import catalog_data
from planner.documents import Strict, load_yaml, read_as

Ratio = Annotated[float, Field(gt=0)]


class BandEntry(Strict):
    """Spread of measured over predicted, from cross-validation."""

    offset_sd: Annotated[float, Field(ge=0)]
    rest_sd: Annotated[float, Field(ge=0)]
    low_ratio: Ratio
    high_ratio: Ratio
    rows: Annotated[int, Field(ge=0)] = 0


class Anchor(Strict):
    """A measured correction: log(measured / predicted) of what `key` names, already shrunk towards zero."""

    key: str
    metric: Literal["tpot", "ttft", "throughput"]
    log_ratio: float
    rows: Annotated[int, Field(gt=0)]


class Engine(Strict):
    """What one engine family adds to the generation's shared constants."""

    constants: dict[str, float] = Field(default_factory=dict)
    prefill_first: bool = False
    rows: Annotated[int, Field(ge=0)] = 0
    bands: dict[str, BandEntry] = Field(default_factory=dict)
    """Its own spreads, where it has rows enough; else the generation's."""
    anchors: tuple[Anchor, ...] = ()


class ErrorReached(Strict):
    """Absolute percentage error in cross-validation by configuration."""

    median: float
    p90: float
    bias: float
    rows: int


class CalibrationFile(Strict):
    """One generation's constants."""

    generation: str
    fit_date: str
    """Date of the data snapshot, not of the fit: the same data gives the same file."""
    reference_date: str = ""
    data: str
    """What it was fitted on."""
    method: str
    constants: dict[str, float]
    architectures: dict[str, dict[str, float]] = Field(default_factory=dict)
    engines: dict[str, Engine]
    measured_gpus: tuple[str, ...]
    measured_architectures: tuple[str, ...]
    measured_models: tuple[str, ...]
    error: dict[str, ErrorReached] = Field(default_factory=dict)
    bands: dict[str, BandEntry] = Field(default_factory=dict)


@functools.cache
def calibration_files() -> dict[str, CalibrationFile]:
    """Every shipped generation by name."""
    found = {}
    for path in sorted(catalog_data("calibrations").glob("*.yaml")):
        file = read_as(CalibrationFile, load_yaml(path, what="calibration file"), what="a calibration")
        assert file.generation == path.stem, path.name
        found[file.generation] = file
    return found
