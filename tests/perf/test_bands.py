"""Bands widen with what is not known; odds follow from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog.gpus import find_gpu
from planner.perf.bands import Promise, band, band_entry, odds
from planner.perf.calibration import Band, Calibration, Constants, calibration_for
from planner.perf.deployment import hardware

NARROW = Band(offset_sd=0.05, rest_sd=0.05, low_ratio=0.9, high_ratio=1.1, rows=100)
WIDE = Band(offset_sd=0.15, rest_sd=0.05, low_ratio=0.8, high_ratio=1.3, rows=100)


def calibration(**bands: Band) -> Calibration:
    named = tuple((k.replace("__", "/").replace("_", "-"), b) for k, b in bands.items())
    return Calibration("t", "vllm", Constants(), "", 0, bands=named)


def h100():
    return calibration_for("vllm", "0.33.0", hardware(find_gpu("h100-sxm")))


def test_shipped_bands_widen_with_what_is_not_known() -> None:
    c = h100()

    def width(metric: str = "tpot", **known: bool) -> float:
        low, high = band(c, metric, **known)
        return high / low

    for metric in ("tpot", "ttft"):
        anchored = width(metric, model_seen=True, gpu_seen=True, anchored=True)
        seen = width(metric, model_seen=True, gpu_seen=True)
        model = width(metric, model_seen=False, gpu_seen=True)
        neither = width(metric, model_seen=False, gpu_seen=False)
        assert anchored < seen < model <= neither
        assert width(metric, model_seen=True, gpu_seen=False) >= seen


def test_coverage_scales_the_band() -> None:
    c = calibration(tpot__seen=WIDE)
    assert band(c, "tpot", model_seen=True, gpu_seen=True) == (0.8, 1.3)
    low, high = band(c, "tpot", model_seen=True, gpu_seen=True, coverage=0.95)
    assert low < 0.8
    assert high > 1.3
    low, high = band(c, "tpot", model_seen=True, gpu_seen=True, coverage=0.5)
    assert 0.8 < low < 1 < high < 1.3


def test_a_level_is_never_narrower_than_a_better_known_one() -> None:
    c = calibration(tpot__seen=WIDE, tpot__gpu_unseen=NARROW)
    assert band(c, "tpot", model_seen=True, gpu_seen=False) == (0.8, 1.3)


def test_what_was_never_cross_validated_is_wider() -> None:
    c = calibration(tpot__seen=WIDE)
    b = band_entry(c, "tpot", model_seen=False, gpu_seen=True)
    assert b.low_ratio < 0.8
    assert b.high_ratio > 1.3
    assert band(c, "ttft", model_seen=True, gpu_seen=True) == (0.5, 2.0)


def promise(limit: float, name: str = "a", b: Band = WIDE) -> Promise:
    return Promise(predicted_s=0.05, limit_s=limit, band=b, configuration=name)


def test_odds_at_the_band_edges() -> None:
    assert odds([]) == 1.0
    assert odds([promise(0.05 * 1.3)]) == pytest.approx(0.9, abs=0.03)
    assert odds([promise(0.05 * 0.8)]) == pytest.approx(0.1, abs=0.03)
    assert odds([promise(0.5)]) > 0.99


def test_pools_of_one_configuration_share_its_offset() -> None:
    one = odds([promise(0.055)])
    together = odds([promise(0.055), promise(0.055)])
    apart = odds([promise(0.055, "a"), promise(0.055, "b")])
    assert apart == pytest.approx(one**2)
    assert apart < together < one


@given(st.floats(0.03, 0.2), st.floats(1.0, 2.0))
def test_a_looser_limit_never_lowers_the_odds(limit: float, factor: float) -> None:
    assert odds([promise(limit * factor), promise(0.06)]) >= odds([promise(limit), promise(0.06)])
