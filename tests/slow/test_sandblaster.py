"""A batch method to the end of what it is good for; tests/tools/test_batch_run.py has shorter runs."""

import json
from pathlib import Path

from command_line import Cutset, cutset

__all__ = ["cutset"]


def test_a_model_cut_over_two_machines_learns_the_digits(cutset: Cutset, tmp_path: Path) -> None:
    options = ("--machines", 2, "--replicas", 2, "--method", "sandblaster:iterations=60", "--no-baseline")
    done = cutset("train", "cutset.models:digits", *options, "--out", tmp_path)
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "result.json").read_text())["test_accuracy"] >= 0.96


def test_a_run_of_other_shards_does_not_go_on(cutset: Cutset, tmp_path: Path) -> None:
    options = ("cutset.models:digits_softmax", "--method", "sandblaster:iterations=2", "--no-baseline")
    done = cutset("train", *options, "--shards", 2, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    other = cutset("train", *options, "--shards", 3, "--out", tmp_path / "other", "--resume", tmp_path / "run")
    assert other.code == 8
    assert "E812" in other.err
