"""Quantities: what is read, what is refused and with which advice, and that text written reads back the same."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import units


@pytest.mark.parametrize(
    ("dimension", "text", "value"),
    [
        (units.TIME, "50ms", 0.05),
        (units.TIME, "1.5 s", 1.5),
        (units.TIME, "250us", 0.00025),
        (units.TIME, "2min", 120.0),
        (units.BYTES, "80GB", 80e9),
        (units.BYTES, "80GiB", 80 * 2**30),
        (units.BYTES, "1_000B", 1000.0),
        (units.DATA_RATE, "3.35TB/s", 3.35e12),
        (units.DATA_RATE, "400Gbit/s", 50e9),
        (units.DATA_RATE, "400Gb/s", 50e9),
        (units.FLOP_RATE, "989TFLOPS", 989e12),
        (units.FLOP_RATE, "1.979PFLOP/s", 1.979e15),
        (units.RATE, "12/s", 12.0),
        (units.RATE, "600/min", 10.0),
        (units.RATE, "3.6e3 req/h", 1.0),
        (units.MONEY, "$2.95/h", 2.95),
        (units.MONEY, "0$/h", 0.0),
        (units.POWER, "0.7kW", 700.0),
    ],
)
def test_read(dimension: units.Dimension, text: str, value: float) -> None:
    assert dimension.parse(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("dimension", "value", "message"),
    [
        (units.TIME, 50, "bare number 50: a time needs a unit"),
        (units.TIME, "50", "bare number '50': a time needs a unit"),
        (units.TIME, "0ms", "must be greater than zero"),
        (units.TIME, 0, "must be greater than zero"),
        (units.TIME, "-3s", "must be greater than zero"),
        (units.TIME, "nan s", "not a time"),
        (units.TIME, "inf", "not a time"),
        (units.TIME, "1e999s", "absurdly large"),
        (units.TIME, "50 parsecs", "unknown unit 'parsecs'"),
        (units.TIME, None, "expected a time"),
        (units.TIME, True, "expected a time"),
        (units.TIME, ["50ms"], "expected a time"),
        (units.TIME, "", "not a time"),
        (units.TIME, "9" * 500 + "s", "not a time"),
        (units.RATE, "12", "bare number '12': a rate needs a unit"),
        (units.RATE, "0/s", "must be greater than zero"),
        (units.BYTES, "80gb", "unknown unit 'gb'"),
        (units.MONEY, "-1$/h", "must be greater than zero"),
    ],
)
def test_refused(dimension: units.Dimension, value: object, message: str) -> None:
    with pytest.raises(units.QuantityError, match=message.replace("(", r"\(")) as e:
        dimension.parse(value)
    assert e.value.advice


FORMATS = [
    (units.TIME, units.format_time_exact, 1e-7, 1e7),
    (units.BYTES, units.format_bytes_exact, 1, 1e17),
    (units.DATA_RATE, units.format_data_rate_exact, 1, 1e17),
    (units.FLOP_RATE, units.format_flop_rate_exact, 1e3, 1e20),
    (units.RATE, units.format_rate_exact, 1e-6, 1e8),
    (units.MONEY, units.format_money_exact, 1e-3, 1e8),
    (units.POWER, units.format_power_exact, 1e-3, 1e8),
]


@pytest.mark.parametrize(("dimension", "write", "low", "high"), FORMATS, ids=lambda f: getattr(f, "name", ""))
@given(data=st.data())
def test_written_text_reads_back(
    dimension: units.Dimension, write: object, low: float, high: float, data: st.DataObject
) -> None:
    value = data.draw(st.floats(low, high, allow_nan=False))
    text = write(value)  # type: ignore[operator]
    assert math.isclose(dimension.parse(text), value, rel_tol=1e-12)
    assert write(dimension.parse(text)) == text  # type: ignore[operator]


@given(st.floats(1e-9, 1e6))
def test_shown_times_have_three_digits(value: float) -> None:
    shown = units.show_time(value)
    digits = "".join(c for c in shown if c.isdigit()).strip("0")
    assert len(digits) <= 7
    assert units.TIME.parse(shown) == pytest.approx(value, rel=0.006)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.207, "207ms"), (0.0239, "23.9ms"), (0.944, "944ms"), (1.12, "1.12s"), (2658.0, "2658s"), (0.00035, "350us")],
)
def test_times_are_written_in_the_unit_people_read(value: float, text: str) -> None:
    assert units.format_time_exact(value) == text
    assert units.TIME.parse(text) == value


@pytest.mark.parametrize(
    ("dimension", "value", "advice"),
    [
        (units.NIC_RATE, 400, "write 400Gbit/s if that is what you mean"),
        (units.SCALE_UP_RATE, 900, "write 900GB/s if that is what you mean"),
        (units.STORAGE_RATE, 2, "write 2GB/s if that is what you mean"),
        (units.DATA_RATE, 3.35, "write 3.35TB/s if that is what you mean"),
        (units.MONEY, 3, "write $3/h if that is what you mean"),
    ],
)
def test_advice_can_be_followed(dimension: units.Dimension, value: float, advice: str) -> None:
    with pytest.raises(units.QuantityError) as raised:
        dimension.parse(value)
    assert raised.value.advice == advice
