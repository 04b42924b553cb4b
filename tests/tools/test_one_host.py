"""The methods whose replicas are on one host, as commands: all-reduce and Hogwild, cut or not, and what they refuse."""

import json
from pathlib import Path

import pytest
from command_line import USAGE, Cutset, refused

from cutset.ps.checkpoint import whole_state
from cutset.ps.tensor_file import TensorReader
from cutset.tools.saving import CHECKPOINT, WEIGHTS

DIGITS = "cutset.models:digits"


@pytest.mark.parametrize("machines", [1, 2])
@pytest.mark.parametrize("method", ["allreduce", "hogwild"])
def test_two_replicas_learn(cutset: Cutset, tmp_path: Path, method: str, machines: int) -> None:
    said = ["--machines", machines, "--replicas", 2, "--method", method, "--rule", "adagrad", "--lr", 0.03]
    outcome = cutset("train", DIGITS, *said, "--epochs", 3, "--no-baseline", "--json", "--out", tmp_path)
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    assert result["test_accuracy"] > 0.9
    workers = [f"worker-{r}.{m}" for r in range(2) for m in range(machines)]
    between = {(link["source"], link["target"]) for link in result["links"]}
    rings = {(f"worker-{r}.{m}", f"worker-{1 - r}.{m}") for r in range(2) for m in range(machines)}
    if method == "allreduce":
        assert rings <= between
    else:
        assert not rings & between
        assert sorted(result["staleness"]) == sorted(workers)
    with TensorReader(tmp_path / WEIGHTS) as weights:
        for name, tensor in whole_state(tmp_path / CHECKPOINT).items():
            assert (weights.tensor(name) == tensor).all()


@pytest.mark.parametrize("method", ["allreduce", "hogwild"])
@pytest.mark.parametrize(("option", "value", "code"), [("--compress", "int8", "E267"), ("--rule", "dc-asgd-c", "E262")])
def test_what_is_about_pushes_does_not_fit(
    cutset: Cutset, tmp_path: Path, method: str, option: str, value: str, code: str
) -> None:
    outcome = cutset("train", DIGITS, "--replicas", 2, "--method", method, option, value, "--out", tmp_path)
    refused(outcome, USAGE, code, method)
