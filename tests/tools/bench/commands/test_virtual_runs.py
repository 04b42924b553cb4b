"""`cutset bench simulate`, and the folder of a figure."""

import gzip
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from cutset.errors import BadInput, UsageError
from cutset.tools.bench.commands.figure4 import figure4_command
from cutset.tools.bench.commands.virtual_runs import simulate_command

DIGITS = "cutset.models:digits"


def run(command: click.Command, *arguments: object) -> Result:
    result = CliRunner().invoke(command, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.run
def test_a_run_is_shown_while_it_lasts_and_as_json() -> None:
    options = (DIGITS, "--replicas", 30, "--optimizer", "adagrad", "--lr", 0.005, "--epochs", 3, "--points", 3)
    result = run(simulate_command, *options, "--json")
    data = json.loads(result.stdout)
    assert [point["samples"] for point in data["points"]][:2] == [0, 480]
    assert data["run"]["staleness"]["mean"] == pytest.approx(29, rel=0.25)
    assert data["spec"]["replicas"] == 30
    assert "480 samples: test accuracy" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--replicas", 10**8), "replicas need about"),
        (("--method", "allreduce"), "allreduce is not simulated"),
        (("--method", "sync:backups=9"), "9 backups among 4 replicas"),
        (("--method", "downpour:warm_start=100000"), "warm start of 100000"),
        (("--method", "sync", "--optimizer", "dc-asgd-c"), "compensates the delay"),
    ],
)
def test_runs_that_cannot_be_are_refused_at_once(options: tuple[object, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(simulate_command, DIGITS, *options)


def test_data_that_is_cut_short_is_named(tmp_path: Path) -> None:
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"\0\0\x08\x03" + b"\0" * 12)[:-5])
    with pytest.raises(BadInput, match="train"):
        run(simulate_command, "--data", f"mnist:{tmp_path}")


def test_files_of_the_user_stay_as_they_are(tmp_path: Path) -> None:
    own = tmp_path / "figure4.json"
    own.write_text('{"mine": 1}')
    with pytest.raises(UsageError, match="does not replace it"):
        run(figure4_command, DIGITS, "-o", tmp_path)
    assert own.read_text() == '{"mine": 1}'
