"""The graph in compressed rows: symmetric, without loops, of one entry an edge."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cutset.partition.mincut.csr_graph import CsrGraph, build_csr_graph


@st.composite
def edges(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, float]]]:
    count = draw(st.integers(1, 12))
    end = st.integers(0, count - 1)
    return count, draw(st.lists(st.tuples(end, end, st.sampled_from([0.0, 1.0, 2.0**62])), max_size=40))


def built(count: int, given: list[tuple[int, int, float]]) -> CsrGraph:
    a, b, size = (np.array([edge[i] for edge in given]) for i in range(3))
    return build_csr_graph(
        np.arange(count, dtype=np.float64), a.astype(np.int64), b.astype(np.int64), size.astype(float)
    )


@given(edges())
def test_rows_are_symmetric_sorted_and_without_loops(drawn: tuple[int, list[tuple[int, int, float]]]) -> None:
    count, given_edges = drawn
    graph = built(count, given_edges)
    entries = list(zip(graph.rows.tolist(), graph.ends.tolist(), graph.bytes.tolist(), strict=True))
    assert sorted(entries) == entries
    assert {(b, a, size) for a, b, size in entries} == set(entries)
    assert all(a != b and size > 0 for a, b, size in entries)
    assert len({(a, b) for a, b, _ in entries}) == len(entries)
    assert len(graph.starts) == count + 1
    for a in range(count):
        for b in range(count):
            weights = [size for x, y, size in given_edges if {x, y} == {a, b} and a != b]
            assert graph.bytes_between(a, b) == sum(weights)


def test_cut_bytes_count_an_edge_once() -> None:
    graph = built(4, [(0, 1, 5.0), (1, 2, 7.0), (2, 3, 11.0)])
    assert graph.cut_bytes([0, 0, 1, 1]) == 7
    assert graph.cut_bytes([0, 1, 0, 1]) == 23


def test_contraction_adds_flops_and_bytes_up() -> None:
    graph = built(4, [(0, 1, 5.0), (1, 2, 7.0), (0, 3, 1.0), (2, 3, 11.0)])
    anchor = np.array([0, 0, 2, 2])
    merged, number = CsrGraph(graph.flops, graph.starts, graph.ends, graph.bytes, anchor).contract()
    assert number.tolist() == [0, 0, 1, 1]
    assert merged.flops.tolist() == [1, 5]
    assert merged.bytes_between(0, 1) == 8


def test_a_part_of_a_graph_keeps_the_edges_inside() -> None:
    inside = built(4, [(0, 1, 5.0), (1, 2, 7.0), (2, 3, 11.0)]).subgraph(np.array([1, 2]))
    assert inside.flops.tolist() == [1, 2]
    assert inside.bytes_between(0, 1) == 7
    assert len(inside.ends) == 2
