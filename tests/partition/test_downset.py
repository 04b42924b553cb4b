"""Downsets: all of them, each once, and none more; orders that obey the edges."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_graphs import chain, random_graph

from cutset.tools.bench.device_placement.downset import all_downsets, linear_orders, prefixes, united
from cutset.tools.bench.device_placement.layer_graph import Layer, LayerGraph
from cutset.tools.bench.device_placement.layer_groups import grouped, without_cycles


def as_sets(rows):
    return [frozenset(np.flatnonzero(row).tolist()) for row in rows]


@given(seed=st.integers(0, 10**6))
def test_all_downsets_are_all_and_each_once(seed):
    groups = without_cycles(grouped(random_graph(seed, 7)))
    every = (
        frozenset(some)
        for size in range(groups.count + 1)
        for some in itertools.combinations(range(groups.count), size)
    )
    expected = [some for some in every if all(a in some for a, b in groups.order if b in some)]
    found = as_sets(all_downsets(groups, at_most=1000))
    assert len(found) == len(expected)
    assert set(found) == set(expected)
    assert [len(some) for some in found] == sorted(map(len, found))


def test_counts_known_by_hand():
    assert len(all_downsets(grouped(chain(*[1.0] * 9)), at_most=100)) == 10
    loose = grouped(LayerGraph(tuple(Layer(str(i), 1.0) for i in range(5)), (), 2))
    assert len(all_downsets(loose, at_most=32)) == 32
    assert all_downsets(loose, at_most=31) is None


@given(seed=st.integers(0, 10**6))
def test_orders_obey_the_edges_and_pass_through_downsets(seed):
    groups = without_cycles(grouped(random_graph(seed, 9)))
    every = set(as_sets(all_downsets(groups, at_most=1000)))
    orders = linear_orders(groups, seed=seed, count=3)
    for order in orders:
        assert sorted(order) == list(range(groups.count))
        assert set(as_sets(prefixes(order, groups.count))) <= every
    assert orders == linear_orders(groups, seed=seed, count=3)
    together = as_sets(united([prefixes(order, groups.count) for order in orders]))
    assert len(together) == len(set(together))


@pytest.mark.parametrize("count", [1, 8, 9])
def test_rows_of_any_width_are_told_apart(count):
    rows = prefixes(range(count), count)
    assert len(united([rows, rows])) == count + 1
