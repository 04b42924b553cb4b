"""The first training step of a task in plain torch, as a program of its own: what `cutset bench start` compares with.

It loads the task and its samples, builds the model, and makes one step of SGD: nothing can be trained sooner.
"""

import sys

import torch

from ...samples.read_samples import read_split
from ...task.load_task import TaskSpec, build_model, load_task


def make_first_step(name: str) -> float:
    """Make one step on the first batch, and return its loss."""
    task = load_task(TaskSpec(name))
    model, batch = build_model(task, seed=0), read_split(task, "train").rows(torch.arange(task.batch))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = task.loss(model(*batch.inputs), *batch.targets)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach())


if __name__ == "__main__":
    make_first_step(sys.argv[1])
