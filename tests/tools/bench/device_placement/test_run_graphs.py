"""`cutset bench plan --graphs`: every format, a table and JSON, and broken files named with exit code 3."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cutset.errors import BadInput
from cutset.tools.bench.device_placement.graphs.graph_files import read_graph_files
from cutset.tools.bench.device_placement.graphs.hypergraph import Hypergraph, compute_cut_weight
from cutset.tools.bench.device_placement.graphs.layer_graph import compute_device_loads
from cutset.tools.bench.device_placement.graphs.read_dnn_partitioning import read_workload
from cutset.tools.bench.device_placement.published_results import PUBLISHED, find_published
from cutset.tools.bench.device_placement.run_graphs import plan_graph
from cutset.tools.commands import cli

Command = Callable[..., tuple[int, str, str]]

PROFILE = (
    "\n".join(
        f"node{i} -- Linear -- forward_compute_time=1.0, backward_compute_time=2.0,"
        " activation_size=1000.0, parameter_size=8.0"
        for i in range(4)
    )
    + "\n\tnode0 -- node1\n\tnode1 -- node2\n\tnode2 -- node3\n"
)
GRAPH = "4 4\n2 4\n1 3\n2 4\n3 1\n"
HYPERGRAPH = "3 4\n1 2\n2 3\n3 4\n"


def workload(layers: int = 6) -> dict[str, Any]:
    fields = {"supportedOnFpga": 1, "cpuLatency": 50.0, "fpgaLatency": 2.0, "isBackwardNode": 0, "size": 1.0}
    nodes = [{"id": 10 + i, **fields} for i in range(layers)]
    edges = [{"sourceId": 10 + i, "destId": 11 + i, "cost": 0.25} for i in range(layers - 1)]
    return {"maxFPGAs": 3, "maxCPUs": 1, "maxSizePerFPGA": 4.0, "nodes": nodes, "edges": edges}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a graph of each format, an expert's split and files that are none."""
    inside = tmp_path / "graphs" / "inside"
    inside.mkdir(parents=True)
    (tmp_path / "graphs" / "chain.json").write_text(json.dumps(workload()))
    (inside / "chain_expert.json").write_text(json.dumps({"fpgas": [{"load": -1, "nodes": [10]}], "cpus": []}))
    (inside / "line.graph.txt").write_text(PROFILE)
    (inside / "ring.graph").write_text(GRAPH)
    (inside / "path.hgr").write_text(HYPERGRAPH)
    (inside / "LICENSE.txt").write_text("Use it.\n")
    return tmp_path / "graphs"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Runs `cutset bench plan` in this process: exit code, stdout, stderr."""
    handler = signal.getsignal(signal.SIGTERM)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cutset", "bench", "plan", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return (ended.value.code, *capfd.readouterr())

    yield call
    signal.signal(signal.SIGTERM, handler)


def test_a_folder_is_read_whole_but_for_what_is_no_graph(folder):
    found = [(file.path.name, file.format) for file in read_graph_files([folder])]
    assert found == [
        ("chain.json", "dnn-partitioning"), ("line.graph.txt", "pipedream"), ("path.hgr", "hmetis"),
        ("ring.graph", "metis"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("net", json.dumps(workload()), "dnn-partitioning"),
        ("graph.txt", PROFILE, "pipedream"),
        ("profile", PROFILE, "pipedream"),
    ],
)
def test_a_format_is_known_by_its_first_characters_too(tmp_path, name, text, kind):
    (tmp_path / name).write_text(text)
    assert [file.format for file in read_graph_files([tmp_path / name])] == [kind]


@pytest.mark.run
def test_the_table_has_a_row_a_graph(folder, bench):
    code, out, _ = bench("--graphs", folder, "--machines", 2)
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.split() and "." in line.split()[0]]
    assert [row[0] for row in rows] == ["chain.json", "line.graph.txt", "path.hgr", "ring.graph"]
    assert "6.2500" in rows[0]
    assert "0.0060" in rows[1]
    assert "2" in rows[3]


@pytest.mark.run
def test_json_has_placements_that_come_to_the_objective(folder, bench):
    code, out, _ = bench("--json", "--graphs", folder / "chain.json", folder / "inside" / "ring.graph")
    assert code == 0
    layers, *rings = json.loads(out)["rows"]
    graph = read_workload(json.dumps(workload()), "chain.json")
    device = {
        node: number
        for number, part in enumerate([*layers["details"]["split"]["fpgas"], *layers["details"]["split"]["cpus"]])
        for node in part["nodes"]
    }
    loads = compute_device_loads(graph, [device[int(layer.name)] for layer in graph.layers])
    assert layers["objective"] == max(loads) == 4.5
    assert layers["contiguous"] == 4.5
    assert layers["proven"] is True
    assert (layers["machines"], layers["cpus"], layers["one_machine"]) == (3, 1, 12.0)
    assert [row["machines"] for row in rings] == [2, 4]
    ring = read_graph_files([folder / "inside" / "ring.graph"])[0].graph
    assert isinstance(ring, Hypergraph)
    for row in rings:
        assert compute_cut_weight(ring, row["details"]["parts"]) == row["objective"]


@pytest.mark.slow
def test_usual_numbers_of_machines(folder):
    rows = [row for file in read_graph_files([folder]) for row in plan_graph(file, machines=None, seed=0, limit_s=20.0)]
    assert [(row.graph, row.machines) for row in rows] == [
        ("chain.json", 3), ("line.graph.txt", 2), ("line.graph.txt", 4), ("path.hgr", 2), ("path.hgr", 4),
        ("ring.graph", 2), ("ring.graph", 4),
    ]  # fmt: skip
    stages = rows[1].details["stages"]
    assert stages == {"node0": 0, "node1": 0, "node2": 1, "node3": 1}


@pytest.mark.slow
def test_known_results_stand_beside_ours_by_name_and_machines(tmp_path, bench):
    path = tmp_path / "bert24_inference.json"
    path.write_text(json.dumps(workload()))
    assert "17.7899" in bench("--graphs", path, "--machines", 6)[1]
    assert "17.7899" not in bench("--graphs", path, "--machines", 5)[1]
    assert find_published("4elt.graph", 2) == {"METIS": 139}
    assert all(value > 0 for known in PUBLISHED.values() for value in known.values())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("net.json", json.dumps(workload())[:-30], "net.json:1"),
        ("net.json", "", "net.json"),
        ("net.json", json.dumps({"fpgas": [], "cpus": []}), "a split not"),
        ("graph.txt", PROFILE.replace("1.0", "NaN"), "graph.txt:1"),
        ("a.graph", GRAPH[:-4], "a.graph:1"),
        ("a.hgr", HYPERGRAPH.replace("3 4\n1", "3 4\n9"), "a.hgr:2"),
        ("notes.md", "hello", "notes.md"),
    ],
)
def test_a_broken_file_ends_with_3_and_its_name(tmp_path, bench, name, text, said):
    path = tmp_path / name
    path.write_text(text)
    code, out, err = bench("--graphs", path)
    assert (code, out) == (3, "")
    assert said in err
    assert "fix: " in err


def test_a_broken_file_in_a_folder_is_named_before_anything_is_planned(folder, bench):
    (folder / "broken.graph").write_text("2 1\n2\n")
    code, out, err = bench("--graphs", folder)
    assert (code, out) == (3, "")
    assert "broken.graph:1" in err


def test_a_file_of_other_bytes_or_none_at_all(tmp_path, bench):
    (tmp_path / "a.graph").write_bytes(b"\x1f\x8b\x08\xff")
    assert "no text" in bench("--graphs", tmp_path / "a.graph")[2]
    assert bench("--graphs", tmp_path / "missing.json")[0] == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no graph in"):
        read_graph_files([tmp_path / "empty"])


def test_a_plan_that_does_not_fit_ends_with_4(tmp_path, bench):
    path = tmp_path / "net.json"
    path.write_text(json.dumps({**workload(), "maxCPUs": 0}))
    code, _, err = bench("--graphs", path, "--machines", 1)
    assert code == 4
    assert "E411" in err


def test_files_without_the_option_are_refused(tmp_path, bench):
    assert bench(tmp_path / "net.json")[0] == 2
