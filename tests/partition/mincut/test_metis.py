"""METIS behind its guards: whatever goes in, a partition without empty parts comes out, the same every time."""

import json
import subprocess
import sys
from collections.abc import Sequence

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weighted_graphs import transformer, weighted

from cutset.errors import Infeasible
from cutset.partition.dataflow.cut import Cut, fuse_boxes
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.mincut import metis as metis_module
from cutset.partition.mincut.balance import part_capacity, part_loads
from cutset.partition.mincut.block_graph import boxes_by_operator, build_block_graph, level_groups
from cutset.partition.mincut.blocks import split_into_blocks
from cutset.partition.mincut.csr_graph import CsrGraph, build_csr_graph
from cutset.partition.mincut.cut_axes import CutAxes, paired_axes
from cutset.partition.mincut.metis import partition_metis, partition_metis_levels
from cutset.partition.mincut.metis_ctypes import MetisUnavailable


def used(parts: Sequence[int]) -> set[int]:
    return set(parts)


@pytest.mark.parametrize("count", [2, 3, 5, 9, 12])
def test_a_small_dense_graph_has_no_empty_part(count: int) -> None:
    assert used(partition_metis(weighted(nx.complete_graph(12)), count, seed=0)) == set(range(count))


def test_two_clusters_with_a_thin_bridge_are_cut_at_the_bridge() -> None:
    graph = nx.barbell_graph(8, 0)
    graph.edges[7, 8]["bytes"] = 1
    parts = partition_metis(weighted(graph, size=1000), 2, seed=0)
    assert len(used(parts[:8])) == len(used(parts[8:])) == 1
    assert used(parts) == {0, 1}


def test_a_dominant_vertex_does_not_swallow_the_rest() -> None:
    graph = weighted(nx.path_graph(20), {3: 1e15})
    assert used(partition_metis(graph, 4, seed=0)) == {0, 1, 2, 3}


def test_huge_weights_do_not_overflow() -> None:
    graph = weighted(nx.path_graph(50), flops=2.0**80, size=2**62)
    assert used(partition_metis(graph, 3, seed=0)) == {0, 1, 2}


def test_a_graph_without_edges_or_work_is_divided_all_the_same() -> None:
    assert used(partition_metis(weighted(nx.empty_graph(7), flops=0.0), 3, seed=0)) == {0, 1, 2}


def test_a_disconnected_graph_is_divided() -> None:
    assert used(partition_metis(weighted(nx.disjoint_union(nx.path_graph(6), nx.path_graph(6))), 4, seed=0)) == {
        0,
        1,
        2,
        3,
    }


def test_one_vertex_a_part() -> None:
    assert sorted(partition_metis(weighted(nx.path_graph(5)), 5, seed=0)) == [0, 1, 2, 3, 4]


def test_one_part_is_all() -> None:
    assert partition_metis(weighted(nx.path_graph(3)), 1, seed=0) == [0, 0, 0]


def test_too_few_vertices_is_said_with_what_is_possible() -> None:
    with pytest.raises(Infeasible, match="4 parts of a graph of 3 blocks") as error:
        partition_metis(weighted(nx.path_graph(3)), 4, seed=0)
    assert "--machines 3" in error.value.fix


def test_shares_are_followed() -> None:
    parts = partition_metis(weighted(nx.path_graph(100)), 2, seed=0, shares=[0.8, 0.2])
    assert 75 <= parts.count(0) <= 85


def test_the_same_seed_gives_the_same_parts() -> None:
    graph = weighted(nx.random_regular_graph(4, 60, seed=1))
    assert partition_metis(graph, 4, seed=5) == partition_metis(graph, 4, seed=5)


def test_metis_prints_nothing() -> None:
    code = (
        "import numpy as np\n"
        "from cutset.partition.mincut.csr_graph import build_csr_graph\n"
        "from cutset.partition.mincut.metis import partition_metis, partition_metis_levels\n"
        "work = np.where(np.arange(40) % 13 == 0, 1e9, 1.0)\n"
        "graph = build_csr_graph(work, np.arange(39), np.arange(1, 40), np.full(39, 10.0))\n"
        "assert set(partition_metis(graph, 30, seed=0)) == set(range(30))\n"
        "assert set(partition_metis_levels(graph, 30, level_of=list(range(40)), seed=0)) == set(range(30))\n"
        "star = build_csr_graph(np.ones(500), np.zeros(499, dtype=int), np.arange(1, 500), np.full(499, 1e18))\n"
        "assert set(partition_metis(star, 8, seed=0)) == set(range(8))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "")


# Any graph ---------------------------------------------------------------------------------------------------------


@st.composite
def questions(draw: st.DrawFn) -> tuple[CsrGraph, int, list[int], list[float] | None]:
    """A graph, parts, levels and shares: disconnected and dense, without work, dominated, with weights near 2^62."""
    count = draw(st.integers(1, 40))
    parts = draw(st.integers(1, min(count, 7)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    edges = draw(st.integers(0, 4 * count))
    flops = random.choice(
        [0.0, 1.0, 3e5, 2.0**62], count, p=draw(st.sampled_from([(0, 1, 0, 0), (0.3, 0.3, 0.3, 0.1)]))
    )
    anchor = np.where(random.random(count) < draw(st.sampled_from([0.0, 0.3])), 0, np.arange(count))
    ends = random.integers(0, count, (2, edges))
    graph = build_csr_graph(flops, ends[0], ends[1], random.choice([1.0, 1e6, 2.0**62], edges), anchor)
    shares = (random.random(parts) + 0.1).tolist() if draw(st.booleans()) else None
    return graph, parts, random.integers(-1, draw(st.integers(1, 12)), count).tolist(), shares


@settings(max_examples=60, deadline=None)
@given(questions())
def test_whatever_goes_in_no_part_is_empty_and_homes_stay_together(problem: tuple) -> None:
    graph, parts, levels, shares = problem
    together = len(np.unique(graph.anchor)) >= parts
    answers = (
        partition_metis(graph, parts, seed=0, shares=shares),
        partition_metis_levels(graph, parts, level_of=levels, seed=0, shares=shares),
    )
    for part_of in answers:
        assert used(part_of) == set(range(parts))
        assert not together or all(part_of[v] == part_of[anchor] for v, anchor in enumerate(graph.anchor))


@pytest.mark.parametrize("parts", [2, 4, 7])
def test_the_cut_is_no_worse_than_that_of_numbering_the_vertices_through(parts: int) -> None:
    grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(14, 14), ordering="sorted")
    graph = weighted(grid)
    in_order = [v * parts // 196 for v in range(196)]
    assert graph.cut_bytes(partition_metis(graph, parts, seed=0)) <= graph.cut_bytes(in_order)


def test_a_large_graph_goes_to_k_way_as_well() -> None:
    grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(20, 20), ordering="sorted")
    parts = np.array(partition_metis(weighted(grid), 4, seed=0))
    assert weighted(grid).cut_bytes(parts) <= 44 * 10  # two straight cuts are 40 edges
    assert np.bincount(parts).max() <= 105


# Levels ------------------------------------------------------------------------------------------------------------


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("machines", [2, 4, 8])
def test_a_transformer_layer_comes_out_as_megatron_cuts_it(machines: int) -> None:
    width, tokens = 128, 256
    graph = transformer(1, width=width, heads=16, tokens=tokens)
    found = split_into_blocks(graph, CutAxes("pairs", paired_axes(graph), 16, reductions=True))
    groups = level_groups(graph)
    levels = [groups[block.op] for block in found]
    machine_of = partition_metis_levels(build_block_graph(found), machines, level_of=levels, seed=0)
    loads = np.zeros((machines, max(levels) + 1))
    for block, level, machine in zip(found, levels, machine_of, strict=True):
        loads[machine, level] += block.flops if level >= 0 else 0
    assert (loads.max(axis=0) == loads.min(axis=0))[:5].all()
    spelled = lower_cut(graph, Cut(machines, fuse_boxes(machines, boxes_by_operator(found, machine_of))))
    activations = sum(edge.bytes for edge in spelled.edges)
    all_reduces = 4 * (machines - 1) * tokens * width * 4
    assert activations == pytest.approx(all_reduces, rel=1e-3)  # beside them, the parts of the mean


@pytest.mark.slow
def test_many_layers_are_even_level_by_level() -> None:
    graph = transformer(4, width=32, heads=8, tokens=32)
    found = split_into_blocks(graph, CutAxes("pairs", paired_axes(graph), 8, reductions=True))
    groups = level_groups(graph)
    levels = np.array([groups[block.op] for block in found])
    part_of = np.array(partition_metis_levels(build_block_graph(found), 4, level_of=levels.tolist(), seed=0))
    assert levels.max() == 20
    for level in range(20):
        work = np.bincount(part_of[levels == level], weights=found.flops[levels == level], minlength=4)
        assert work.max() <= 1.05 * work.mean()


def test_levels_are_balanced_with_unequal_shares() -> None:
    graph = weighted(nx.disjoint_union(nx.complete_graph(40), nx.complete_graph(40)))
    levels = [0] * 40 + [1] * 40
    part_of = np.array(partition_metis_levels(graph, 2, level_of=levels, seed=0, shares=[0.75, 0.25]))
    assert 29 <= (part_of[:40] == 0).sum() <= 31
    assert 29 <= (part_of[40:] == 0).sum() <= 31


def test_more_levels_than_metis_is_given_are_merged() -> None:
    graph = weighted(nx.path_graph(600))
    part_of = partition_metis_levels(graph, 2, level_of=list(range(600)), seed=0)
    load = part_loads(graph.flops[:, None], np.array(part_of), 2)
    assert (load <= part_capacity(graph.flops[:, None], np.array([0.5, 0.5]))).all()


# How METIS is reached ----------------------------------------------------------------------------------------------


def hidden() -> None:
    raise MetisUnavailable("out of sight")


def test_without_metis_own_functions_pymetis_serves_one_constraint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metis_module, "load_metis", hidden)
    graph = weighted(nx.path_graph(400), {3: 5.0})
    part_of = partition_metis(graph, 4, seed=0)
    assert used(part_of) == {0, 1, 2, 3}
    assert graph.cut_bytes(part_of) <= 6 * 10
    with pytest.raises(MetisUnavailable, match="out of sight"):
        partition_metis_levels(graph, 4, level_of=[0] * 400, seed=0)


def test_other_processes_find_the_same() -> None:
    code = (
        "import json, networkx as nx, numpy as np\n"
        "from cutset.partition.mincut.csr_graph import build_csr_graph\n"
        "from cutset.partition.mincut.metis import partition_metis, partition_metis_levels\n"
        "ends = np.array(nx.random_regular_graph(4, 60, seed=1).edges)\n"
        "graph = build_csr_graph(np.arange(60.0), ends[:, 0], ends[:, 1], np.arange(1.0, 121))\n"
        "levels = [v % 3 for v in range(60)]\n"
        "by_level = partition_metis_levels(graph, 4, level_of=levels, seed=5)\n"
        "print(json.dumps([partition_metis(graph, 4, seed=5), by_level]))\n"
    )
    ends = np.array(nx.random_regular_graph(4, 60, seed=1).edges)
    graph = build_csr_graph(np.arange(60.0), ends[:, 0], ends[:, 1], np.arange(1.0, 121))
    here = [
        partition_metis(graph, 4, seed=5),
        partition_metis_levels(graph, 4, level_of=[v % 3 for v in range(60)], seed=5),
    ]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == here
