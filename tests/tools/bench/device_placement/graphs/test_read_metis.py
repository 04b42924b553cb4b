"""METIS graph files: every format code, and what is refused with file and line."""

import pytest
from refused_files import assert_refused

from cutset.tools.bench.device_placement.graphs.read_metis import read_metis

PATH = "3 2\n2\n1 3\n2\n"


def test_a_plain_graph():
    graph = read_metis(PATH, "a.graph")
    assert graph.nets == ((0, 1), (1, 2))
    assert graph.weights == ((1,), (1,), (1,))
    assert graph.net_weights == (1, 1)
    assert graph.is_graph


@pytest.mark.parametrize(
    ("text", "sizes", "weights", "edges"),
    [
        ("2 1 0\n2\n1\n", (1, 1), ((1,), (1,)), (1,)),
        ("2 1 1\n2 5\n1 5\n", (1, 1), ((1,), (1,)), (5,)),
        ("2 1 001\n2 5\n1 5\n", (1, 1), ((1,), (1,)), (5,)),
        ("2 1 10\n3 2\n4 1\n", (1, 1), ((3,), (4,)), (1,)),
        ("2 1 10 2\n3 0 2\n4 9 1\n", (1, 1), ((3, 0), (4, 9)), (1,)),
        ("2 1 11\n3 2 5\n4 1 5\n", (1, 1), ((3,), (4,)), (5,)),
        ("2 1 100\n7 2\n8 1\n", (7, 8), ((1,), (1,)), (1,)),
        ("2 1 101\n7 2 5\n8 1 5\n", (7, 8), ((1,), (1,)), (5,)),
        ("2 1 110\n7 3 2\n8 4 1\n", (7, 8), ((3,), (4,)), (1,)),
        ("2 1 111 2\n7 3 1 2 5\n8 4 2 1 5\n", (7, 8), ((3, 1), (4, 2)), (5,)),
    ],
)
def test_every_format_code(text, sizes, weights, edges):
    graph = read_metis(text, "a.graph")
    assert (graph.sizes, graph.weights, graph.net_weights) == (sizes, weights, edges)


def test_comments_and_vertices_without_neighbours():
    graph = read_metis("% made by hand\n4 1\n%\n3\n\n1\n\n\n\n", "a.graph")
    assert graph.nets == ((0, 2),)
    assert len(graph.weights) == 4


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("", "E370", "a.graph is empty"),
        ("% only\n", "E370", "only comments"),
        ("3\n", "E371", "a.graph:1"),
        ("3 2 2\n2\n1 3\n2\n", "E371", "'2'"),
        ("3 2 1111\n2\n1 3\n2\n", "E371", "'1111'"),
        ("3 2 1 2\n2 1\n1 1 3 1\n2 1\n", "E371", "ncon"),
        ("3 2\n2\n1 x\n2\n", "E371", "a.graph:3: 'x'"),
        ("3 2\n2\n1 2.5\n2\n", "E371", "'2.5'"),
        ("3 2\n2\n1 3\n", "E372", "3 vertices are announced and 2 lines"),
        ("3 2\n2\n1 3\n2\n1\n", "E372", "3 vertices are announced and 4 lines"),
        ("3 3\n2\n1 3\n2\n", "E372", "3 edges are announced and 2 are there"),
        ("3 2\n2\n1 4\n2\n", "E373", "a.graph:3: neighbour 4 of 3"),
        ("3 2\n2\n1 0\n2\n", "E373", "neighbour 0"),
        ("3 2\n2\n2 3\n2\n", "E373", "a.graph:3: vertex 2 is its own"),
        ("3 2\n2 2\n1 3\n2\n", "E373", "twice"),
        ("3 2\n2\n1 -3\n2\n", "E375", "-3"),
        ("2 1 1\n2 0\n1 0\n", "E375", "weight 0"),
        ("2 1 1\n2\n1 5\n", "E371", "a.graph:2"),
        ("2 1 10\n\n4 1\n", "E371", "a.graph:2"),
        ("2 1 10\n-3 2\n4 1\n", "E375", "-3"),
        ("2 1 10\n99999999999999999999 2\n4 1\n", "E375", "99999999999999999999"),
        ("2 1 10\n9000000000000000000 2\n9000000000000000000 1\n", "E375", "overflow"),
        ("3 2\n2 3\n1\n\n", "E376", "vertex 1 names 3"),
        ("2 1 1\n2 5\n1 6\n", "E376", "with weight 6"),
    ],
)
def test_what_is_wrong_is_named(text, code, said):
    assert_refused(read_metis, text, "a.graph", code, said)
