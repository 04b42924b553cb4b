"""Models with islands, cut over two processes from the command line, against plain torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from marking import with_slow
from places import USER_MODELS
from plain_training import train_plainly
from safetensors.torch import load_file

from cutset.tools.task.load_task import TaskSpec, load_task

CUTSET = Path(sys.executable).with_name("cutset")
EPOCHS, LR, SEED = 3, 0.2, 3


@pytest.mark.parametrize(
    ("name", "note"),
    with_slow(
        [
            ("experts", ""),
            ("loss", "computed whole, as an island that is not cut: (loss); for the model cannot be traced at "),
        ],
        [
            ("branch", "computed whole, as an island that is not cut: (model); for the model cannot be traced at "),
            ("lazy", ""),
        ],
    ),
)
def test_two_processes_train_as_plain_torch_does(name: str, note: str, tmp_path: Path) -> None:
    task = f"{USER_MODELS / 'islands.py'}:{name}"
    options = ["--optimizer", "sgd", "--lr", LR, "--epochs", EPOCHS, "--seed", SEED, "--no-baseline", "--json"]
    command = [str(CUTSET), *map(str, ["train", task, "--machines", 2, *options, "--out", tmp_path])]
    environment = {**os.environ, "PYTHONPATH": str(USER_MODELS.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert note in " ".join(result["notes"])
    assert {link["source"] for link in result["links"]} >= {"worker-0.0", "worker-0.1"}
    expected = train_plainly(load_task(TaskSpec(task)), seed=SEED, lr=LR, epochs=EPOCHS)
    found = load_file(tmp_path / "model.safetensors")
    torch.testing.assert_close(found, dict(expected.state_dict()), rtol=1e-4, atol=1e-6)
