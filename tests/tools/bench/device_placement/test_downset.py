"""Downsets: all of them, each once, and none more; orders that obey the edges."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_graphs import chain, random_graph

from cutset.tools.bench.device_placement.downset import generate_orders, list_downsets, list_prefixes, unite_downsets
from cutset.tools.bench.device_placement.graphs.layer_graph import Layer, LayerGraph
from cutset.tools.bench.device_placement.layer_groups import group_layers, merge_cycles


def as_sets(rows):
    return [frozenset(np.flatnonzero(row).tolist()) for row in rows]


@given(seed=st.integers(0, 10**6))
def test_all_downsets_are_all_and_each_once(seed):
    groups = merge_cycles(group_layers(random_graph(seed, 7)))
    every = (
        frozenset(some)
        for size in range(groups.count + 1)
        for some in itertools.combinations(range(groups.count), size)
    )
    expected = [some for some in every if all(a in some for a, b in groups.order if b in some)]
    found = as_sets(list_downsets(groups, limit=1000))
    assert len(found) == len(expected)
    assert set(found) == set(expected)
    assert [len(some) for some in found] == sorted(map(len, found))


def test_counts_known_by_hand():
    assert len(list_downsets(group_layers(chain(*[1.0] * 9)), limit=100)) == 10
    loose = group_layers(LayerGraph(tuple(Layer(str(i), 1.0) for i in range(5)), (), 2))
    assert len(list_downsets(loose, limit=32)) == 32
    assert list_downsets(loose, limit=31) is None


@given(seed=st.integers(0, 10**6))
def test_orders_obey_the_edges_and_pass_through_downsets(seed):
    groups = merge_cycles(group_layers(random_graph(seed, 9)))
    every = set(as_sets(list_downsets(groups, limit=1000)))
    orders = generate_orders(groups, seed=seed, count=3)
    for order in orders:
        assert sorted(order) == list(range(groups.count))
        assert set(as_sets(list_prefixes(order, groups.count))) <= every
    assert orders == generate_orders(groups, seed=seed, count=3)
    together = as_sets(unite_downsets([list_prefixes(order, groups.count) for order in orders]))
    assert len(together) == len(set(together))


@pytest.mark.parametrize("count", [1, 8, 9])
def test_rows_of_any_width_are_told_apart(count):
    rows = list_prefixes(range(count), count)
    assert len(unite_downsets([rows, rows])) == count + 1
