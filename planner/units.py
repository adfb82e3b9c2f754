"""Quantities at the edge: text with a unit in, plain SI floats inside, short text out.

Every quantity in a document carries its unit; a bare number where one is needed is refused with what to write.
GB is 10^9 bytes, GiB is 2^30. Inside the planner the unit stands in the name (`ttft_s`, `weights_bytes`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema

_SI = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_IEC = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

_TIME = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_BYTES = {f"{p}B": f for p, f in (_SI | _IEC).items()}
_BITS = {f"{p}b": f / 8 for p, f in _SI.items() if p}
_DATA_RATE = (
    {f"{u}/s": f for u, f in _BYTES.items()}
    | {f"{p}bit/s": f / 8 for p, f in _SI.items()}
    | {f"{p}b/s": f / 8 for p, f in _SI.items()}
)
_FLOP_RATE = {f"{p}{n}": f for p, f in _SI.items() if p for n in ("FLOPS", "FLOP/s", "OPS", "OP/s")}
_RATE = {"/s": 1.0, "/min": 1 / 60, "/m": 1 / 60, "/h": 1 / 3600, "/d": 1 / 86400}
_RATE |= {f"{w}{u}": f for w in ("req", "requests") for u, f in _RATE.items()} | {"rps": 1.0, "qps": 1.0}
_MONEY = {"$/h": 1.0, "USD/h": 1.0, "usd/h": 1.0, "$/hour": 1.0, "$/d": 1 / 24, "$/month": 1 / 730}
_POWER = {"W": 1.0, "kW": 1e3, "MW": 1e6}

_NUMBER = re.compile(r"^\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*?)\s*$", re.DOTALL)
# A quantity of more than 60 characters is a mistake; the bound also keeps the parser away from huge strings.
_LONGEST = 60


class QuantityError(ValueError):
    """A quantity that cannot be read; carries the advice separately so that errors can print it as help."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


@dataclass(frozen=True, slots=True)
class Dimension:
    """One kind of quantity: its units, the one shown in advice, and how large a sane value is."""

    name: str
    units: dict[str, float]
    example: str
    zero_ok: bool = False
    largest: float = math.inf

    def parse(self, value: Any) -> float:
        """Text with a unit -> SI float.

        >>> TIME.parse("50ms")
        0.05
        >>> DATA_RATE.parse("3.35TB/s")
        3350000000000.0
        """
        if isinstance(value, bool) or value is None or isinstance(value, (list, dict)):
            raise QuantityError(f"expected a {self.name} such as {self.example}", f"write it like {self.example}")
        if isinstance(value, (int, float)) and value <= 0 and not (value == 0 and self.zero_ok):
            raise QuantityError(
                f"a {self.name} must be greater than zero, not {value:g}", f"write it like {self.example}"
            )
        if isinstance(value, (int, float)):
            shown = f"{value:g}" if isinstance(value, float) else str(value)[:20]
            raise QuantityError(f"bare number {shown}: a {self.name} needs a unit", self._complete(shown))
        text = str(value)
        if len(text) > _LONGEST:
            raise QuantityError(f"not a {self.name}: {text[:30]!r}...", f"write it like {self.example}")
        if text.startswith("$") and self is MONEY:
            text = text[1:].replace("/", "$/", 1)
        match = _NUMBER.match(text)
        if not match:
            raise QuantityError(f"not a {self.name}: {text!r}", f"write it like {self.example}")
        digits, unit = match.groups()
        if unit == "" and float(digits.replace("_", "")) <= 0 and not self.zero_ok:
            raise QuantityError(
                f"a {self.name} must be greater than zero, not {text!r}", f"write it like {self.example}"
            )
        if unit == "":
            raise QuantityError(f"bare number {text!r}: a {self.name} needs a unit", self._complete(digits))
        if unit not in self.units:
            known = ", ".join(u for u in self.units if u)
            raise QuantityError(f"unknown unit {unit!r} for a {self.name}", f"use one of {known}")
        try:
            number = Decimal(digits.replace("_", ""))
        except InvalidOperation as e:  # pragma: no cover - the pattern admits only numbers
            raise QuantityError(f"not a {self.name}: {text!r}") from e
        result = _scaled(number, self.units[unit])
        if not math.isfinite(result) or result > self.largest:
            raise QuantityError(f"{text!r} is absurdly large for a {self.name}", f"write it like {self.example}")
        if result < 0 or (result == 0 and not self.zero_ok):
            raise QuantityError(
                f"a {self.name} must be greater than zero, not {text!r}", f"write it like {self.example}"
            )
        return result

    def _complete(self, digits: str) -> str:
        """A number without a unit, with the unit of the example."""
        unit = re.sub(r"^[\d.$]+", "", self.example)
        lead = "$" if self.example.startswith("$") else ""
        return f"write {lead}{digits}{unit} if that is what you mean"


def _scaled(number: Decimal | float, factor: float) -> float:
    """`number` times `factor`, rounded once: `207ms` is the float that people write as 0.207.

    Factors that no short decimal says (1/60) are multiplied as floats.
    """
    exact = Decimal(repr(factor))
    if not math.isfinite(float(number)) or len(exact.as_tuple().digits) > 16:
        return float(number) * factor
    return float(Decimal(repr(number) if isinstance(number, float) else number) * exact)


TIME = Dimension("time", _TIME, "50ms", largest=1e9)
BYTES = Dimension("size in bytes", _BYTES, "80GB", largest=1e18)
BYTES_OR_ZERO = Dimension("size in bytes", _BYTES, "80GB", zero_ok=True, largest=1e18)
DATA_RATE = Dimension(
    "bandwidth", _DATA_RATE | {f"{p}bps": f / 8 for p, f in _SI.items() if p}, "3.35TB/s", largest=1e18
)
NIC_RATE = replace(DATA_RATE, example="400Gbit/s")
"""Network links, which people know in bits."""
SCALE_UP_RATE = replace(DATA_RATE, example="450GB/s")
STORAGE_RATE = replace(DATA_RATE, example="2GB/s")
FLOP_RATE = Dimension("compute rate", _FLOP_RATE, "989TFLOPS", largest=1e21)
RATE = Dimension("rate", _RATE, "12/s", largest=1e9)
MONEY = Dimension("price per hour", _MONEY, "$2.95/h", zero_ok=True, largest=1e9)
POWER = Dimension("power", _POWER, "700W", largest=1e9)


def _number(value: float) -> str:
    """Shortest text that reads back as the same float, without exponent where it stays readable."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    text = repr(value)
    if "e" in text or "E" in text:
        text = format(Decimal(text), "f")
    return text


def _exact(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """`value` in the first unit that gives at least 1 and reads back exactly; the last unit otherwise.

    Full precision: what is written in a plan parses to the same float again.
    """
    for unit, factor in units:
        if value >= factor:
            number = float(f"{value / factor:.12g}")
            if _scaled(number, factor) == value:
                return _number(number) + unit
    unit, factor = units[-1]
    # Every unit here is a power of ten: the division of decimals is exact where that of floats is not.
    return format((Decimal(repr(value)) / Decimal(repr(factor))).normalize(), "f") + unit


def format_time_exact(value_s: float) -> str:
    """Canonical text of a time in the unit that gives 1 to 1000 (or seconds above); parses back to the same float.

    >>> [format_time_exact(t) for t in (0.207, 0.0239, 0.944, 1.12, 2658.0, 0.0000021)]
    ['207ms', '23.9ms', '944ms', '1.12s', '2658s', '2.1us']
    """
    best: str | None = None
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        number = float(f"{value_s / factor:.12g}")
        if number <= 0 or _scaled(number, factor) != value_s:
            continue
        text = _number(number)
        if 1 <= number < 1000 or (unit == "s" and number >= 1000):
            return text + unit
        if best is None or len(text) < len(best):
            best = text + unit
    return best or _number(value_s) + "s"


def format_bytes_exact(value: float) -> str:
    """Canonical text of a size: the largest unit that divides it well, GiB before GB."""
    for unit, factor in (("GiB", 2.0**30), ("MiB", 2.0**20)):
        if value >= factor and value % factor == 0:
            return _number(value / factor) + unit
    return _exact(value, (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)))


def format_data_rate_exact(value: float) -> str:
    return _exact(value, (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("B/s", 1.0)))


def format_flop_rate_exact(value: float) -> str:
    return _exact(value, (("TFLOPS", 1e12), ("GFLOPS", 1e9), ("MFLOPS", 1e6), ("kFLOPS", 1e3)))


def format_rate_exact(value: float) -> str:
    return _number(value) + "/s"


def format_money_exact(value: float) -> str:
    return f"${_number(value)}/h"


def format_power_exact(value: float) -> str:
    return _number(value) + "W"


FROM_DOCUMENT = {"document": True}
"""pydantic context of values that people wrote: there a number without a unit is refused."""


def _quantity(dimension: Dimension, write: Any) -> tuple[Any, ...]:
    def read(value: Any, info: ValidationInfo) -> Any:
        # Our own code builds documents from SI floats; only what is read from a file or typed must carry a unit.
        if not info.context and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        return dimension.parse(value)

    return (
        BeforeValidator(read),
        PlainSerializer(write, return_type=str),
        WithJsonSchema(
            {
                "type": "string",
                "description": f"a {dimension.name}, e.g. {dimension.example}",
                "examples": [dimension.example],
            }
        ),
    )


Seconds = Annotated[float, *_quantity(TIME, format_time_exact)]
Bytes = Annotated[float, *_quantity(BYTES, format_bytes_exact)]
BytesOrZero = Annotated[float, *_quantity(BYTES_OR_ZERO, format_bytes_exact)]
BytesPerSecond = Annotated[float, *_quantity(DATA_RATE, format_data_rate_exact)]
LinkBytesPerSecond = Annotated[float, *_quantity(NIC_RATE, format_data_rate_exact)]
ScaleUpBytesPerSecond = Annotated[float, *_quantity(SCALE_UP_RATE, format_data_rate_exact)]
StorageBytesPerSecond = Annotated[float, *_quantity(STORAGE_RATE, format_data_rate_exact)]
FlopPerSecond = Annotated[float, *_quantity(FLOP_RATE, format_flop_rate_exact)]
PerSecond = Annotated[float, *_quantity(RATE, format_rate_exact)]
DollarsPerHour = Annotated[float, *_quantity(MONEY, format_money_exact)]
Watts = Annotated[float, *_quantity(POWER, format_power_exact)]


def show_time(value_s: float) -> str:
    """A time for people, three significant digits.

    >>> [show_time(t) for t in (0.0000021, 0.00456, 0.0123, 0.51, 2.5, 75.0)]
    ['2.1us', '4.56ms', '12.3ms', '510ms', '2.5s', '75s']
    """
    if not math.isfinite(value_s):
        return "unbounded"
    if value_s == 0:
        return "0ms"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value_s >= factor * 0.9995:
            return f"{_three(value_s / factor)}{unit}"
    return f"{_three(value_s / 1e-9)}ns"


def show_bytes(value: float) -> str:
    """A size for people, decimal units, three significant digits.

    >>> show_bytes(16.06e9), show_bytes(131072)
    ('16.1GB', '131kB')
    """
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor * 0.9995:
            return f"{_three(value / factor)}{unit}"
    return f"{_three(value)}B"


def show_rate(value: float) -> str:
    """Requests per second for people, e.g. `12.5/s`."""
    return f"{_three(value)}/s"


def show_money(value: float) -> str:
    """Dollars, two decimals, thousands grouped."""
    return f"${value:,.2f}"


def show_count(value: float) -> str:
    """A large count for people: 1,234 or 1.23M.

    >>> show_count(48211), show_count(2_540_000)
    ('48,211', '2.54M')
    """
    return f"{value / 1e6:.3g}M" if value >= 1e6 else f"{value:,.0f}"


def _three(value: float) -> str:
    """Three significant digits without exponent or trailing zeros."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
