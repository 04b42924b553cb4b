"""Numbers with units, as files state them: "16 GB", "1 Gbit/s", "0.2 ms", "50 GFLOP/s"; exact both ways.

KB, MB, ... are decimal and KiB, MiB, ... binary; a plain number is in bytes, bytes/s, seconds or FLOP/s.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Factors = Mapping[str, Decimal]

_DECIMAL = {prefix: Decimal(10) ** (3 * i) for i, prefix in enumerate(("", "k", "M", "G", "T", "P"))}
_BINARY = {prefix: Decimal(1024) ** (i + 1) for i, prefix in enumerate(("Ki", "Mi", "Gi", "Ti"))}
_SPELLED = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*?)?\s*")
_DIGITS = 6  # that a number with a unit is written with, where that is exact


@dataclass(frozen=True)
class Quantity:
    """What is measured. units: by name, how many of the plain unit each is; written: those to write, largest first.

    least, most: what can be believed, in the plain unit.
    """

    name: str
    units: Factors
    written: tuple[str, ...]
    example: str
    least: float
    most: float

    def read(self, value: Any) -> float:
        """The number that a file states. ValueError says what is wrong with it."""
        number = self._number(value)
        if math.isnan(number) or math.isinf(number):
            raise ValueError(f"is no {self.name}")
        if number < self.least:
            raise ValueError("is negative" if number < 0 else f"is too small for a {self.name}")
        if number > self.most:
            raise ValueError(f"is too large for a {self.name}")
        return number

    def write(self, number: float) -> float | str:
        """As a file states it: with a unit where that is exact, else plain."""
        for unit in self.written:
            text = f"{float(Decimal(number) / self.units[unit]):.{_DIGITS}g}"
            if float(text) >= 1 and "e" not in text and float(Decimal(text) * self.units[unit]) == number:
                return f"{text} {unit}"
        return number

    def _number(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(f"is no {self.name}")
        if not isinstance(value, str):
            return _finite(value)
        found = _SPELLED.fullmatch(value)
        if found is None:
            raise ValueError(f"is no {self.name}")
        factor = self._factor(found[2]) if found[2] else Decimal(1)
        plain = float(found[1])
        return float(Decimal(found[1]) * factor) if 0 < abs(plain) < math.inf else plain

    def _factor(self, unit: str) -> Decimal:
        known = self.units.get(unit)
        if known is None:  # "gb", "mbit/s": the case is minded only where it says something, as in "Mb" and "MB"
            alike = [factor for name, factor in self.units.items() if name.lower() == unit.lower()]
            known = alike[0] if len(set(alike)) == 1 else None
        if known is None:
            raise ValueError(f"has the unit {unit!r}; a {self.name} has {', '.join(self.written) or 'none'}")
        return known


def _finite(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return math.inf


def _units(unit: str, prefixes: Factors, scale: Decimal = Decimal(1)) -> dict[str, Decimal]:
    return {f"{prefix}{unit}": factor * scale for prefix, factor in prefixes.items()}


_BIT = Decimal("0.125")
_BYTES = _units("B", _DECIMAL) | _units("B", _BINARY) | {"KB": Decimal(1000)}
_MICRO = Decimal("1e-6")
_SECONDS = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": _MICRO, "\N{MICRO SIGN}s": _MICRO, "ns": Decimal("1e-9")}
_SECONDS["\N{GREEK SMALL LETTER MU}s"] = _MICRO
_PER_SECOND = {f"{unit}/s": factor for unit, factor in _BYTES.items()}
_BITS = _units("bit/s", _DECIMAL, _BIT) | _units("bps", _DECIMAL, _BIT) | _units("b/s", _DECIMAL, _BIT)

MEMORY = Quantity("size of memory", _BYTES, ("GiB", "GB", "MiB", "MB", "B"), "16 GB", 1.0, 1e18)
BANDWIDTH = Quantity(
    "bandwidth", _PER_SECOND | _BITS, ("GB/s", "MB/s", "kB/s", "Gbit/s", "Mbit/s"), "1 Gbit/s", 1.0, 1e18
)
TIME = Quantity("time", _SECONDS, ("s", "ms", "us", "ns"), "0.2 ms", 0.0, 1e6)
SPEED = Quantity(
    "speed",
    _units("FLOP/s", _DECIMAL) | _units("FLOPS", _DECIMAL),
    ("TFLOP/s", "GFLOP/s", "MFLOP/s", "kFLOP/s"),
    "50 GFLOP/s",
    1.0,
    1e21,
)
SHARE = Quantity("share", {}, (), "0.5", 0.0, 1e3)
