"""Tasks of which a part cannot be cut: experts by loops, a branch of the model, a branch of the loss."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from data_branching import Branch, Net, harder
from dynamic_zoo import Experts
from torch import Tensor, nn

import cutset


def make(model: Callable[[], nn.Module], loss: Callable[..., Tensor], width: int) -> cutset.Task:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, width, generator=draw), torch.randint(0, 5, (64,), generator=draw)
    data = {"train": cutset.Data((x[:48],), (y[:48],)), "test": cutset.Data((x[48:],), (y[48:],))}
    return cutset.Task("islands", model, loss, lambda b: data["train"].rows(torch.arange(b)), data.__getitem__, batch=8)


def experts() -> cutset.Task:
    return make(Experts, F.cross_entropy, 8)


def branch() -> cutset.Task:
    return make(Branch, F.cross_entropy, 6)


def loss() -> cutset.Task:
    return make(Net, harder, 6)


def lazy() -> cutset.Task:
    return make(lambda: nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(5)), F.cross_entropy, 6)
