"""Operators are alike that differ in names alone: those of layers that are alike, and no others."""

from typing import Any

import msgspec
import pytest
import torch
from example_graphs import chain
from random_nets import random_graph
from torch import Tensor, nn

from cutset.partition.capture.export import capture
from cutset.partition.cluster.cost_model import CostModel
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.ir.graph import Graph, Op, Operand
from cutset.partition.ir.like_operators import LikeOperators
from cutset.partition.layouts.layout_search import mesh_of_machines, search_layouts
from cutset.partition.layouts.layout_space import LayoutSpace, layout_space
from cutset.partition.mincut.block_grid import BlockGrid, BlockReads, find_reads
from cutset.partition.mincut.blocks import Blocks
from cutset.partition.planner.planner import find_plan

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


class NoneAlike(LikeOperators):
    """Every operator is like itself alone."""

    def __init__(self, tensors: object) -> None:
        self._names: dict[str, int] = {}

    def number(self, op: Op) -> int:
        return self._names.setdefault(op.name, len(self._names))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.run
def test_a_plan_does_not_depend_on_what_is_found_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net = random_graph(seed)
    found = find_plan(net, uniform_cluster(4))
    monkeypatch.setattr("cutset.partition.cluster.cost_model.LikeOperators", NoneAlike)
    monkeypatch.setattr(Blocks, "find_reads", find_reads_anew)
    alone = find_plan(net, uniform_cluster(4))
    assert found.winner.cut == alone.winner.cut
    assert [(plan.name, plan.simulation.step_s) for plan in found.plans] == [
        (plan.name, plan.simulation.step_s) for plan in alone.plans
    ]


def find_reads_anew(blocks: Blocks, reader: Op, operand: Operand, cells: BlockGrid) -> BlockReads:
    """`Blocks.find_reads` without what it remembers."""
    extents = blocks.graph.tensors[operand.tensor].extents
    reads = find_reads(cells, reader.nest, operand, blocks.grids[reader.name], extents)
    return BlockReads(reads.cells, reads.blocks + blocks.first[reader.name], reads.points)


def test_layers_alike_take_no_longer_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = list[int]()
    for depth in (2, 6):
        made = list[str]()

        def count(op: Op, *rest: Any, made: list[str] = made) -> LayoutSpace:
            made.append(op.name)
            return layout_space(op, *rest)

        monkeypatch.setattr("cutset.partition.layouts.layout_search.layout_space", count)
        net, cluster = chain(8, *[16] * depth, 8), uniform_cluster(4)
        mesh = mesh_of_machines(cluster, range(4), (4,))
        search_layouts(net, cluster, lambda op, mesh=mesh: mesh)
        counts.append(len(made))
    assert counts[0] == counts[1]
