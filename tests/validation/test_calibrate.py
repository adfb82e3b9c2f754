"""Fitting: finds constants it was given, holds groups out, shrinks anchors; kernel tables condense as shipped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.calibrate.anchors import effects, offsets
from planner.calibrate.fit import Data, Model, Setting, fit, leave_out, slots
from planner.calibrate.parameters import GENERATIONS, MODERN, Parameter, fitted_by
from planner.calibrate.waves import simulate
from planner.catalog.calibrations import calibration_files
from planner.data import catalog_data
from planner.documents import load_yaml
from planner.estimate.resolve import resolve
from planner.estimate.rows import Measured, Row

PARAMETERS = (
    Parameter("hbm_ratio", "shared", 1.0, 0.3),
    Parameter("launch_ratio", "engine", 1.0, 0.5),
    Parameter("request_s", "engine", 0.03, 1.0),
)
SETTING = Setting(base=MODERN.base)


def made_up(engine: str = "vllm") -> Data:
    rows = []
    for model, tp in (
        ("meta-llama/Llama-3.1-8B-Instruct", 1),
        ("meta-llama/Llama-3.3-70B-Instruct", 8),
        ("meta-llama/Llama-3.3-70B-Instruct", 4),
    ):
        for clients in (1, 4, 16, 64):
            rows.append(
                Row(
                    id=f"{model}-{tp}-{clients}",
                    model=model,
                    gpu="h100-sxm",
                    gpus=tp,
                    engine=engine,
                    engine_version="0.19.0",
                    date="2026-03-01",
                    tp=tp,
                    pp=1,
                    dp=1,
                    ep=False,
                    prefill=None,
                    decode=None,
                    precision="fp8" if tp > 1 else "bf16",
                    kv="bf16",
                    isl_tokens=1000.0,
                    osl_tokens=500.0,
                    reserved_tokens=1700.0,
                    concurrency=float(clients),
                    rate_rps=None,
                    kind="closed-loop",
                    speculation=False,
                    admitted=False,
                    source="made up",
                    note="",
                    measured=Measured(),
                )
            )
    resolved = tuple(resolve(r) for r in rows)
    nan = np.full(len(rows), np.nan)
    return Data(tuple(rows), resolved, nan, nan, nan)


def with_truth(data: Data, values: dict[str, float]) -> Data:
    model = Model(data, slots(PARAMETERS, data), SETTING)
    tpot, ttft, output = model.predict(np.log([values[s.parameter.name] for s in model.slots]))
    return replace(data, tpot_s=tpot, ttft_s=ttft, output_tok_s=output)


TRUTH = {"hbm_ratio": 0.9, "launch_ratio": 1.3, "request_s": 0.06}


def test_a_fit_finds_the_constants_it_was_given() -> None:
    data = with_truth(made_up(), TRUTH)
    model, theta = fit(data, PARAMETERS, SETTING, rounds=30)
    for slot, value in zip(model.slots, np.exp(theta), strict=True):
        assert value == pytest.approx(TRUTH[slot.parameter.name], rel=0.05), slot.label


def test_one_wrong_row_moves_little() -> None:
    data = with_truth(made_up(), TRUTH)
    wrong = data.tpot_s.copy()
    wrong[3] *= 5
    _, theta = fit(replace(data, tpot_s=wrong), PARAMETERS, SETTING, rounds=30)
    assert float(np.exp(theta[0])) == pytest.approx(0.9, rel=0.1)


def test_leaving_out_predicts_what_was_not_seen() -> None:
    data = with_truth(made_up(), TRUTH)
    tpot, *_ = leave_out(data, PARAMETERS, SETTING, lambda r: r.configuration, start=dict.fromkeys((), 1.0), rounds=12)
    assert np.isfinite(tpot).all()
    assert np.median(np.abs(tpot / data.tpot_s - 1)) < 0.05


def test_anchors_shrink_with_few_rows() -> None:
    rows = made_up().rows
    residuals = np.full(len(rows), 0.2)
    many = effects(rows, residuals, "tpot")
    few = effects(rows[:1], residuals[:1], "tpot")
    assert 0.1 < offsets(rows, many, "tpot").mean() <= 0.2
    assert 0 < offsets(rows[:1], few, "tpot")[0] < offsets(rows[:1], many, "tpot")[0]
    assert effects(rows, np.full(len(rows), np.nan), "tpot") == {}


def test_outliers_move_an_anchor_no_further_than_the_clip() -> None:
    rows = made_up().rows
    far = offsets(rows, effects(rows, np.full(len(rows), 3.0), "tpot"), "tpot")
    assert far.max() <= 0.5


@pytest.mark.parametrize("name", sorted(GENERATIONS))
def test_few_constants_each_in_the_shipped_file(name: str) -> None:
    generation, file = GENERATIONS[name], calibration_files()[name]
    for engine in file.engines:
        assert fitted_by(generation, engine) <= 20
        for p in generation.parameters:
            if p.engines and engine not in p.engines:
                continue
            where = {
                "shared": file.constants,
                "engine": file.engines[engine].constants,
                "arch": next(iter(file.architectures.values()), {}),
            }[p.scope]
            assert p.name in where, p.name
    assert file.measured_gpus
    assert file.fit_date == "2026-11-29"


def test_the_wait_table_is_what_the_simulation_gives() -> None:
    shipped = load_yaml(catalog_data("efficiency/closed_loop_wait.yaml"), what="wait table").data
    c, t = 4, 3
    runs = [np.mean(simulate(clients=shipped["clients"][c], think=shipped["think"][t], seed=s)) for s in range(16)]
    assert np.mean(runs) / shipped["clients"][c] == pytest.approx(shipped["mean"][c][t], rel=1e-3)


def test_kernel_tables_condense_to_what_is_shipped(shared: Path) -> None:
    from planner.calibrate.kernels import condense

    assert condense(shared / "facts" / "efficiency") == dict(
        load_yaml(catalog_data("efficiency/kernels.yaml"), what="kernel table").data.items()
    )
