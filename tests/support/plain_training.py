"""Plain torch with the samples and the random numbers of a run of one replica."""

import torch
from torch import nn

from cutset.models.sample_stream import SampleStream
from cutset.models.task import Task
from cutset.runtime.worker.dropout_masks import mask_seed
from cutset.tools.task.load_task import build_model


def train_plainly(task: Task, *, seed: int, lr: float, epochs: int) -> nn.Module:
    """The model after as many epochs of SGD, without cutset's processes."""
    assert task.data is not None
    model, data = build_model(task, seed=seed).train(), task.data("train")
    stream = SampleStream(len(data), batch=task.batch, seed=seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(epochs * len(data) // task.batch):
        batch = data.rows(stream.indices(step))
        optimiser.zero_grad()
        torch.manual_seed(mask_seed(seed, step, 0))
        task.loss(model(*batch.inputs), *batch.targets).backward()
        optimiser.step()
    return model
