"""Annealing keeps its books, heeds memory and devices, and gives the same for the same seed."""

import numpy as np
import pytest
from layer_graphs import random_graph

from cutset.tools.bench.device_placement import annealing
from cutset.tools.bench.device_placement.annealing import anneal
from cutset.tools.bench.device_placement.graphs.layer_graph import Layer, LayerGraph
from cutset.tools.bench.device_placement.layer_groups import group_layers


@pytest.mark.parametrize("seed", range(4))
def test_loads_kept_by_changes_are_the_loads_counted_afresh(seed):
    groups = group_layers(random_graph(seed, 14, accelerators=3, cpus=2))
    search = annealing._AnnealingState(groups, [groups.accelerators] * groups.count, 10.0)
    search.batch(np.random.default_rng(seed), 1e6)
    assert search.load == pytest.approx(groups.loads(search.device_of))
    assert groups.fits(search.best)


def test_full_accelerators_swap_what_they_hold():
    layers = tuple(Layer(str(i), time, size_bytes=1.0) for i, time in enumerate((4.0, 4.0, 1.0, 1.0)))
    groups = group_layers(LayerGraph(layers, (), 2, memory_bytes=2.0))
    best = anneal(groups, [0, 0, 1, 1], seed=0, steps=40_000, scale=5.0, hot=1.0, cold=0.1)
    assert groups.loads(best) == [5.0, 5.0]
    assert groups.fits(best)


def test_the_same_seed_gives_the_same_and_never_worse_than_the_start():
    groups = group_layers(random_graph(3, 20, accelerators=3, cpus=1))
    start = [groups.accelerators] * groups.count
    once = anneal(groups, start, seed=7, steps=60_000, scale=10.0, hot=1.0, cold=0.01)
    assert once == anneal(groups, start, seed=7, steps=60_000, scale=10.0, hot=1.0, cold=0.01)
    assert max(groups.loads(once)) < max(groups.loads(start))


def test_times_of_any_size_do_not_overflow():
    layers = (Layer("a", 1e-300, 1e300), Layer("b", 1.0, 1e299), Layer("c", 1e300, 1e-300))
    groups = group_layers(LayerGraph(layers, ((0, 1), (1, 2)), 2, 1))
    best = anneal(groups, [0, 0, 0], seed=0, steps=40_000, scale=1e-9, hot=1.0, cold=0.1)
    assert max(groups.loads(best)) <= 2.0


def test_it_stops_when_told():
    groups = group_layers(random_graph(1, 10))
    start = [groups.accelerators] * groups.count
    assert anneal(groups, start, seed=0, steps=10**9, scale=1.0, hot=1.0, cold=0.1, stop=lambda: True) == start
