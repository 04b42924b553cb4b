"""`Outside`: a model that others wrote, small enough to train in a test, and at the size it is used at."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import Case

from cutset.partition.capture.export import capture
from cutset.partition.ir.graph import Graph


@dataclass(frozen=True)
class Outside:
    """small: the model with few channels and a batch that runs at once; full: as it is published.

    sizes: shapes of the batch for `full`, images or (tokens) numbers; package: what must be installed.
    single: whether plain torch itself holds the tolerance in float32, so that the cut can be asked to.
    double: whether a model of float64 computes in float64 throughout.
    light: cheap enough for every change.
    """

    small: Case
    full: Callable[[], nn.Module]
    sizes: Sequence[int]
    target: Sequence[int]
    package: str = ""
    single: bool = True
    double: bool = True
    light: bool = False


def need(package: str) -> None:
    """Skip where a package is missing."""
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make test-outside installs it")


def full_graph(outside: Outside) -> Graph:
    """The training graph at the published size, captured without a weight."""
    with torch.device("meta"):
        model = outside.full()
        images = len(outside.sizes) == 4
        batch = torch.empty(outside.sizes) if images else torch.empty(outside.sizes, dtype=torch.int64)
        target = torch.empty(outside.target, dtype=torch.int64)
    return capture(model.train(), outside.small.loss, (batch,), (target,))[0]


def image_loss(output: object, target: Tensor) -> Tensor:
    """Cross entropy; the auxiliary heads that inception nets have count less."""
    if isinstance(output, Tensor):
        return F.cross_entropy(output, target)
    first, *others = [o for o in output if isinstance(o, Tensor)]  # type: ignore[attr-defined]
    return F.cross_entropy(first, target) + 0.4 * sum(F.cross_entropy(o, target) for o in others)


class Logits(nn.Module):
    """A model of transformers whose output is the tensor of its logits."""

    def __init__(self, inner: nn.Module, argument: str) -> None:
        super().__init__()
        self.inner, self.argument = inner, argument

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(**{self.argument: x}).logits
        return out
