"""Replicas that are all on one host, trained by the command."""

import json
from pathlib import Path

from command_line import Cutset

from cutset.ps.checkpoint.read_checkpoint import load_checkpoint
from cutset.ps.checkpoint.streamed_safetensors import TensorReader
from cutset.tools.run_folder import CHECKPOINT, WEIGHTS

DIGITS = "cutset.models:digits"


def check_two_replicas_learn(cutset: Cutset, tmp_path: Path, method: str, machines: int) -> None:
    """Each on so many machines; they talk as the method does, and save what the shards hold."""
    said = ["--machines", machines, "--replicas", 2, "--method", method, "--optimizer", "adagrad", "--lr", 0.03]
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
        for name, tensor in load_checkpoint(tmp_path / CHECKPOINT).items():
            assert (weights.tensor(name) == tensor).all()
