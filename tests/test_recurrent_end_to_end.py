"""A language model with an LSTM, cut over two processes from the command line, against plain torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from places import USER_MODELS
from plain_training import train_plainly
from safetensors.torch import load_file

from cutset.partition.placement.placement_file import load
from cutset.tools.task.load_task import TaskSpec, load_task

TASK = f"{USER_MODELS / 'recurrent.py'}:language_model"
CUTSET = Path(sys.executable).with_name("cutset")
EPOCHS, LR, SEED = 2, 0.5, 3


def cutset(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(CUTSET), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
def test_two_processes_train_a_cut_lstm_as_plain_torch_does(tmp_path: Path) -> None:
    file = tmp_path / "cut.json"
    done = cutset("plan", TASK, "--machines", 2, "--candidates", "mesh", "-o", file)
    assert done.returncode == 0, done.stderr
    assert load(file).unrolled
    done = cutset("check", file, TASK)
    assert done.returncode == 0, done.stderr
    options = ["--optimizer", "sgd", "--lr", LR, "--epochs", EPOCHS, "--seed", SEED, "--no-baseline", "--json"]
    done = cutset("train", TASK, "--placement", file, *options, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert len({link["source"] for link in result["links"]} & {"worker-0.0", "worker-0.1"}) == 2
    expected = train_plainly(load_task(TaskSpec(TASK)), seed=SEED, lr=LR, epochs=EPOCHS)
    found = load_file(tmp_path / "run" / "model.safetensors")
    torch.testing.assert_close(found, dict(expected.state_dict()), rtol=1e-4, atol=1e-5)
