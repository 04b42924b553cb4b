"""Gives parameters to modules that learn their sizes from the first batch, such as `nn.LazyLinear`."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from ...models.task import Data, call_by_name


def is_lazy(model: nn.Module) -> bool:
    """Whether a model has modules that do not know their sizes yet."""
    return any(isinstance(tensor, UninitializedTensorMixin) for tensor in (*model.parameters(), *model.buffers()))


def initialise_lazy_modules(model: nn.Module, example: Callable[[], Data], *, seed: int, device: str) -> nn.Module:
    """Run a model once on the example batch where it has such modules, and return it."""
    if not is_lazy(model):
        return model
    batch, training = example(), model.training
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        call_by_name(model.eval(), [tensor.to(device) for tensor in batch.inputs], batch.names)
    return model.train(training)
