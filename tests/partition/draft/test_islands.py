"""Which operators are an island: as few as can be, in an order in which they can run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.partition.capture.export import capture
from cutset.partition.ir.graph import Graph, Op
from cutset.partition.operators.island import ISLAND, decode_form

X = torch.randn(6, 4)


def graph_of(forward: Callable[..., Tensor]) -> Graph:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
            self.norm = nn.BatchNorm1d(4)

    Net.forward = forward  # type: ignore[method-assign]
    return capture(Net(), lambda y, t: F.mse_loss(y, t), [X], [X])[0]


def islands(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.target == ISLAND]


def targets(op: Op) -> list[str]:
    return [step.target.split(".")[1] for step in decode_form(op.arguments["form"]).steps]


def test_it_ends_at_the_next_fixed_size() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h + h[x[:, 0] > 0].sum(0))

    graph = graph_of(forward)
    (island,) = islands(graph)
    assert targets(island) == ["index", "sum"]
    assert [op.target.split(".")[1] for op in graph.ops if op.is_cuttable].count("linear") == 2


def test_two_that_have_nothing_to_do_with_each_other_are_two() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.first(x) + x[x[:, 0] > 0].sum(0) + x[x[:, 1] > 0].sum(0)

    assert [targets(op) for op in islands(graph_of(forward))] == [["index", "sum"]] * 2


def test_what_lies_between_two_of_its_operators_is_in_it() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        rows = x[x[:, 0] > 0]
        middle = self.first(rows.sum(0, keepdim=True))  # of a fixed size
        return self.last(x) + (rows * middle).sum(0)

    (island,) = islands(graph_of(forward))
    assert targets(island) == ["index", "sum", "linear", "mul", "sum"]


def test_a_draw_between_two_of_its_draws_is_in_it() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        rows = F.dropout(x[x[:, 0] > 0], 0.5)
        y = F.dropout(self.first(x), 0.5)
        return y + F.dropout(rows, 0.5).sum(0)

    (island,) = islands(graph_of(forward))
    assert targets(island).count("dropout") == 3
    assert island.arguments["draws"]


def test_what_is_added_to_a_sum_does_not_wait_for_the_sum() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for column, layer in enumerate((self.first, self.last)):
            (token,) = torch.where(x[:, column] > 0)
            out.index_add_(0, token, layer(x[token]))
        return out

    graph = graph_of(forward)
    made = {name for op in islands(graph) for name in op.outputs}
    assert len(islands(graph)) == 2
    assert all(made.isdisjoint(op.inputs) for op in islands(graph))
    assert [op.target for op in graph.ops].count("aten.add.Tensor") == 2


def test_statistics_that_it_overwrites_are_told() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.first(x) + self.norm(x[x[:, 0] > 0]).sum(0)

    (island,) = islands(graph_of(forward))
    assert island.writes == ("norm.running_mean", "norm.running_var")


def test_its_flops_follow_from_masks_as_the_model_computes_them() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        largest = x.argmax(-1)
        return self.last(x) + self.first(x[largest == 7]).sum(0) + self.first(x[largest < 4]).sum(0)

    none, every = islands(graph_of(forward))
    assert none.arguments["flops"] == 0
    assert every.arguments["flops"] >= 2 * 6 * 4 * 4  # of the product


def test_a_model_without_dynamic_sizes_has_none() -> None:
    assert islands(graph_of(lambda self, x: self.last(self.first(x)))) == []


def test_an_output_of_no_fixed_size_is_refused_in_words() -> None:
    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x[:, 0] > 0]

    with pytest.raises(BadInput, match="E320: what is read of the model's output has a size that depends on data"):
        capture(Rows(), None, [X])


def test_what_several_add_to_a_sum_is_added_in_pairs() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        out = self.first(x)
        for column in range(4):
            (token,) = torch.where(x[:, column] > 0)
            out = out.index_add(0, token, x[token] * (column + 1))
        return self.last(out)

    graph = graph_of(forward)
    made = {name: op for op in graph.ops for name in op.outputs}
    adds = [op for op in graph.ops if op.target == "aten.add.Tensor"]
    makers = [[made[name].target for name in op.inputs] for op in adds]
    add = "aten.add.Tensor"
    assert makers == [[ISLAND] * 2, [ISLAND] * 2, [add, add], ["aten.linear.default", add]]


def test_a_sum_that_is_read_on_its_way_stays_as_it_is() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        out, between = torch.zeros_like(x), []
        for column in range(3):
            (token,) = torch.where(x[:, column] > 0)
            out = out.index_add(0, token, x[token])
            between.append(out)
        return self.last(sum(between))

    adds = [op for op in graph_of(forward).ops if op.target == "aten.add.Tensor"]
    assert not any("pair" in name for op in adds for name in op.outputs)
