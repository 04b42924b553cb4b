"""Numbers with units, read and written."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.partition.cluster.quantities import BANDWIDTH, MEMORY, SPEED, TIME

ALL = (MEMORY, BANDWIDTH, SPEED, TIME)


@pytest.mark.parametrize(
    ("quantity", "text", "number"),
    [
        (MEMORY, "16 GB", 16e9),
        (MEMORY, "16GiB", 16 * 2.0**30),
        (MEMORY, "1_000 kB", 1e6),
        (MEMORY, 12345, 12345.0),
        (BANDWIDTH, "1 Gbit/s", 125e6),
        (BANDWIDTH, "1 gbit/s", 125e6),
        (BANDWIDTH, "100 Mbps", 12.5e6),
        (BANDWIDTH, "1.5 MB/s", 1.5e6),
        (BANDWIDTH, "2.5e8", 2.5e8),
        (TIME, "0.2 ms", 0.0002),
        (TIME, "25 us", 25e-6),
        (TIME, "25 µs", 25e-6),
        (TIME, "  3 s ", 3.0),
        (TIME, 0, 0.0),
        (SPEED, "50 GFLOP/s", 50e9),
        (SPEED, "1 tflop/s", 1e12),
        (SPEED, "7 GFLOPS", 7e9),
    ],
)
def test_what_a_text_says(quantity, text, number):
    assert quantity.read(text) == number


@pytest.mark.parametrize(
    ("quantity", "value", "said"),
    [
        (MEMORY, "sixteen", "is no size of memory"),
        (MEMORY, True, "is no size of memory"),
        (MEMORY, [1], "is no size of memory"),
        (MEMORY, "16 GB/s", "has the unit 'GB/s'"),
        (MEMORY, 0, "too small"),
        (MEMORY, "1e400 GB", "is no size of memory"),
        (MEMORY, 10**400, "is no size of memory"),
        (BANDWIDTH, "1 Gbit", "has the unit 'Gbit'"),
        (BANDWIDTH, "1e-30 B/s", "too small"),
        (BANDWIDTH, "1e30 B/s", "too large"),
        (TIME, "-1 ms", "is negative"),
        (TIME, "1 m", "has the unit 'm'"),
        (TIME, math.nan, "is no time"),
        (TIME, math.inf, "is no time"),
        (SPEED, "50 GB/s", "has the unit 'GB/s'"),
        (SPEED, -5, "is negative"),
        (SPEED, "", "is no speed"),
        (SPEED, "1 2 GFLOP/s", "is no speed"),
    ],
)
def test_what_is_wrong_with_a_value(quantity, value, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        quantity.read(value)


@given(st.sampled_from(ALL), st.floats(1.0, 1e6) | st.floats(1e-9, 1e6).filter(lambda x: x > 0))
def test_what_is_written_is_read_back_to_the_last_bit(quantity, number):
    number = max(number, quantity.least)
    assert quantity.read(quantity.write(number)) == number


@given(st.sampled_from(ALL), st.text(max_size=12) | st.floats() | st.integers() | st.none())
def test_anything_is_read_or_refused(quantity, value):
    try:
        number = quantity.read(value)
    except ValueError:
        return
    assert quantity.least <= number <= quantity.most


def test_round_numbers_are_written_for_people():
    assert MEMORY.write(8 << 30) == "8 GiB"
    assert MEMORY.write(12.64e9) == "12.64 GB"
    assert BANDWIDTH.write(125e6) == "125 MB/s"
    assert TIME.write(19.33e-6) == "19.33 us"
    assert SPEED.write(103.9e9) == "103.9 GFLOP/s"
    assert TIME.write(1 / 3) == 1 / 3
