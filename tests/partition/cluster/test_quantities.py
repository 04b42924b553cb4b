"""Numbers with units, read and written."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.partition.cluster.quantities import Bandwidth, Duration, Memory, Speed

ALL = (Memory, Bandwidth, Speed, Duration)


@pytest.mark.parametrize(
    ("quantity", "text", "number"),
    [
        (Memory, "16 GB", 16e9),
        (Memory, "16GiB", 16 * 2.0**30),
        (Memory, "1_000 kB", 1e6),
        (Memory, 12345, 12345.0),
        (Bandwidth, "1 Gbit/s", 125e6),
        (Bandwidth, "1 gbit/s", 125e6),
        (Bandwidth, "100 Mbps", 12.5e6),
        (Bandwidth, "1.5 MB/s", 1.5e6),
        (Bandwidth, "2.5e8", 2.5e8),
        (Duration, "0.2 ms", 0.0002),
        (Duration, "25 us", 25e-6),
        (Duration, "25 µs", 25e-6),
        (Duration, "  3 s ", 3.0),
        (Duration, 0, 0.0),
        (Speed, "50 GFLOP/s", 50e9),
        (Speed, "1 tflop/s", 1e12),
        (Speed, "7 GFLOPS", 7e9),
    ],
)
def test_what_a_text_says(quantity, text, number):
    assert quantity.parse(text) == number


@pytest.mark.parametrize(
    ("quantity", "value", "said"),
    [
        (Memory, "sixteen", "is no size of memory"),
        (Memory, True, "is no size of memory"),
        (Memory, [1], "is no size of memory"),
        (Memory, "16 GB/s", "has the unit 'GB/s'"),
        (Memory, 0, "too small"),
        (Memory, "1e400 GB", "is too large for a size of memory"),
        (Memory, 10**400, "is too large for a size of memory"),
        (Bandwidth, "1 Gbit", "has the unit 'Gbit'"),
        (Bandwidth, "1e-30 B/s", "too small"),
        (Bandwidth, "1e30 B/s", "too large"),
        (Duration, "-1 ms", "is negative"),
        (Duration, "1 m", "has the unit 'm'"),
        (Duration, math.nan, "is no time"),
        (Duration, math.inf, "is no time"),
        (Speed, "50 GB/s", "has the unit 'GB/s'"),
        (Speed, -5, "is negative"),
        (Speed, "", "is no speed"),
        (Speed, "1 2 GFLOP/s", "is no speed"),
    ],
)
def test_what_is_wrong_with_a_value(quantity, value, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        quantity.parse(value)


@given(st.sampled_from(ALL), st.floats(1.0, 1e6) | st.floats(1e-9, 1e6).filter(lambda x: x > 0))
def test_what_is_written_is_read_back_to_the_last_bit(quantity, number):
    number = max(number, quantity.MINIMUM)
    assert quantity.parse(quantity.format(number)) == number


@given(st.sampled_from(ALL), st.text(max_size=12) | st.floats() | st.integers() | st.none())
def test_anything_is_read_or_refused(quantity, value):
    try:
        number = quantity.parse(value)
    except ValueError:
        return
    assert quantity.MINIMUM <= number <= quantity.MAXIMUM


def test_round_numbers_are_written_for_people():
    assert Memory.format(8 << 30) == "8 GiB"
    assert Memory.format(12.64e9) == "12.64 GB"
    assert Bandwidth.format(125e6) == "125 MB/s"
    assert Duration.format(19.33e-6) == "19.33 us"
    assert Speed.format(103.9e9) == "103.9 GFLOP/s"
    assert Duration.format(1 / 3) == 1 / 3
