"""Every element in exactly one slice, whatever the machines and shards."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.errors import UsageError
from cutset.ps.slices.slicing import Slice, layout, of_machine, of_shard, spans
from cutset.runtime.worker.flat_gradient import Table

SIZES = st.lists(st.integers(0, 200), max_size=6)


@given(SIZES, st.integers(1, 9), st.integers(1, 32))
def test_every_element_is_in_exactly_one_slice(sizes, shards, align):
    slices = layout(sizes, shards, align=align)
    for machine, size in enumerate(sizes):
        pieces = of_machine(slices, machine)
        bounds = [0, *(piece.stop for piece in pieces)]
        assert [piece.start for piece in pieces] == bounds[:-1]
        assert bounds[-1] == size
    assert all(piece.size > 0 for piece in slices)
    assert all(0 <= piece.shard < shards for piece in slices)


@given(SIZES, st.integers(1, 9), st.integers(1, 32))
def test_shards_hold_contiguous_aligned_and_nearly_equal_ranges(sizes, shards, align):
    slices = layout(sizes, shards, align=align)
    begins = [sum(sizes[:machine]) for machine in range(len(sizes))]
    assert slices == sorted(slices)
    assert all(
        before.shard <= after.shard for before, after in pairwise(sorted(slices, key=lambda s: (s.machine, s.start)))
    )
    assert all(s.start % align == 0 and (s.stop % align == 0 or s.stop == sizes[s.machine]) for s in slices)
    for shard in range(shards):
        held = of_shard(slices, shard)
        assert abs(sum(piece.size for piece in held) - sum(sizes) / shards) < align + 1
        spans = sorted((begins[s.machine] + s.start, begins[s.machine] + s.stop) for s in held)
        assert all(stop == start for (_, stop), (start, _) in pairwise(spans))
        assert len({piece.machine for piece in held}) == len(held)


def test_an_example():
    assert layout([100, 60], 2) == [Slice(0, 0, 0, 80, 0), Slice(1, 0, 80, 100, 1), Slice(1, 1, 0, 60, 2)]


def test_more_shards_than_elements_leaves_some_empty():
    slices = layout([3], 8, align=1)
    assert sorted(piece.size for piece in slices) == [1, 1, 1]
    assert layout([], 2) == layout([0, 0], 3) == []


@pytest.mark.parametrize("call", [lambda: layout([4], 0), lambda: layout([4, -1], 1), lambda: layout([4], 1, align=0)])
def test_impossible_layouts_are_usage_errors(call):
    with pytest.raises(UsageError):
        call()


@given(SIZES, st.integers(1, 5), st.integers(1, 16), st.integers(1, 64))
def test_slices_are_small_nearly_equal_and_numbered_in_order(sizes, shards, align, most):
    slices = layout(sizes, shards, align=align, most=most)
    assert [piece.number for piece in slices] == list(range(len(slices)))
    assert slices == sorted(slices)
    assert all(piece.size <= max(most, align) for piece in slices)
    coarse = layout(sizes, shards, align=align)
    for whole in coarse:
        inside = [s for s in slices if (s.shard, s.machine) == (whole.shard, whole.machine)]
        assert [s.start for s in inside] + [whole.stop] == [whole.start, *(s.stop for s in inside)]
        assert max(s.size for s in inside[:-1] or inside) - min(s.size for s in inside[:-1] or inside) == 0


@given(st.lists(st.integers(min_value=0, max_value=300), min_size=1, max_size=6), st.integers(min_value=1, max_value=8))
def test_whole_machines_lie_on_one_shard(sizes, shards):
    slices = layout(sizes, shards, most=32, whole=True)
    for machine, size in enumerate(sizes):
        of_it = of_machine(slices, machine)
        assert len({piece.shard for piece in of_it}) == (size > 0)
        assert sum(piece.size for piece in of_it) == size
    if all(sizes):
        held = {piece.shard: {one.machine for one in slices if one.shard == piece.shard} for piece in slices}
        assert max(map(len, held.values())) - min(map(len, held.values())) <= 1


def test_numbers_in_words():
    assert spans([7, 0, 1, 2, 9, 8]) == "0-2, 7-9"
    assert spans([4]) == "4"
    assert spans([]) == "none"


def test_a_cut_inside_a_table_falls_between_two_rows():
    tables = [[Table(7, 307, 3), Table(307, 1307, 100)], [], [Table(0, 50, 5)]]
    sizes = [1400, 64, 50]
    for shards in range(1, 7):
        slices = layout(sizes, shards, tables=tables, most=128, table_most=250)
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


def test_a_row_that_is_wider_than_a_slice_is_one():
    slices = layout([3000], 2, tables=[[Table(0, 3000, 1000)]], most=128, table_most=256)
    assert [(piece.start, piece.stop) for piece in slices] == [(0, 1000), (1000, 2000), (2000, 3000)]


def test_without_tables_nothing_changes():
    assert layout([100, 0, 300], 3, tables=[[], [], []]) == layout([100, 0, 300], 3)
