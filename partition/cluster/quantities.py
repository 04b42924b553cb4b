"""Numbers with units, as files state them: "16 GB", "1 Gbit/s", "0.2 ms", "50 GFLOP/s"; exact both ways.

KB, MB, ... are decimal and KiB, MiB, ... binary. A plain number is in bytes, bytes/s, seconds or FLOP/s.
"""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, ClassVar, Self

Factors = Mapping[str, Decimal]

_DECIMAL = {prefix: Decimal(10) ** (3 * i) for i, prefix in enumerate(("", "k", "M", "G", "T", "P"))}
_BINARY = {prefix: Decimal(1024) ** (i + 1) for i, prefix in enumerate(("Ki", "Mi", "Gi", "Ti"))}
_MICRO = ("u", "\N{MICRO SIGN}", "\N{GREEK SMALL LETTER MU}")
_SMALL = {"": Decimal(1), "m": Decimal("1e-3"), **dict.fromkeys(_MICRO, Decimal("1e-6")), "n": Decimal("1e-9")}
_NUMBER_AND_UNIT = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*?)?\s*")
_DIGITS = 6  # significant digits that a number with a unit is written with, where that is exact


def _units(unit: str, prefixes: Factors, scale: Decimal = Decimal(1)) -> dict[str, Decimal]:
    return {f"{prefix}{unit}": factor * scale for prefix, factor in prefixes.items()}


_BIT = Decimal("0.125")
_BYTES = _units("B", _DECIMAL) | _units("B", _BINARY) | {"KB": Decimal(1000)}
_BITS_PER_SECOND = _units("bit/s", _DECIMAL, _BIT) | _units("bps", _DECIMAL, _BIT) | _units("b/s", _DECIMAL, _BIT)


class Quantity(float):
    """A number in the plain unit of its kind. Subclasses say what is measured and which units there are.

    units: how many of the plain unit each is. written_units: those that `format` uses, largest first. example: what a
    file may say. MINIMUM, MAXIMUM: what is believed, in the plain unit.
    """

    label: ClassVar[str]
    units: ClassVar[Factors]
    written_units: ClassVar[tuple[str, ...]]
    example: ClassVar[str]
    MINIMUM: ClassVar[float]
    MAXIMUM: ClassVar[float]

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Read what a file states, a number or a text. ValueError says what is wrong with it."""
        match = _NUMBER_AND_UNIT.fullmatch(str(value)) if isinstance(value, int | float | str) else None
        if match is None:  # also True, nan and inf
            raise ValueError(f"is no {cls.label}")
        factor = cls._factor(match[2]) if match[2] else Decimal(1)
        number = float(match[1])
        if 0 < abs(number) < math.inf:
            number = float(Decimal(match[1]) * factor)
        if number < cls.MINIMUM:
            raise ValueError("is negative" if number < 0 else f"is too small for a {cls.label}")
        if number > cls.MAXIMUM:
            raise ValueError(f"is too large for a {cls.label}")
        return cls(number)

    @classmethod
    def format(cls, number: float) -> float | str:
        """Write a number as a file states it: with a unit where that is exact, else plain."""
        for unit in cls.written_units:
            text = f"{float(Decimal(number) / cls.units[unit]):.{_DIGITS}g}"
            if float(text) >= 1 and "e" not in text and float(Decimal(text) * cls.units[unit]) == number:
                return f"{text} {unit}"
        return number

    @classmethod
    def _factor(cls, unit: str) -> Decimal:
        if unit in cls.units:
            return cls.units[unit]
        # "gb", "mbit/s": case counts only where it tells two units apart, as in "Mb" and "MB"
        same_letters = {factor for name, factor in cls.units.items() if name.lower() == unit.lower()}
        if len(same_letters) == 1:
            return same_letters.pop()
        raise ValueError(f"has the unit {unit!r}; a {cls.label} has {', '.join(cls.written_units) or 'none'}")


class Memory(Quantity):
    """Bytes."""

    label, example = "size of memory", "16 GB"
    units = _BYTES
    written_units = ("GiB", "GB", "MiB", "MB", "B")
    MINIMUM, MAXIMUM = 1.0, 1e18


class Bandwidth(Quantity):
    """Bytes per second."""

    label, example = "bandwidth", "1 Gbit/s"
    units: ClassVar[Factors] = {f"{unit}/s": factor for unit, factor in _BYTES.items()} | _BITS_PER_SECOND
    written_units = ("GB/s", "MB/s", "kB/s", "Gbit/s", "Mbit/s")
    MINIMUM, MAXIMUM = 1.0, 1e18


class Duration(Quantity):
    """Seconds."""

    label, example = "time", "0.2 ms"
    units = _units("s", _SMALL)
    written_units = ("s", "ms", "us", "ns")
    MINIMUM, MAXIMUM = 0.0, 1e6


class Speed(Quantity):
    """FLOP/s."""

    label, example = "speed", "50 GFLOP/s"
    units = _units("FLOP/s", _DECIMAL) | _units("FLOPS", _DECIMAL)
    written_units = ("TFLOP/s", "GFLOP/s", "MFLOP/s", "kFLOP/s")
    MINIMUM, MAXIMUM = 1.0, 1e21


class Fraction(Quantity):
    """A number without a unit."""

    label, example = "fraction", "0.5"
    units: ClassVar[Factors] = {}
    written_units = ()
    MINIMUM, MAXIMUM = 0.0, 1e3


class Slowdown(Quantity):
    """How many times as long something takes."""

    label, example = "slowdown", "1.3"
    units: ClassVar[Factors] = {}
    written_units = ()
    MINIMUM, MAXIMUM = 1.0, 1e3
