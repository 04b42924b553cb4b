"""The methods whose replicas are on one host, as commands: all-reduce and Hogwild, cut or not, and what they refuse."""

from pathlib import Path

import pytest
from command_line import USAGE, Cutset, refused
from one_host import DIGITS, check_two_replicas_learn


@pytest.mark.slow
@pytest.mark.parametrize("method", ["allreduce", "hogwild"])
def test_two_replicas_of_a_cut_model_learn(cutset: Cutset, tmp_path: Path, method: str) -> None:
    """tests/slow/test_one_host.py: of one that is not cut."""
    check_two_replicas_learn(cutset, tmp_path, method, 2)


@pytest.mark.parametrize("method", ["allreduce", "hogwild"])
@pytest.mark.parametrize(
    ("option", "value", "code"), [("--compress", "int8", "E267"), ("--optimizer", "dc-asgd-c", "E262")]
)
def test_what_is_about_pushes_does_not_fit(
    cutset: Cutset, tmp_path: Path, method: str, option: str, value: str, code: str
) -> None:
    outcome = cutset("train", DIGITS, "--replicas", 2, "--method", method, option, value, "--out", tmp_path)
    refused(outcome, USAGE, code, method)
