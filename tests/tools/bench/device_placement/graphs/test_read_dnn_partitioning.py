"""dnn-partitioning JSON: what is read, and what is refused with file, line and entry."""

import json
from typing import Any

import pytest

from cutset.errors import BadInput
from cutset.tools.bench.device_placement.graphs.layer_graph import Layer
from cutset.tools.bench.device_placement.graphs.read_dnn_partitioning import read_workload


def node(identity: int, **fields: Any) -> dict[str, Any]:
    plain = {"supportedOnFpga": 1, "cpuLatency": 10.0, "fpgaLatency": 1.0, "isBackwardNode": 0, "size": 4.0}
    return {"id": identity, **plain, **fields}


def workload(**changed: Any) -> dict[str, Any]:
    edges = [{"sourceId": 7, "destId": 9, "cost": 0.5}]
    whole = {"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 100.0, "nodes": [node(7), node(9)], "edges": edges}
    return {**whole, **changed}


def refused(text: str, code: str, *said: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_workload(text, "net.json")
    assert caught.value.code == code
    assert caught.value.facts.startswith("net.json")
    assert caught.value.fix
    for words in said:
        assert words in str(caught.value)


def test_every_field_is_read():
    nodes = [node(7, colorClass=3, supportedOnFpga=False), node(9, isBackwardNode=True, fpgaLatency=2, size=0)]
    graph = read_workload(json.dumps(workload(nodes=nodes)), "net.json")
    first, second = graph.layers
    assert first == Layer("7", 1.0, 10.0, 0.5, 4.0, colour=3, on_accelerator=False)
    assert second == Layer("9", 2.0, 10.0, 0.0, 0.0, backward=True)
    assert graph.edges == ((0, 1),)
    assert (graph.accelerators, graph.cpus, graph.memory_bytes) == (2, 1, 100.0)


def test_fields_of_debugging_and_parts_that_do_not_meet_are_no_fault():
    nodes = [node(7, name="x", layerId=3), node(9), node(11)]
    assert len(read_workload(json.dumps(workload(nodes=nodes, comment="hm")), "net.json").layers) == 3


@pytest.mark.parametrize("text", ["", "  \n", "{", "[1, 2", "not json", '{"nodes": [}', "[" * 100_000])
def test_what_is_no_json_is_refused(text):
    refused(text, "E370")


def test_a_file_that_was_cut_off_names_the_line():
    refused(json.dumps(workload(), indent=1)[:-20], "E370", "net.json:", "fetch the file again")


@pytest.mark.parametrize("field", ["maxFPGAs", "maxCPUs", "maxSizePerFPGA", "nodes", "edges"])
def test_a_missing_field_is_named(field):
    whole = workload()
    del whole[field]
    refused(json.dumps(whole), "E371", field)


@pytest.mark.parametrize("field", ["id", "fpgaLatency", "cpuLatency", "supportedOnFpga", "isBackwardNode"])
def test_a_missing_field_of_a_node_is_named(field):
    second = node(9)
    del second[field]
    refused(json.dumps(workload(nodes=[node(7), second])), "E371", "nodes[1]", field)


def test_the_line_is_where_the_entry_begins():
    text = json.dumps(workload(nodes=[node(7), node(9, fpgaLatency=-1)]), indent=1)
    begins = 1 + text[: text.index('"id": 9')].count("\n") - 1
    refused(text, "E375", f"net.json:{begins}: nodes[1]: fpgaLatency is -1")


@pytest.mark.parametrize(
    ("nodes", "code", "said"),
    [
        ([], "E372", "empty"),
        ([node(7), node(7)], "E373", "id 7"),
        ([node(7), 9], "E371", "nodes[1]"),
        ([node(7), node("9")], "E371", "id"),
        ([node(7), node(9, size=True)], "E371", "size"),
        ([node(7), node(9, size="large")], "E371", "size"),
        ([node(7), node(9, supportedOnFpga="yes")], "E371", "supportedOnFpga"),
        ([node(7), node(9, colorClass=1.5)], "E371", "colorClass"),
        ([node(7), node(9, cpuLatency=10**400)], "E375", "cpuLatency"),
        ({"7": 1}, "E371", "nodes"),
    ],
)
def test_a_wrong_node_is_named(nodes, code, said):
    refused(json.dumps(workload(nodes=nodes)), code, said)


@pytest.mark.parametrize(
    ("edge", "code", "said"),
    [
        ({"sourceId": 7, "destId": 8, "cost": 0.5}, "E373", "8"),
        ({"sourceId": 7, "destId": 9}, "E371", "cost"),
        ({"sourceId": 7, "destId": 9, "cost": -0.5}, "E375", "-0.5"),
        ({"sourceId": 7, "destId": 9, "cost": 0.75}, "E372", "0.75"),
        ({"sourceId": 9, "destId": 7, "cost": 0.5}, "E374", "7 -> 9"),
        ({"sourceId": 9, "destId": 9, "cost": 0.5}, "E374", "9 -> 9"),
    ],
)
def test_a_wrong_edge_is_named(edge, code, said):
    refused(json.dumps(workload(edges=[*workload()["edges"], edge])), code, said, "edges[")


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_what_is_no_number_is_refused_with_its_line(word):
    text = json.dumps(workload(nodes=[node(7), node(9, size="HERE")]), indent=1).replace('"HERE"', word)
    refused(text, "E375")


def test_no_device_is_refused():
    refused(json.dumps(workload(maxFPGAs=0, maxCPUs=0)), "E372", "no device")
    refused(json.dumps(workload(maxFPGAs=-1)), "E375", "maxFPGAs")
    refused(json.dumps(workload(maxFPGAs=1.5)), "E371", "maxFPGAs")


def test_times_whose_sums_might_overflow_are_refused():
    assert read_workload(json.dumps(workload(nodes=[node(7, fpgaLatency=1e300), node(9)])), "net.json").layers
    refused(json.dumps(workload(nodes=[node(7, fpgaLatency=2e300), node(9)])), "E375", "nodes[0]", "fpgaLatency")


def test_a_split_is_no_workload():
    refused(json.dumps({"maxLoad": 1.0, "fpgas": [], "cpus": []}), "E371", "maxFPGAs", "a split not")
