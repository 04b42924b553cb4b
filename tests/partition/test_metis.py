"""METIS behind its guards: whatever goes in, a partition without empty parts comes out, the same every time."""

import subprocess
import sys

import networkx as nx
import pytest

from cutset.partition.errors import Infeasible
from cutset.partition.metis import metis, repair


def weighted(graph: nx.Graph, flops: float = 1.0, size: int = 10) -> nx.Graph:
    nx.set_node_attributes(graph, flops, "flops")
    nx.set_edge_attributes(graph, size, "bytes")
    return graph


def used(parts: list[int]) -> set[int]:
    return set(parts)


@pytest.mark.parametrize("count", [2, 3, 5, 9, 12])
def test_a_small_dense_graph_has_no_empty_part(count: int) -> None:
    assert used(metis(weighted(nx.complete_graph(12)), count, seed=0)) == set(range(count))


def test_two_clusters_with_a_thin_bridge_are_cut_at_the_bridge() -> None:
    graph = weighted(nx.barbell_graph(8, 0), size=1000)
    graph.edges[7, 8]["bytes"] = 1
    parts = metis(graph, 2, seed=0)
    assert len(used(parts[:8])) == len(used(parts[8:])) == 1
    assert used(parts) == {0, 1}


def test_a_dominant_vertex_does_not_swallow_the_rest() -> None:
    graph = weighted(nx.path_graph(20))
    graph.nodes[3]["flops"] = 1e15
    assert used(metis(graph, 4, seed=0)) == {0, 1, 2, 3}


def test_huge_weights_do_not_overflow() -> None:
    graph = weighted(nx.path_graph(50), flops=2.0**80, size=2**62)
    assert used(metis(graph, 3, seed=0)) == {0, 1, 2}


def test_a_graph_without_edges_or_work_is_divided_all_the_same() -> None:
    assert used(metis(weighted(nx.empty_graph(7), flops=0.0), 3, seed=0)) == {0, 1, 2}


def test_a_disconnected_graph_is_divided() -> None:
    assert used(metis(weighted(nx.disjoint_union(nx.path_graph(6), nx.path_graph(6))), 4, seed=0)) == {0, 1, 2, 3}


def test_one_vertex_a_part() -> None:
    assert sorted(metis(weighted(nx.path_graph(5)), 5, seed=0)) == [0, 1, 2, 3, 4]


def test_one_part_is_all() -> None:
    assert metis(weighted(nx.path_graph(3)), 1, seed=0) == [0, 0, 0]


def test_too_few_vertices_is_said_with_what_is_possible() -> None:
    with pytest.raises(Infeasible, match="4 parts of a graph of 3 blocks") as error:
        metis(weighted(nx.path_graph(3)), 4, seed=0)
    assert "--machines 3" in error.value.fix


def test_shares_are_followed() -> None:
    parts = metis(weighted(nx.path_graph(100)), 2, seed=0, shares=[0.8, 0.2])
    assert 75 <= parts.count(0) <= 85


def test_the_same_seed_gives_the_same_parts() -> None:
    graph = weighted(nx.random_regular_graph(4, 60, seed=1))
    assert metis(graph, 4, seed=5) == metis(graph, 4, seed=5)


def test_repair_takes_the_vertex_that_is_joined_least() -> None:
    graph = weighted(nx.complete_graph(4))
    graph.add_node(4, flops=1.0)
    graph.add_edge(3, 4, bytes=1)
    assert repair(graph, [0, 0, 0, 0, 0], 2) == [0, 0, 0, 0, 1]


def test_metis_prints_nothing() -> None:
    code = (
        "import networkx as nx\n"
        "from cutset.partition.metis import metis\n"
        "graph = nx.path_graph(40)\n"
        "nx.set_node_attributes(graph, {v: 1e9 if v % 13 == 0 else 1.0 for v in graph}, 'flops')\n"
        "nx.set_edge_attributes(graph, 10, 'bytes')\n"
        "assert set(metis(graph, 30, seed=0)) == set(range(30))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "")
