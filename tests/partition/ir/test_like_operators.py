"""Operators are alike that differ in names alone: those of layers that are alike, and no others."""

import msgspec
import pytest
import torch
from torch import Tensor, nn

from cutset.partition.capture.export import capture
from cutset.partition.cluster.cost_model import CostModel
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.ir.graph import Graph
from cutset.partition.ir.like_operators import LikeOperators

DEPTH = 3


class Deep(nn.Module):
    """Layers alike between two that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 8), *(nn.Sequential(nn.Linear(8, 8), nn.ELU(alpha=0.5)) for _ in range(DEPTH)), nn.ELU()
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def mean_square(output: Tensor, target: Tensor) -> Tensor:
    """The loss."""
    return (output - target).square().mean()


@pytest.fixture(scope="module")
def graph() -> Graph:
    """The graph of `Deep`."""
    found, _ = capture(Deep(), mean_square, (torch.zeros(4, 6),), (torch.zeros(4, 8),))
    return found


def test_operators_of_like_layers_are_alike(graph: Graph) -> None:
    like = LikeOperators(graph.tensors)
    linear, elu = (
        [like.number(op) for op in graph.ops if op.target == f"aten.{name}.default"] for name in ("linear", "elu")
    )
    assert (len(linear), len(elu)) == (1 + DEPTH, DEPTH + 1)
    assert len(set(linear[1:])) == 1  # the first layer reads 6 units and has no gradient to return
    assert linear[0] not in linear[1:]
    assert len(set(elu[:-1])) == 1
    assert elu[-1] not in elu[:-1]  # an argument of its own


def test_every_property_of_a_tensor_counts(graph: Graph) -> None:
    op = next(op for op in graph.ops if op.target == "aten.linear.default")
    info = graph.tensors[op.outputs[0]]
    others = [{"gradient": not info.gradient}, {"dtype": "float64"}, {"density": 0.5}, {"kind": "buffer"}]
    described = [msgspec.structs.replace(info, **other) for other in others]
    names = [op.name, *(f"other {n}" for n in range(len(others)))]
    tensors = dict(graph.tensors) | {f"t{n}": tensor for n, tensor in enumerate(described)}
    like = LikeOperators(tensors)
    ops = [op, *(msgspec.structs.replace(op, name=name, outputs=(f"t{n}",)) for n, name in enumerate(names[1:]))]
    assert len({like.number(each) for each in ops}) == len(ops)


def test_like_operators_cost_the_same(graph: Graph) -> None:
    costs, (machine,) = CostModel(graph.tensors), uniform_cluster(1).machines
    by_number = dict[int, set[tuple[float, float]]]()
    for op in graph.ops:
        alone = CostModel(graph.tensors).seconds(op, op.nest.box, machine)
        assert costs.seconds(op, op.nest.box, machine) == alone
        by_number.setdefault(costs.like_operators.number(op), set()).add(alone)
    assert len(by_number) < len(graph.ops)
    assert all(len(seconds) == 1 for seconds in by_number.values())
