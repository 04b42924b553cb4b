"""`cutset bench figure3`: table, JSON and the picture's file."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from cutset.errors import UsageError
from cutset.tools.bench.commands.figure3 import figure3_command

SVG = "{http://www.w3.org/2000/svg}"
MACHINES = ("--flops", "1e8", "--message", "1e-5", "--draws", "2")
SMALL = ("--net", "digits", "--net", "digits_local", "--machines", "2,1", *MACHINES)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(figure3_command, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.run
def test_the_table_has_the_machines_the_speedups_and_the_plans() -> None:
    result = run(*SMALL)
    assert result.exit_code == 0
    out = result.stdout
    assert "Machines: 100 MFLOP/s, 64 GiB of memory, 20 GB/s to it." in out
    assert "110 MB/s each way, latency 200 µs, 10 µs a message" in out
    assert "the mean of 2 steps or more.\nSlowdown of a machine in a step: lognormal, sigma 0.5, seed 0." in out
    assert out.count(" one machine ") == 2
    assert "digits: fastest on" in out
    assert "digits_local, machines 2" in result.stderr


def test_json_is_the_whole_result() -> None:
    digits = ("--net", "digits", "--machines", "2,1,2", "--json", *MACHINES)
    data, again = json.loads(run(*digits).stdout), json.loads(run(*digits).stdout)
    assert [(p["task"], p["machines"]) for p in data["points"]] == [("digits", 1), ("digits", 2)]
    assert data["assumed"]["message_s"] == 1e-5
    assert again["points"] == data["points"]


def test_the_kind_of_plans_can_be_chosen() -> None:
    data = json.loads(run("--net", "digits", "--machines", "1,3", "--candidates", "slices", "--json", *MACHINES).stdout)
    assert [p["plan"] for p in data["points"]] == ["one machine", "slices"]


@pytest.mark.slow
def test_the_picture_is_written_beside_json(tmp_path: Path) -> None:
    file = tmp_path / "out.svg"
    result = run(*SMALL, "--json", "--svg", str(file))
    assert json.loads(result.stdout)["points"]
    root = ElementTree.parse(file).getroot()
    assert len(root.findall(f".//{SVG}circle")) == 4


@pytest.mark.parametrize("counts", ["0", "1,x", "1,,2", "", "5000", "-1"])
def test_wrong_lists_of_machines_are_refused(counts: str) -> None:
    with pytest.raises(UsageError, match="E241"):
        run("--net", "digits", "--machines", counts)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="E222"):
        run("--net", "digits", "--machines", "1", "--svg", str(tmp_path / "none" / "out.svg"))
