"""Layers that look alike and count their calls where nothing shows it at once: each counts, also those of a chain."""

from collections.abc import Callable

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


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layer", [InInnerClass, ByHelper, ByName, InGlobals, InImport])
def test_every_call_counts(layer: type[Counting], training: bool) -> None:
    graph = assert_same_with_reuse(lambda: nn.Sequential(*(layer() for _ in range(DEPTH))), training=training)
    assert sum(op.target == "aten.relu.default" for op in graph.ops) == 1


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("first", [0, 1])
def test_a_chain_may_depend_on_how_many_layers_another_has(training: bool, first: int) -> None:
    assert_same_with_reuse(lambda: TwoChains(first), training=training)
