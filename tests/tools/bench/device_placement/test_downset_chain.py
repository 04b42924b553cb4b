"""The best chain of downsets: as good as the best of every contiguous placement, and never better."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_graphs import chain, is_contiguous, least_load, random_graph

from cutset.tools.bench.device_placement.downset import list_downsets, list_prefixes
from cutset.tools.bench.device_placement.downset_chain import find_best_chain
from cutset.tools.bench.device_placement.layer_groups import group_layers, merge_cycles


@pytest.mark.slow
@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), accelerators=st.integers(1, 2), cpus=st.integers(0, 2), training=st.booleans())
def test_as_good_as_the_best_of_all(seed, accelerators, cpus, training):
    graph = random_graph(seed, 6, accelerators=accelerators, cpus=cpus, training=training)
    groups = merge_cycles(group_layers(graph))
    found = find_best_chain(groups, list_downsets(groups, limit=1000), 1e6)
    expected = least_load(graph, contiguous=True)
    assert found.complete
    if found.device_of is None:
        assert math.isinf(expected)
        return
    of_layer = tuple(found.device_of[group] for group in groups.group_of)
    assert is_contiguous(graph, of_layer)
    assert groups.fits(found.device_of)
    assert max(groups.loads(found.device_of)) == pytest.approx(expected)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), excess=st.sampled_from([0.01, 0.5, 3.0]))
def test_a_bound_near_the_best_hides_nothing(seed, excess):
    graph = random_graph(seed, 7, accelerators=3, cpus=1)
    groups = merge_cycles(group_layers(graph))
    family = list_downsets(groups, limit=1000)
    best = find_best_chain(groups, family, 1e6).device_of
    if best is None:
        return
    least = max(groups.loads(best))
    near = find_best_chain(groups, family, least + excess).device_of
    assert near is not None
    assert max(groups.loads(near)) == pytest.approx(least)
    assert find_best_chain(groups, family, least).device_of is None


def test_what_crosses_counts_as_a_load_of_its_own():
    groups = group_layers(chain(1.0, 1.0, 1.0, 1.0))
    family = list_prefixes(range(4), 4)
    crossing = np.array([0.0, 9.0, 9.0, 2.5, 0.0])
    found = find_best_chain(groups, family, 100.0, crossing=crossing).device_of
    assert found == [0, 0, 0, 1]
    assert find_best_chain(groups, family, 3.0, crossing=crossing).device_of is None


def test_it_gives_up_when_told_to():
    groups = group_layers(chain(*[1.0] * 20))
    family = list_downsets(groups, limit=100)
    assert not find_best_chain(groups, family, 1e6, effort=10.0).complete
    given_up = find_best_chain(groups, family, 1e6, stop=lambda: True)
    assert given_up.device_of is None
    assert not given_up.complete
