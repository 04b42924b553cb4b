"""Two placements side by side: from the command, of files and of a new plan."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from cutset.errors import BadInput
from cutset.partition.placement.placement_file import Placement, load
from cutset.tools.commands.cli import cli
from cutset.tools.report.compare_placements import compare_placements, describe_difference, to_plain

TASK = "cutset.models:digits"


def run(*arguments: object) -> str:
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False).stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Placements of one task for two and for three machines."""
    folder = tmp_path_factory.mktemp("placements")
    paths = folder / "two.json", folder / "three.json"
    for machines, path in zip((2, 3), paths, strict=True):
        run("plan", TASK, "--machines", machines, "-o", path)
    return paths


def test_a_placement_differs_from_itself_in_nothing(files: tuple[Path, Path]) -> None:
    placement = load(files[0])
    difference = compare_placements(placement, placement)
    assert difference.operators == ()
    assert describe_difference(difference)[-1] == "every operator is divided in the same way"


def test_other_numbers_of_the_same_machines_are_no_difference(files: tuple[Path, Path]) -> None:
    placement = load(files[0])
    swapped = [
        msgspec.structs.replace(op, boxes=[msgspec.structs.replace(b, machine=1 - b.machine) for b in op.boxes])
        for op in placement.ops
    ]
    assert compare_placements(placement, msgspec.structs.replace(placement, ops=swapped)).operators == ()


def test_files_are_compared_without_planning(files: tuple[Path, Path]) -> None:
    two, three = files
    lines = run("plan", "--diff", two, three).splitlines()
    assert any(line.split()[:3] == ["machines", "2", "3"] for line in lines)
    assert "divided in another way: linear" in lines[-1]
    found = json.loads(run("plan", "--diff", two, three, "--json"))
    assert found == to_plain(compare_placements(load(two), load(three)))


def test_a_new_plan_is_compared_with_a_file(files: tuple[Path, Path]) -> None:
    lines = run("plan", TASK, "--machines", "2", "--diff", files[0]).splitlines()
    assert lines[-1] == "every operator is divided in the same way"
    found = json.loads(run("plan", TASK, "--machines", "2", "--diff", files[0], "--json"))
    assert found["difference"]["operators"] == []
    assert found["difference"]["step_s"][1] == found["placement"]["predicted"]["step_s"]


@pytest.mark.run
def test_placements_of_two_models_are_not_compared(files: tuple[Path, Path], tmp_path: Path) -> None:
    run("plan", "cutset.models:digits_local", "--machines", "2", "-o", tmp_path / "local.json")
    with pytest.raises(BadInput, match="of two models") as caught:
        compare_placements(load(files[0]), load(tmp_path / "local.json"))
    assert caught.value.code == "E340"


def test_what_if_is_said_below_the_plan() -> None:
    lines = run("plan", TASK, "--machines", "2", "--faster-network", "10gbit", "--add-machine").splitlines()
    said = [line for line in lines if line.startswith("with ")]
    assert [line.split(":")[0] for line in said] == [
        "with a network of 1.25 GB/s", "with one more machine like machine 0",
    ]  # fmt: skip
    assert all("times as many as now" in line for line in said)


def test_what_if_as_json_has_the_placement() -> None:
    found = json.loads(run("plan", TASK, "--machines", "2", "--faster-network", "10gbit", "--json"))
    (outcome,) = found["what_if"]
    assert outcome["ratio"] >= 1
    assert msgspec.convert(found["placement"], Placement).predicted.least_s > 0
