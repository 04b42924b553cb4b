"""An evaluation after a step is one of the values that the step has led to, whatever a method still fetches."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from marking import with_slow

CUTSET = Path(sys.executable).with_name("cutset")
EPOCHS, RATE = 12, 0.3
QUICK = ["downpour", "sync"]
OTHERS = ["downpour:push=2,fetch=2", "downpour:overlap=true", "ssp", "averaging:every=1", "allreduce", "hogwild"]
TASK = """
import torch
from torch import nn
import cutset

DRAW = torch.Generator().manual_seed(5)
X, Y = torch.randn(8, 3, generator=DRAW, dtype=torch.float64), torch.randn(8, 2, generator=DRAW, dtype=torch.float64)

def build():
    net = nn.Linear(3, 2, dtype=torch.float64)
    with torch.no_grad():
        net.weight.fill_(0.5)
        net.bias.fill_(-0.25)
    return net

def task():
    data = cutset.Data((X,), (Y,))
    return cutset.Task("line", build, nn.functional.mse_loss, lambda batch: data, lambda split: data, batch=8)
"""


def losses_of_descent(folder: Path) -> list[float]:
    """Return the loss after each step of gradient descent on all samples, by numpy."""
    scope: dict[str, object] = {}
    exec(TASK, scope)
    x, y = np.asarray(scope["X"]), np.asarray(scope["Y"])
    weight, bias = np.full((2, 3), 0.5), np.full(2, -0.25)
    losses = []
    for _ in range(EPOCHS):
        error = x @ weight.T + bias - y
        weight, bias = weight - RATE * error.T @ x / 8, bias - RATE * error.mean(0)
        losses.append(float(np.square(x @ weight.T + bias - y).mean()))
    return losses


@pytest.mark.run
@pytest.mark.parametrize("method", with_slow(QUICK, OTHERS))
def test_each_epoch_is_tested_with_what_it_has_trained(method: str, tmp_path: Path) -> None:
    file = tmp_path / "line.py"
    file.write_text(TASK)
    options = ["--machines", 1, "--shards", 2, "--method", method, "--optimizer", "sgd", "--lr", RATE]
    options += ["--epochs", EPOCHS, "--no-baseline", "--out", tmp_path / "run"]
    command = [str(CUTSET), "train", f"{file}:task", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [event["test_loss"] for event in events if event["event"] == "evaluation"]
    assert found == pytest.approx(losses_of_descent(tmp_path), rel=1e-9)
