"""PipeDream profiles: what is read, and what is refused with file and line."""

import pytest

from cutset.errors import BadInput
from cutset.tools.bench.device_placement.graphs.read_pipedream import read_profile

GOOD = (
    "node1 -- Input0 -- forward_compute_time=9.0, backward_compute_time=0.0,"
    " activation_size=400.0, parameter_size=0.0\n"
    "node2 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=2.0, backward_compute_time=3.0,"
    " activation_size=[100.0; 50.0], parameter_size=8.0 -- stage_id=3\n"
    "node3 -- A -- B -- forward_compute_time=1.5, backward_compute_time=0.5, activation_size=0.0, parameter_size=1e3\n"
    "\tnode1 -- node2\n"
    "\n"
    "\tnode2 -- node3\n"
)


def read(text: str):
    return read_profile(text, "graph.txt", accelerators=2, bandwidth=100.0)


def test_a_profile_is_read_in_seconds():
    first, second, third = read(GOOD).layers
    assert (first.name, first.time, first.output_time) == ("node1", 0.0, 0.0)
    assert (second.time, second.output_time, second.size_bytes) == (0.005, 2 * 150 / 100, 8.0)
    assert (third.time, third.output_time) == (0.002, 0.0)
    assert read(GOOD).edges == ((0, 1), (1, 2))


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        (GOOD, "", "E370", "graph.txt is empty"),
        ("node3 -- A -- B -- forward", "node3 forward", "E371", "graph.txt:3"),
        (", parameter_size=8.0", "", "E371", "graph.txt:2: no parameter_size"),
        ("backward_compute_time=0.5", "backward_compute_time=-0.5", "E375", "graph.txt:3: backward_compute_time"),
        ("backward_compute_time=0.5", "backward_compute_time=nan", "E375", "'nan'"),
        ("[100.0; 50.0]", "[100.0; inf]", "E375", "'inf'"),
        ("[100.0; 50.0]", "[]", "E375", "activation_size"),
        ("activation_size=400.0", "activation_size=many", "E375", "'many'"),
        ("\tnode2 -- node3", "\tnode2 -- node4", "E373", "graph.txt:6: an edge with node4"),
        ("\tnode2 -- node3", "\tnode2", "E371", "'node2' is not an edge"),
        ("\tnode2 -- node3", "\tnode2 -- node1", "E374", "node2 -> node1"),
        ("\tnode2 -- node3", "\tnode3 -- node3", "E374", "node3 -> node3"),
        ("node3 -- A", "node2 -- A", "E373", "graph.txt:3: node2 is there twice, first in line 2"),
    ],
)
def test_what_is_wrong_is_named(old, new, code, said):
    with pytest.raises(BadInput) as caught:
        read(GOOD.replace(old, new))
    assert caught.value.code == code
    assert said in str(caught.value)
    assert caught.value.fix


def test_edges_alone_are_no_graph():
    with pytest.raises(BadInput, match="no layer"):
        read("\tnode1 -- node2\n")
