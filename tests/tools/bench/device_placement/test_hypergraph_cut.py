"""Cuts of graphs and hypergraphs: counted by hand, even, and as small as they are known to be."""

import itertools
import random

import numpy as np
import pytest

from cutset.errors import Infeasible
from cutset.partition.mincut.block_hypergraph import build_hypergraph
from cutset.partition.mincut.kahypar import cut_hypergraph
from cutset.tools.bench.device_placement.graphs.hypergraph import (
    Hypergraph,
    compute_connectivity,
    compute_cut_weight,
    compute_imbalance,
)
from cutset.tools.bench.device_placement.hypergraph_cut import partition_hypergraph


def grid(rows: int, columns: int) -> Hypergraph:
    across = [(r * columns + c, r * columns + c + 1) for r in range(rows) for c in range(columns - 1)]
    down = [(r * columns + c, (r + 1) * columns + c) for r in range(rows - 1) for c in range(columns)]
    count = rows * columns
    nets = (*across, *down)
    return Hypergraph(((1,),) * count, (1,) * count, nets, (1,) * len(nets))


def clusters(count: int, size: int) -> Hypergraph:
    """Clusters in which every three are joined, and a light net over one of each."""
    nets: list[tuple[int, ...]] = []
    for c in range(count):
        nets += list(itertools.combinations(range(c * size, (c + 1) * size), 3))
    weights = [5] * len(nets)
    nets.append(tuple(c * size for c in range(count)))
    return Hypergraph(((1,),) * (count * size), (1,) * (count * size), tuple(nets), (*weights, 1))


def test_measures_counted_by_hand():
    graph = Hypergraph(((1, 4), (2, 0), (1, 0)), (1, 1, 1), ((0, 1, 2), (0, 1), (2,)), (5, 7, 9))
    assert compute_cut_weight(graph, [0, 1, 2]) == 12
    assert compute_connectivity(graph, [0, 1, 2]) == 2 * 5 + 7
    assert compute_cut_weight(graph, [0, 0, 1]) == 5
    assert compute_imbalance(graph, [0, 0, 1], 2) == 2.0
    assert compute_imbalance(graph, [0, 1, 0], 2) == 2.0
    assert not graph.is_graph


def test_a_grid_is_cut_across():
    found = partition_hypergraph(grid(6, 24), 2)
    assert found.cut == found.connectivity == 6
    assert found.imbalance <= 1.03


def test_a_grid_in_four():
    found = partition_hypergraph(grid(12, 12), 4, tolerance=1.001)
    assert found.cut <= 26
    assert found.imbalance == 1.0
    assert found == partition_hypergraph(grid(12, 12), 4, tolerance=1.001)


@pytest.mark.parametrize("count", [2, 4, 5])
def test_clusters_are_kept_whole(count):
    found = partition_hypergraph(clusters(count, 6), count)
    assert found.cut == 1
    assert found.connectivity == count - 1
    assert len(set(found.part_of)) == count


def test_a_wide_net_and_one_of_a_single_pin():
    wide = Hypergraph(((1,),) * 40, (1,) * 40, (tuple(range(40)), (0,), (1, 2)), (3, 9, 100))
    found = partition_hypergraph(wide, 2)
    assert found.cut == 3
    assert found.part_of[1] == found.part_of[2]


@pytest.mark.parametrize("parts", [2, 5, 8])
def test_parts_send_no_more_than_those_of_kahypar_within_the_same_limit(parts):
    drawn = random.Random(parts)
    begins = [drawn.randrange(600) for _ in range(900)]
    nets = tuple(tuple({(at + drawn.randrange(40)) % 600 for _ in range(drawn.randint(2, 6))}) for at in begins)
    graph = Hypergraph(((1,),) * 600, (1,) * 600, nets, tuple(drawn.randint(1, 9) for _ in nets))
    net = np.repeat(np.arange(len(nets)), [len(pins) for pins in nets])
    pin, size = np.array([pin for pins in nets for pin in pins]), np.array(graph.net_weights, dtype=np.float64)
    joined = build_hypergraph(np.ones(600), net, pin, size)
    theirs = cut_hypergraph(joined, lambda loads: np.full(parts, 1.03 * loads.sum() / parts))
    ours = partition_hypergraph(graph, parts)
    assert ours.connectivity <= joined.sent_bytes(theirs) == compute_connectivity(graph, theirs.tolist())
    assert ours.imbalance <= 1.03


def test_one_part_no_nets_no_weights_and_too_many_parts():
    assert partition_hypergraph(grid(2, 2), 1).cut == 0
    weightless = Hypergraph(((0,),) * 6, (1,) * 6, ((0, 1, 2), (3, 4, 5), (2, 3)), (5, 5, 1))
    assert partition_hypergraph(weightless, 2).cut == 1
    loose = Hypergraph(((1,),) * 4, (1,) * 4, (), ())
    assert partition_hypergraph(loose, 2).imbalance == 1.0
    with pytest.raises(Infeasible) as caught:
        partition_hypergraph(grid(1, 3), 4)
    assert caught.value.code == "E401"
