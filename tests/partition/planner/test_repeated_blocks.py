"""Blocks that a graph repeats: found whatever lies around them, and a graph without some is that of the shorter net."""

import itertools
from collections.abc import Callable
from functools import cache

import pytest
import torch
from example_graphs import Mlp
from torch import Tensor, nn

from cutset.partition.capture.export import capture
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.ir.graph import Graph
from cutset.partition.planner.planner import find_plan
from cutset.partition.planner.repeated_blocks import find_repeated_blocks, shorten_graph

WIDTH = 16


class Attention(nn.Module):
    """A residual layer of attention over a whole sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(self.norm(x)).chunk(3, -1)
        return x + self.out(torch.softmax(q @ k.transpose(-1, -2), -1) @ v)


class Convolution(nn.Module):
    """A residual convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.convolution(x))


class Stack(nn.Module):
    """Layers between a first and a last one."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.first, self.layers, self.last = nn.Linear(WIDTH, WIDTH), nn.ModuleList(layers), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


class Shared(Stack):
    """All layers have the same weights."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(6):
            x = self.layers[0](x)
        return self.last(x)


class Ladder(Stack):
    """What each layer makes is read again at the end, as in a U-net."""

    def forward(self, x: Tensor) -> Tensor:
        x, made = self.first(x), list[Tensor]()
        for layer in self.layers:
            x = layer(x)
            made.append(x)
        return self.last(sum(made[:-1], x))


def graph_of(model: nn.Module) -> Graph:
    return capture(model, lambda y: y.square().mean(), [torch.zeros(2, 8, WIDTH)])[0]


def mlps(count: int) -> list[nn.Module]:
    return [Mlp(WIDTH, 32) for _ in range(count)]


def alternating(count: int) -> list[nn.Module]:
    return [layer for _ in range(count) for layer in (Mlp(WIDTH, 32), Attention())]


@cache
def stack(make: Callable[[int], list[nn.Module]], count: int) -> Graph:
    return graph_of(Stack(*make(count)))


@pytest.mark.parametrize("make", [mlps, alternating])
@pytest.mark.parametrize("kept", [2, 3])
@pytest.mark.run
def test_without_some_blocks_a_graph_is_that_of_a_net_with_fewer(
    make: Callable[[int], list[nn.Module]], kept: int
) -> None:
    graph = stack(make, 6)
    (blocks,) = find_repeated_blocks(graph)
    assert blocks.count == 6
    shorter, real = shorten_graph(graph, {blocks: kept}), stack(make, kept)
    assert shorter is not None
    assert [op.target for op in shorter.ops] == [op.target for op in real.ops]
    assert [op.nest.box for op in shorter.ops] == [op.nest.box for op in real.ops]
    assert sum(op.flops for op in shorter.ops) == sum(op.flops for op in real.ops)
    assert sorted(t.shape for t in shorter.parameters) == sorted(t.shape for t in real.parameters)
    made = {name for op in shorter.ops for name in op.outputs}
    assert made.issuperset(name for op in shorter.ops for name in op.inputs if shorter.tensors[name].kind == "value")
    for prefix in ("mesh 2x2", "slices"):
        step_s = [
            find_plan(one, uniform_cluster(4), candidates=prefix).winner.simulation.step_s for one in (shorter, real)
        ]
        assert step_s[0] == pytest.approx(step_s[1], rel=1e-9)


@pytest.mark.run
def test_blocks_of_two_kinds_are_found_apart() -> None:
    graph = graph_of(Stack(*mlps(5), *(Attention() for _ in range(4)), *(Convolution() for _ in range(7))))
    found = find_repeated_blocks(graph)
    assert [blocks.count for blocks in found] == [5, 4, 7]
    assert all(a.stop <= b.start for a, b in itertools.pairwise(found))
    shorter = shorten_graph(graph, dict.fromkeys(found, 2))
    real = graph_of(Stack(*mlps(2), Attention(), Attention(), Convolution(), Convolution()))
    assert shorter is not None
    assert [op.target for op in shorter.ops] == [op.target for op in real.ops]


def test_few_small_repeats_do_not_hide_a_larger_one() -> None:
    few = [nn.Sequential(*(nn.Tanh() for _ in range(5)))]
    found = find_repeated_blocks(graph_of(Stack(*few, *alternating(5))))
    assert [blocks.count for blocks in found] == [5, 5]
    assert found[0].period == 1


def test_blocks_may_share_their_weights() -> None:
    graph = graph_of(Shared(*mlps(1)))
    (blocks,) = find_repeated_blocks(graph)
    assert blocks.count == 6
    shorter = shorten_graph(graph, {blocks: 2})
    assert shorter is not None
    assert len(shorter.parameters) == len(graph.parameters)


def test_what_is_read_elsewhere_is_not_left_out() -> None:
    graph = graph_of(Ladder(*mlps(6)))
    found = find_repeated_blocks(graph)
    assert found
    for blocks in found:
        assert shorten_graph(graph, {blocks: 2}) is None


@pytest.mark.parametrize(
    "layers",
    [
        [Mlp(WIDTH, hidden) for hidden in (8, 16, 24, 32, 40)],  # other sizes
        mlps(3),  # too few
    ],
)
def test_what_only_looks_alike_or_is_short_is_left_alone(layers: list[nn.Module]) -> None:
    assert find_repeated_blocks(graph_of(Stack(*layers))) == []
