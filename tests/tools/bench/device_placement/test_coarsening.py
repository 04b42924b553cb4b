"""Coarser groups: fewer from level to level, of the same layers, apart where they are to be."""

import itertools

import numpy as np
import pytest
from layer_graphs import chain, random_graph

from cutset.tools.bench.device_placement.coarsening import coarsen, project_values
from cutset.tools.bench.device_placement.layer_groups import group_layers


@pytest.mark.parametrize("seed", range(5))
def test_levels_shrink_and_keep_time_and_sides(seed):
    groups = group_layers(random_graph(seed, 40, cpus=1))
    sides = [group % 2 for group in range(groups.count)]
    levels = coarsen(groups, np.random.default_rng(seed), min_count=5, largest=30.0, apart=sides)
    assert len(levels) > 1
    for fine, coarse in itertools.pairwise(levels):
        assert coarse.count < fine.count
        assert sum(coarse.time) == pytest.approx(sum(groups.time))
        assert max(coarse.time) <= max(30.0, *groups.time)
        back = project_values(coarse, groups, project_values(groups, coarse, sides))
        assert back == sides


def test_a_placement_of_a_coarse_level_has_the_same_loads_on_the_fine_one():
    groups = group_layers(random_graph(2, 30, accelerators=3))
    coarse = coarsen(groups, np.random.default_rng(0), min_count=4, largest=1e9)[-1]
    device_of = [i % 3 for i in range(coarse.count)]
    assert groups.loads(project_values(coarse, groups, device_of)) == pytest.approx(coarse.loads(device_of))


def test_nothing_larger_than_allowed_is_made():
    groups = group_layers(chain(*[1.0] * 16, output_time=1.0))
    levels = coarsen(groups, np.random.default_rng(0), min_count=1, largest=2.0)
    assert max(levels[-1].time) == 2.0
    assert levels[-1].count >= 8
