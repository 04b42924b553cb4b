"""The placement file: written whole, read back, checked."""

import json
from pathlib import Path

import jsonschema
import pytest
from example_graphs import chain

from cutset.errors import BadInput
from cutset.partition.cluster.machines import Cluster, uniform_cluster
from cutset.partition.dataflow.deferred_gradients import find_deferred
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.placement.from_plan import plan_placement
from cutset.partition.placement.placement_file import FORMAT, Placement, load, schema, to_json
from cutset.partition.placement.to_cut import cut_from_placement


@pytest.fixture(scope="module")
def placement() -> Placement:
    return plan_placement(chain(16, 12, 8), uniform_cluster(3), model="here:chain")


@pytest.fixture
def file(placement: Placement, tmp_path: Path) -> Path:
    path = tmp_path / "a.json"
    placement.save(path)
    return path


def test_what_is_saved_is_loaded(placement: Placement, file: Path) -> None:
    assert load(file) == placement
    assert [p.name for p in file.parent.iterdir()] == ["a.json"], "no temporary file is left"


def test_the_file_follows_its_published_schema(file: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(json.loads(file.read_text()), schema())


def test_the_file_is_readable(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert len(lines) > 30
    assert max(map(len, lines)) < 400


def test_what_is_left_for_later_is_kept() -> None:
    graph, slow = chain(256, 256, 256, 256, batch=64), Cluster(uniform_cluster(2).machines, 10e6, 2e-4)
    placement = plan_placement(graph, slow, model="here:chain")
    cut = cut_from_placement(placement, graph)
    assert cut.deferred
    assert {(n, stage): after for n, m in enumerate(placement.machines) for stage, after in m.defers} == cut.deferred
    assert find_deferred(lower_cut(graph, cut)).keys() == cut.deferred.keys()


def test_a_missing_file_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="E331") as error:
        load(tmp_path / "none.json")
    assert "none.json" in error.value.facts
    assert error.value.fix.startswith("cutset plan")


def test_a_newer_format_is_refused(placement: Placement, file: Path) -> None:
    newer = json.loads(to_json(placement)) | {"format": FORMAT + 1, "new": "field"}
    file.write_text(json.dumps(newer))
    with pytest.raises(BadInput, match=f"has format {FORMAT + 1}; this cutset reads format {FORMAT}"):
        load(file)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 2}', "\x00\x01", '{"format": "one"}'])
def test_a_damaged_file_is_said_to_be_damaged(text: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(BadInput, match="E332") as error:
        load(file)
    assert str(file) in error.value.facts


@pytest.mark.parametrize("cut_at", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_said_to_be_damaged(cut_at: float, file: Path) -> None:
    text = file.read_text()
    file.write_text(text[: int(len(text) * cut_at)])
    with pytest.raises(BadInput, match="is damaged"):
        load(file)


def test_boxes_that_cannot_be_are_damage(placement: Placement, file: Path) -> None:
    for box, machine, said in (
        ([[0, 4]], 0, "has box"),
        ([[0, 4], [0, 99], [0, 16]], 0, "has box"),
        ([[0, 4], [0, 12], [0, 16]], 7, "is on machine 7 of 3"),
    ):
        plain = json.loads(to_json(placement))
        plain["ops"][0]["boxes"] = [[box, machine]]
        file.write_text(json.dumps(plain))
        with pytest.raises(BadInput, match=said):
            load(file)


def test_a_folder_that_is_not_there_is_an_error_not_a_traceback(placement: Placement, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot write the placement"):
        placement.save(tmp_path / "no" / "a.json")


def test_an_older_format_is_refused(file: Path) -> None:
    file.write_text('{"format": 1, "model": "m"}')
    with pytest.raises(BadInput, match="has format 1; this cutset reads format") as caught:
        load(file)
    assert caught.value.fix.startswith("cutset plan TASK -o")
