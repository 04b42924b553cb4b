"""hMETIS hypergraph files: every format code, and what is refused with file and line."""

import pytest
from refused_files import assert_refused

from cutset.tools.bench.device_placement.graphs.read_metis import read_hmetis

NETS = ((0, 1), (1, 2, 3), (3,))


@pytest.mark.parametrize(
    ("text", "nets", "vertices"),
    [
        ("3 4\n1 2\n2 3 4\n4\n", (1, 1, 1), (1, 1, 1, 1)),
        ("% by hand\n3 4 0\n1 2\n% between\n2 3 4\n4\n", (1, 1, 1), (1, 1, 1, 1)),
        ("3 4 1\n5 1 2\n6 2 3 4\n0 4\n", (5, 6, 0), (1, 1, 1, 1)),
        ("3 4 10\n1 2\n2 3 4\n4\n7\n8\n0\n9\n", (1, 1, 1), (7, 8, 0, 9)),
        ("3 4 11\n5 1 2\n6 2 3 4\n7 4\n7\n8\n9\n9\n", (5, 6, 7), (7, 8, 9, 9)),
    ],
)
def test_every_format_code(text, nets, vertices):
    graph = read_hmetis(text, "a.hgr")
    assert graph.nets == NETS
    assert graph.net_weights == nets
    assert graph.weights == tuple((weight,) for weight in vertices)
    assert not graph.is_graph


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("\n", "E370", "a.hgr is empty"),
        ("%\n", "E370", "only comments"),
        ("3\n", "E371", "a.hgr:1"),
        ("1 2 2\n1 2\n", "E371", "'2'"),
        ("2 2\n1 2\n", "E372", "2 lines are announced and 1"),
        ("1 2\n1 2\n1 2\n", "E372", "1 lines are announced and 2"),
        ("1 2 10\n1 2\n1\n", "E372", "3 lines are announced and 2"),
        ("1 2\n1 3\n", "E373", "a.hgr:2: pin 3 of 2"),
        ("1 2\n0 1\n", "E373", "pin 0"),
        ("1 2\n1 1\n", "E373", "pin 1 is named twice"),
        ("1 2 1\n5\n", "E371", "a.hgr:2: a net without pins"),
        ("1 2 1\n-5 1 2\n", "E375", "-5"),
        ("1 2\n1 b\n", "E371", "'b'"),
        ("1 2 10\n1 2\n1 1\n1\n", "E371", "a.hgr:3: 2 numbers"),
        ("1 2 10\n1 2\n9000000000000000000\n9000000000000000000\n", "E375", "overflow"),
    ],
)
def test_what_is_wrong_is_named(text, code, said):
    assert_refused(read_hmetis, text, "a.hgr", code, said)
