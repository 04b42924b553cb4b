"""The digits task with batch norms, whose running statistics no shard holds."""

from dataclasses import replace

from torch import nn

from cutset.models import digits
from cutset.models.task import Task


def task() -> Task:
    return replace(digits(), name="normed_digits", model=mlp)


def mlp() -> nn.Module:
    layers = [(64, 128), (128, 64)]
    hidden = [part for n, m in layers for part in (nn.Linear(n, m), nn.BatchNorm1d(m), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(64, 10))
