"""Cutting a line: as good as trying every cut, for nets of any number of pins."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_graphs import chain, random_graph

from cutset.tools.bench.device_placement import linear_partition as line_split
from cutset.tools.bench.device_placement.downset import generate_orders, list_prefixes
from cutset.tools.bench.device_placement.downset_chain import find_best_chain
from cutset.tools.bench.device_placement.layer_groups import group_layers, merge_cycles
from cutset.tools.bench.device_placement.linear_partition import split_order


@pytest.mark.run
@given(seed=st.integers(0, 10**6), training=st.booleans(), cpus=st.integers(0, 1))
def test_as_good_as_the_chain_of_its_prefixes(seed, training, cpus):
    groups = merge_cycles(group_layers(random_graph(seed, 9, accelerators=2, cpus=cpus, training=training)))
    for order in generate_orders(groups, seed=0, count=1):
        expected = find_best_chain(groups, list_prefixes(order, groups.count), 1e9).device_of
        found = split_order(groups, order)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert groups.fits(found)
            assert max(groups.loads(found)) == pytest.approx(max(groups.loads(expected)))


@given(times=st.lists(st.integers(0, 9), min_size=3, max_size=9), cost=st.integers(0, 4))
def test_a_chain_as_by_trying_every_cut(times, cost):
    graph = chain(*map(float, times), output_time=float(cost), accelerators=3)
    groups = group_layers(graph)
    count = len(times)
    every = (
        [(place >= a) + (place >= b) for place in range(count)]
        for a, b in itertools.combinations_with_replacement(range(count + 1), 2)
    )
    found = split_order(groups, range(count))
    assert found is not None
    assert max(groups.loads(found)) == min(max(groups.loads(device_of)) for device_of in every)


def test_a_long_line_is_cut_at_its_cheapest_places(monkeypatch):
    monkeypatch.setattr(line_split, "MIN_CUTS", 10)
    monkeypatch.setattr(line_split, "MAX_CUTS", 10)
    groups = group_layers(chain(*[1.0] * 95, accelerators=3))
    found = split_order(groups, range(95))
    assert found is not None
    assert found == sorted(found)
    assert 32 <= max(groups.loads(found)) <= 42
