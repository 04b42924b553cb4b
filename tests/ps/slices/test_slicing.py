"""Every element in exactly one slice, whatever the machines and shards."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.errors import UsageError
from cutset.ps.slices.slicing import (
    ParameterSlice,
    count_shards,
    format_ranges,
    slice_parameters,
    slices_of_machine,
    slices_of_shard,
)
from cutset.runtime.worker.flat_gradient import SparseTable

SIZES = st.lists(st.integers(0, 200), max_size=6)


@given(SIZES, st.integers(1, 9), st.integers(1, 32))
def test_every_element_is_in_exactly_one_slice(sizes, shards, align):
    slices = slice_parameters(sizes, shards, align=align)
    for machine, size in enumerate(sizes):
        pieces = slices_of_machine(slices, machine)
        bounds = [0, *(piece.stop for piece in pieces)]
        assert [piece.start for piece in pieces] == bounds[:-1]
        assert bounds[-1] == size
    assert all(piece.size > 0 for piece in slices)
    assert all(0 <= piece.shard < shards for piece in slices)


@given(SIZES, st.integers(1, 9), st.integers(1, 32))
def test_shards_hold_contiguous_aligned_and_nearly_equal_ranges(sizes, shards, align):
    slices = slice_parameters(sizes, shards, align=align)
    begins = [sum(sizes[:machine]) for machine in range(len(sizes))]
    assert slices == sorted(slices)
    assert all(
        before.shard <= after.shard for before, after in pairwise(sorted(slices, key=lambda s: (s.machine, s.start)))
    )
    assert all(s.start % align == 0 and (s.stop % align == 0 or s.stop == sizes[s.machine]) for s in slices)
    for shard in range(shards):
        held = slices_of_shard(slices, shard)
        assert abs(sum(piece.size for piece in held) - sum(sizes) / shards) < align + 1
        ranges = sorted((begins[s.machine] + s.start, begins[s.machine] + s.stop) for s in held)
        assert all(stop == start for (_, stop), (start, _) in pairwise(ranges))
        assert len({piece.machine for piece in held}) == len(held)


def test_an_example():
    assert slice_parameters([100, 60], 2) == [
        ParameterSlice(0, 0, 0, 80, 0),
        ParameterSlice(1, 0, 80, 100, 1),
        ParameterSlice(1, 1, 0, 60, 2),
    ]


def test_more_shards_than_elements_makes_fewer_shards():
    slices = slice_parameters([3], 8, align=1)
    assert sorted(piece.size for piece in slices) == [1, 1, 1]
    assert slice_parameters([], 2) == slice_parameters([0, 0], 3) == []


@given(SIZES, st.integers(1, 40), st.integers(1, 32), st.booleans())
def test_no_shard_is_empty(sizes, shards, align, whole):
    slices = slice_parameters(sizes, shards, align=align, whole=whole)
    assert {piece.shard for piece in slices} == set(range(count_shards(slices) if slices else 0))


@pytest.mark.parametrize(
    "call",
    [lambda: slice_parameters([4], 0), lambda: slice_parameters([4, -1], 1), lambda: slice_parameters([4], 1, align=0)],
)
def test_impossible_slices_are_usage_errors(call):
    with pytest.raises(UsageError):
        call()


@given(SIZES, st.integers(1, 5), st.integers(1, 16), st.integers(1, 64))
def test_slices_are_small_nearly_equal_and_numbered_in_order(sizes, shards, align, most):
    slices = slice_parameters(sizes, shards, align=align, max_elements=most)
    assert [piece.number for piece in slices] == list(range(len(slices)))
    assert slices == sorted(slices)
    assert all(piece.size <= max(most, align) for piece in slices)
    coarse = slice_parameters(sizes, shards, align=align)
    for whole in coarse:
        inside = [s for s in slices if (s.shard, s.machine) == (whole.shard, whole.machine)]
        assert [s.start for s in inside] + [whole.stop] == [whole.start, *(s.stop for s in inside)]
        assert max(s.size for s in inside[:-1] or inside) - min(s.size for s in inside[:-1] or inside) == 0


@given(st.lists(st.integers(min_value=0, max_value=300), min_size=1, max_size=6), st.integers(min_value=1, max_value=8))
def test_whole_machines_lie_on_one_shard(sizes, shards):
    slices = slice_parameters(sizes, shards, max_elements=32, whole=True)
    for machine, size in enumerate(sizes):
        of_it = slices_of_machine(slices, machine)
        assert len({piece.shard for piece in of_it}) == (size > 0)
        assert sum(piece.size for piece in of_it) == size
    if all(sizes):
        held = {piece.shard: {one.machine for one in slices if one.shard == piece.shard} for piece in slices}
        assert max(map(len, held.values())) - min(map(len, held.values())) <= 1


def test_ranges_are_formatted():
    assert format_ranges([7, 0, 1, 2, 9, 8]) == "0-2, 7-9"
    assert format_ranges([4]) == "4"
    assert format_ranges([]) == "none"


def test_a_cut_inside_a_table_falls_between_two_rows():
    tables = [[SparseTable(7, 307, 3), SparseTable(307, 1307, 100)], [], [SparseTable(0, 50, 5)]]
    sizes = [1400, 64, 50]
    for shards in range(1, 7):
        slices = slice_parameters(sizes, shards, tables=tables, max_elements=128, max_table_elements=250)
        covered = [(p.machine, e) for p in slices for e in range(p.start, p.stop)]
        assert sorted(covered) == [(m, e) for m, size in enumerate(sizes) for e in range(size)]
        assert [p.number for p in slices] == list(range(len(slices)))
        for piece in slices:
            inside = [t for t in tables[piece.machine] if t.start < piece.stop and piece.start < t.stop]
            if not inside:
                assert piece.width == piece.rows == 0
                continue
            (table,) = inside
            assert table.start <= piece.start < piece.stop <= table.stop
            assert piece.width == table.width
            assert (piece.start - table.start) % table.width == 0
            assert piece.size == piece.rows * piece.width <= 250


def test_a_row_wider_than_a_slice_is_a_slice():
    slices = slice_parameters(
        [3000], 2, tables=[[SparseTable(0, 3000, 1000)]], max_elements=128, max_table_elements=256
    )
    assert [(piece.start, piece.stop) for piece in slices] == [(0, 1000), (1000, 2000), (2000, 3000)]


def test_without_tables_nothing_changes():
    assert slice_parameters([100, 0, 300], 3, tables=[[], [], []]) == slice_parameters([100, 0, 300], 3)
