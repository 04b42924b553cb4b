"""Models of many kinds, cut over two processes by the command, have the losses of plain torch for fifty steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kinds import task_of
from torch import nn

from cutset.models.sample_stream import SampleStream
from cutset.models.task import Task
from cutset.runtime.worker.dropout_masks import mask_seed
from cutset.tools.task.load_task import build_model

CUTSET = Path(sys.executable).with_name("cutset")
HERE = Path(__file__).parent
STEPS, LR, SEED = 50, 0.02, 3
KINDS = [
    "LSTM language model",
    "packed LSTM",
    "LSTM cells in a loop",
    "GCN",
    "GATv2",
    "FNO",
    "S4",
    "padding mask",
    "boolean index, mean",
    "nonzero",
    "sampling, torch.distributions",
    "custom autograd function",
    "spectral_norm",
    "LazyLinear",
    "cache in place",
    "own statistics, assigned",
]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # an encoder's, in evaluation
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_have_the_losses_of_one(kind: str, tmp_path: Path) -> None:
    options = ["--machines", 2, "--optimizer", "sgd", "--lr", LR, "--epochs", STEPS, "--seed", SEED, "--no-baseline"]
    task = f"{HERE / 'kinds.py'}:task_of(kind={kind!r})"
    command = [str(CUTSET), *map(str, ["train", task, *options, "--json", "--out", tmp_path])]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    links = json.loads(done.stdout)["links"]
    assert {link["source"] for link in links if link["bytes"]} >= {"worker-0.0", "worker-0.1"}
    events = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    found = [event["test_loss"] for event in events if event["event"] == "evaluation"]
    expected = losses_of_one_process(task_of(kind))
    assert len(found) == STEPS
    assert expected[-1] < expected[0]
    assert found == pytest.approx(expected, rel=1e-9)


def losses_of_one_process(task: Task) -> list[float]:
    """The loss in evaluation after each step of SGD in plain torch."""
    assert task.data is not None
    model, data = build_model(task, seed=SEED), task.data("train")
    stream = SampleStream(len(data), batch=len(data), seed=SEED)
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    losses = []
    for step in range(STEPS):
        optimiser.zero_grad()
        torch.manual_seed(mask_seed(SEED, step, 0))
        batch = data.rows(stream.indices(step))  # all of them, in the order in which the run has them
        task.loss(model.train()(*batch.inputs), *batch.targets).backward()
        optimiser.step()
        losses.append(evaluate(model, task))
    return losses


@torch.no_grad()
def evaluate(model: nn.Module, task: Task) -> float:
    """The loss of the batch in evaluation."""
    assert task.data is not None
    data = task.data("test")
    return float(task.loss(model.eval()(*data.inputs), *data.targets))
