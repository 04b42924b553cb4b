"""METIS behind its guards: whatever goes in, a partition without empty parts comes out, the same every time."""

import subprocess
import sys

import networkx as nx
import numpy as np
import pytest

from cutset.partition.adjacency import Adjacency, adjacency
from cutset.partition.errors import Infeasible
from cutset.partition.metis import metis


def weighted(graph: nx.Graph, flops: float | dict[int, float] = 1.0, size: float = 10) -> Adjacency:
    """flops: of all vertices, or of some, the others 1; edges weigh `size`, or what their attribute `bytes` says."""
    work = np.ones(len(graph)) * (flops if isinstance(flops, float) else 1.0)
    for vertex, own in flops.items() if isinstance(flops, dict) else ():
        work[vertex] = own
    ends = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    sizes = np.array([data.get("bytes", size) for _, _, data in graph.edges(data=True)], dtype=np.float64)
    return adjacency(work, ends[:, 0], ends[:, 1], sizes)


def used(parts: list[int]) -> set[int]:
    return set(parts)


@pytest.mark.parametrize("count", [2, 3, 5, 9, 12])
def test_a_small_dense_graph_has_no_empty_part(count: int) -> None:
    assert used(metis(weighted(nx.complete_graph(12)), count, seed=0)) == set(range(count))


def test_two_clusters_with_a_thin_bridge_are_cut_at_the_bridge() -> None:
    graph = nx.barbell_graph(8, 0)
    graph.edges[7, 8]["bytes"] = 1
    parts = metis(weighted(graph, size=1000), 2, seed=0)
    assert len(used(parts[:8])) == len(used(parts[8:])) == 1
    assert used(parts) == {0, 1}


def test_a_dominant_vertex_does_not_swallow_the_rest() -> None:
    graph = weighted(nx.path_graph(20), {3: 1e15})
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


def test_metis_prints_nothing() -> None:
    code = (
        "import numpy as np\n"
        "from cutset.partition.adjacency import adjacency\n"
        "from cutset.partition.metis import metis\n"
        "work = np.where(np.arange(40) % 13 == 0, 1e9, 1.0)\n"
        "graph = adjacency(work, np.arange(39), np.arange(1, 40), np.full(39, 10.0))\n"
        "assert set(metis(graph, 30, seed=0)) == set(range(30))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "")
