"""An evaluation after a step is one of the values that the step has led to, whatever a method still fetches."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from marking import with_slow

CUTSET = Path(sys.executable).with_name("cutset")
EPOCHS, RATE, SAMPLES = 12, 0.2, 8
TASK = """
import torch
from torch import nn
import cutset

DRAW = torch.Generator().manual_seed(5)
X, Y = torch.randn(8, 3, generator=DRAW, dtype=torch.float64), torch.randn(8, 2, generator=DRAW, dtype=torch.float64)

def build():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        for i, parameter in enumerate(net.parameters()):
            parameter.copy_(torch.linspace(-0.5, 0.4 + i / 10, parameter.numel()).reshape(parameter.shape))
    return net

def task():
    data = cutset.Data((X,), (Y,))
    example = lambda batch: cutset.Data((X[:batch],), (Y[:batch],))
    return cutset.Task("line", build, nn.functional.mse_loss, example, lambda split: data)
"""
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
QUICK = [("downpour", "sgd", 1, 1), ("sync", "adam", 2, 2)]
OTHERS = [
    ("downpour", "adam", 2, 1),
    ("downpour:push=2,fetch=2", "sgd", 1, 1),
    ("downpour:overlap=true", "sgd", 1, 1),
    ("sync", "sgd", 1, 1),
    ("ssp", "adam", 1, 1),
    ("averaging:every=1", "sgd", 1, 2),
    ("allreduce", "adam", 1, 2),
    ("hogwild", "sgd", 1, 1),
]


def losses_of_torch(optimizer: str) -> list[float]:
    """Return the loss after each step on all samples, by plain torch."""
    scope: dict[str, Any] = {}
    exec(TASK, scope)
    model, x, y = scope["build"](), scope["X"], scope["Y"]
    rule, losses = OPTIMIZERS[optimizer](model.parameters(), lr=RATE), []
    for _ in range(EPOCHS):
        rule.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        rule.step()
        with torch.no_grad():
            losses.append(float(torch.nn.functional.mse_loss(model(x), y)))
    return losses


@pytest.mark.run
@pytest.mark.parametrize(("method", "optimizer", "machines", "replicas"), with_slow(QUICK, OTHERS))
def test_each_epoch_is_tested_with_what_it_has_trained(
    method: str, optimizer: str, machines: int, replicas: int, tmp_path: Path
) -> None:
    """All replicas together see all samples in a step."""
    file = tmp_path / "line.py"
    file.write_text(TASK)
    options = ["--machines", machines, "--replicas", replicas, "--shards", 2, "--method", method]
    options += ["--optimizer", optimizer, "--lr", RATE, "--epochs", EPOCHS, "--batch", SAMPLES // replicas]
    command = [
        str(CUTSET),
        "train",
        f"{file}:task",
        *map(str, options),
        "--no-baseline",
        "--out",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [event["test_loss"] for event in events if event["event"] == "evaluation"]
    assert found == pytest.approx(losses_of_torch(optimizer), rel=1e-7)
