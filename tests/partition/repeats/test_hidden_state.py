"""Layers that look alike and count their calls where nothing shows it at once: each counts, also those of a chain."""

import re
from collections.abc import Callable
from typing import Any

import layer_stacks
import pytest
import torch
import torch.nn.functional as F
from layer_stacks import WIDTH, Layer
from torch import Tensor, nn

from cutset.partition.capture.export import capture
from cutset.partition.ir.graph import Graph

DEPTH = 9
X = torch.zeros(4, WIDTH)
calls = 0


class Outer:
    """Has what counts two names away."""

    class Inner:
        """Counts."""

        calls = 0


class Helper:
    """Is what a layer holds, and counts in its class."""

    calls = 0

    def count(self) -> int:
        type(self).calls += 1
        return type(self).calls


class Counting(Layer):
    """Does something else at the sixth call of every run."""

    def __init__(self) -> None:
        super().__init__(p=0.0)
        self.helper = Helper()

    def count(self) -> int:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        return result.relu() if self.count() % DEPTH == 6 else result


class InInnerClass(Counting):
    """Counts two names away."""

    def count(self) -> int:
        Outer.Inner.calls += 1
        return Outer.Inner.calls


class ByHelper(Counting):
    """Has another object count."""

    def count(self) -> int:
        return self.helper.count()


class ByName(Counting):
    """Counts by the name of an attribute."""

    def count(self) -> int:
        setattr(Helper, "calls", Helper.calls + 1)  # noqa: B010  # as code may do it
        return Helper.calls


class InGlobals(Counting):
    """Counts by the name of a global."""

    def count(self) -> int:
        globals()["calls"] += 1
        return calls


class InImport(Counting):
    """Counts in a file that it imports."""

    def count(self) -> int:
        import layer_stacks as stacks

        stacks.COUNT["calls"] += 1
        return stacks.COUNT["calls"]


class ByArgument(Layer):
    """Has a function of torch call one that does something else at its sixth call."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.triplet_margin_with_distance_loss(x, x, x, distance_function=self.measure)

    def measure(self, x: Tensor, y: Tensor) -> Tensor:
        Helper.calls += 1
        difference = (x - y).sum(-1)
        return difference.relu() if Helper.calls % (2 * DEPTH) == 6 else difference  # it is called twice


class Index:
    """Is another number at the sixth time."""

    def __index__(self) -> int:
        Helper.calls += 1
        return int(Helper.calls % DEPTH == 6)


class ByIndex(Layer):
    """Has a function of torch ask an object for a number."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * x[Index()].relu()


class Scale:
    """Is another number at the sixth time, for functions of torch."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Helper.calls += 1
        return float(Helper.calls % DEPTH == 6)


class ByOverride(Layer):
    """Has a tensor of a class of its own change what a function of torch does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.add(Scale(), 1.0)


class Scaled(Layer):
    """Is a layer of another class."""


class TwoChains(nn.Module):
    """Counts the layers of a chain by what they return; those of a second one read the number, the first or not."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.begin = first
        self.first = nn.ModuleList(Layer(p=0.0) for _ in range(DEPTH))
        self.second = nn.ModuleList(Scaled(p=0.0) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        number = 0
        for layer in self.first:
            before, x = x, layer(x)
            number += x is not before
        for layer in self.second[self.begin :]:
            layer.scale = 1 / number
        for layer in self.second:
            x = layer(x)
        return x


def assert_same_with_reuse(make: Callable[[], nn.Module], *, training: bool) -> Graph:
    global calls
    graphs = []
    for reuse in (True, False):
        calls = Helper.calls = Outer.Inner.calls = 0
        layer_stacks.COUNT["calls"] = 0
        criterion = F.mse_loss if training else None
        graphs.append(capture(make(), criterion, (X,), (X,), reuse=reuse, trust=True)[0])
    assert graphs[0] == graphs[1]
    return graphs[0]


def describe_layer(graph: Graph, layer: str) -> str:
    """Return what a layer does, whatever its tensors are called."""
    ops = [op for op in graph.ops if op.module.partition(".")[0] == layer]
    done = [(op.target, sorted((name, value) for name, value in op.arguments.items())) for op in ops]
    return re.sub(r"'tensor': '[^']*'", "tensor", repr(done))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layer", [InInnerClass, ByHelper, ByName, InGlobals, InImport])
@pytest.mark.run
def test_every_call_counts(layer: type[Counting], training: bool) -> None:
    graph = assert_same_with_reuse(lambda: nn.Sequential(*(layer() for _ in range(DEPTH))), training=training)
    assert sum(op.target == "aten.relu.default" for op in graph.ops) == 1


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layer", [ByArgument, ByIndex, ByOverride])
@pytest.mark.run
def test_what_functions_of_torch_call_counts(layer: type[Layer], training: bool) -> None:
    graph = assert_same_with_reuse(lambda: nn.Sequential(*(layer(p=0.0) for _ in range(DEPTH))), training=training)
    done = {describe_layer(graph, str(number)) for number in range(DEPTH)}
    assert len(done) == 2


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.run
def test_a_chain_may_depend_on_how_many_layers_another_has(training: bool, first: int) -> None:
    assert_same_with_reuse(lambda: TwoChains(first), training=training)
