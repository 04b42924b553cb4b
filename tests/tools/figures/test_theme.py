"""Colours keep apart for every reader, text has contrast and fits, and numbers read well."""

from itertools import combinations

import pytest

from cutset.tools.figures.svg import element, fit_text, fit_text_end, format_number, measure_text, wrap_text
from cutset.tools.figures.theme import _DARK, _LIGHT, _MACHINES, MACHINE_COLOURS, PLAIN_COLOURS
from cutset.tools.units import (
    choose_ticks,
    format_against_prediction,
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
)


def channel(value: int) -> float:
    part = value / 255
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def linear(colour: str) -> list[float]:
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(2 * c for c in digits)
    return [channel(int(digits[i : i + 2], 16)) for i in (0, 2, 4)]


def contrast(a: str, b: str) -> float:
    low, high = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(a), linear(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("variables", "dark"), [(_LIGHT, False), (_DARK, True)])
def test_text_has_contrast(variables: str, dark: bool) -> None:
    colours = dict(entry.split(":") for entry in variables.rstrip(";").split(";"))
    for ground in ("--paper", "--panel"):
        for text in ("--ink", "--muted", "--good", "--bad", "--accent"):
            assert contrast(colours[text], colours[ground]) >= 4.5, f"{text} on {ground}"
    for row in _MACHINES:
        assert contrast(row[dark], row[2 + dark]) >= 4.5, row


# Machado, Oliveira and Fernandes 2009, severity 1: what readers with a colour vision deficiency see, in linear RGB.
VISIONS = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def oklab(rgb: list[float]) -> tuple[float, float, float]:
    r, g, b = rgb
    cones = (
        0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
        0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
        0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
    )
    long, middle, short = (max(cone, 0.0) ** (1 / 3) for cone in cones)
    return (
        0.2104542553 * long + 0.793617785 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.428592205 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.808675766 * short,
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("vision", VISIONS)
def test_machine_colours_stay_apart(vision: str, dark: bool) -> None:
    seen = []
    for row in _MACHINES[:PLAIN_COLOURS]:
        rgb = linear(row[dark])
        seen.append(oklab([sum(w * c for w, c in zip(weights, rgb, strict=True)) for weights in VISIONS[vision]]))
    for (i, a), (j, b) in combinations(enumerate(seen), 2):
        apart = sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5
        assert apart > (0.18 if j < 4 else 0.08), f"machines {i} and {j}"


@pytest.mark.parametrize("dark", [False, True])
def test_sixteen_machines_have_colours_that_differ(dark: bool) -> None:
    """The second eight are hatched besides, for those who do not see all colours."""
    colours = [oklab(linear(row[dark])) for row in _MACHINES]
    assert len(colours) == MACHINE_COLOURS == 2 * PLAIN_COLOURS
    for (i, a), (j, b) in combinations(enumerate(colours), 2):
        assert sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5 > 0.085, f"machines {i} and {j}"


def test_text_is_cut_to_fit() -> None:
    assert fit_text("short", 100) == "short"
    assert fit_text("a long line of text", 60).endswith("…")
    assert measure_text(fit_text("a long line of text", 60)) <= 60
    assert fit_text_end("layers.11.attention", 70, 10).endswith("tention")
    assert fit_text("anything", 0) == ""
    lines = wrap_text("a long line of several words", 80)
    assert " ".join(lines) == "a long line of several words"
    assert len(lines) > 1
    assert all(measure_text(line) <= 80 for line in lines)


def test_tags_are_escaped_and_numbers_short() -> None:
    assert element("a", cls='"<', stroke_width=1.5, x=None) == '<a class="&quot;&lt;" stroke-width="1.5"/>'
    assert [format_number(value) for value in (1.0, 0.1 + 0.2, -0.001, 1e6)] == ["1", "0.3", "0", "1000000"]
    with pytest.raises(ValueError, match="nan"):
        format_number(float("nan"))


def test_numbers_read_well() -> None:
    assert [format_bytes(n) for n in (0, 640, 1536, 1023, 5 << 30, None)] == [
        "0 B",
        "640 B",
        "1.5 KiB",
        "1 KiB",
        "5 GiB",
        "–",
    ]
    assert [format_seconds(n) for n in (0, 2e-6, 0.00123, 1.5, 300, 7200)] == [
        "0 s",
        "2 µs",
        "1.23 ms",
        "1.5 s",
        "5 min",
        "2 h",
    ]
    assert [format_count(n) for n in (12, 1234567)] == ["12", "1.23 M"]
    assert [format_percent(n) for n in (0, 0.001, 0.256, None)] == ["0 %", "<1 %", "26 %", "–"]
    assert choose_ticks(1.0) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert choose_ticks(0) == [0.0]


def test_a_measured_time_is_set_against_its_prediction() -> None:
    assert format_against_prediction(0.03, 0.012) == "2.5 times the predicted 12 ms"
    assert format_against_prediction(0.006, 0.012) == "0.5 times the predicted 12 ms"
    assert format_against_prediction(0.0122, 0.012) == "as predicted (12 ms)"
