"""METIS through ctypes: the widths it was built with are found, and a build that hides it is said."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pymetis
import pytest

from cutset.partition.mincut.csr_graph import build_csr_graph
from cutset.partition.mincut.metis_ctypes import (
    PROBED,
    MetisLibrary,
    MetisUnavailable,
    _integer_width,
    _is_narrow,
    load_metis,
)


def answering(real: type) -> MetisLibrary:
    """A METIS of that width of reals, that gives part 0 its share of the vertices."""

    def recursive(*arguments: ctypes.c_void_p | None) -> int:
        shares, part_of = arguments[8], arguments[12]
        assert shares is not None
        assert part_of is not None
        kind = ctypes.c_float if real is np.float32 else ctypes.c_double
        first = (kind * 2).from_address(shares.value or 0)
        assert first[0] + first[1] == pytest.approx(1)
        parts = np.ctypeslib.as_array((ctypes.c_int64 * PROBED).from_address(part_of.value or 0))
        parts[:] = np.arange(PROBED) >= first[0] * PROBED
        return 1

    return MetisLibrary(recursive, recursive, lambda options: 1, np.int64, np.float32)


@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_the_width_of_reals_is_found_by_asking(real: type) -> None:
    assert _is_narrow(answering(real)) == (real is np.float32)


@pytest.mark.parametrize("integer", [np.int32, np.int64])
def test_the_width_of_integers_is_found_by_the_default_options(integer: type) -> None:
    def options(room: ctypes.c_void_p) -> int:
        ctypes.memset(room.value or 0, 0xFF, 40 * np.dtype(integer).itemsize)
        return 1

    assert _integer_width(options) is integer


def test_options_of_another_metis_are_refused() -> None:
    with pytest.raises(MetisUnavailable, match="0 bytes"):
        _integer_width(lambda room: 1)


def test_a_build_without_the_functions_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    load_metis.cache_clear()
    monkeypatch.setattr(pymetis, "_internal", SimpleNamespace(__file__=ctypes.__file__))
    with pytest.raises(MetisUnavailable, match="hides METIS"):
        load_metis()
    monkeypatch.undo()
    assert load_metis().real in (np.float32, np.float64)


@pytest.mark.parametrize("kway", [False, True])
def test_two_constraints_are_balanced_each(kway: bool) -> None:
    count = 200
    line = build_csr_graph(np.ones(count), np.arange(count - 1), np.arange(1, count), np.ones(count - 1))
    weights = np.stack([np.arange(count) < 100, np.arange(count) >= 100], axis=1).astype(np.int64)
    shares = np.full((2, 2), 0.5)
    part_of = load_metis().partition(
        line, weights, np.ones_like(line.ends), shares, tolerances=np.full(2, 1.01), seed=0, kway=kway
    )
    assert abs(int((part_of[:100] == 0).sum()) - 50) <= 2
    assert abs(int((part_of[100:] == 0).sum()) - 50) <= 2
