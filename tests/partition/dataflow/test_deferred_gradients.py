"""Which gradients of parameters can be left for later, and what a cut may say of it."""

from dataclasses import replace

import pytest
import torch
from cutting import finest_cut
from example_graphs import chain
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.partition.capture.export import capture
from cutset.partition.dataflow.cut import Cut, one_machine_cut
from cutset.partition.dataflow.deferred_gradients import find_deferrable, find_deferred, order_backward
from cutset.partition.dataflow.lowering import lower_cut
from cutset.runtime.worker.program import programs


class Twice(nn.Module):
    """Runs one layer twice, then another."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.last(self.again(self.again(x)))
        return last


def test_what_is_left_comes_after_the_segment_that_it_was_left_to() -> None:
    own, left = False, True
    assert order_backward(range(3), {}) == [(2, own), (1, own), (0, own)]
    assert order_backward(range(3), {2: 1, 1: 1, 0: 0}) == [
        *((2, own), (1, own), (2, left), (1, left)),
        *((0, own), (0, left)),
    ]
    assert order_backward([3, 7], {7: 3}) == [(7, own), (3, own), (7, left)]


def test_products_can_leave_the_gradients_of_their_parameters() -> None:
    graph = chain(8, 8, 8)
    (own,) = find_deferrable(lower_cut(graph, one_machine_cut(graph))).values()
    assert [i.op for i in own] == [op.name for op in graph.ops if op.sharding_rule == "aten.linear"]


def test_a_layer_that_runs_twice_does_not() -> None:
    graph, _ = capture(Twice(), lambda y: y.square().mean(), [torch.zeros(4, 8)])
    (own,) = find_deferrable(lower_cut(graph, one_machine_cut(graph))).values()
    last = [op.name for op in graph.ops if op.sharding_rule == "aten.linear"][-1]
    assert [i.op for i in own] == [last], "the gradient of the second run holds that of the first"


class Beside(nn.Module):
    """A linear layer of whose weights half is read by another operator, too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight).square().mean() + self.weight[4:].square().mean()


def test_boxes_of_one_operator_leave_all_or_nothing() -> None:
    graph, _ = capture(Beside(), lambda y: y, [torch.zeros(4, 4)])
    linear = next(op for op in graph.ops if op.sharding_rule == "aten.linear")
    boxes = {op.name: [(op.nest.box, 0)] for op in graph.ops}
    boxes[linear.name] = [(((0, 2), (0, 4), (0, 4)), 0), (((2, 4), (0, 8), (0, 4)), 0), (((0, 2), (4, 8), (0, 4)), 1)]
    owners = {"weight": [(((0, 4), (0, 4)), 0), (((4, 8), (0, 4)), 0)]}
    dataflow = lower_cut(graph, Cut(2, boxes, owners=owners))
    on_first = [i for (machine, _), own in find_deferrable(dataflow).items() if machine == 0 for i in own]
    assert on_first == [], "one box reads what another operator reads, and the other one shares its first half"


def test_a_segment_that_is_computed_again_leaves_nothing() -> None:
    graph = chain(8, 8, 8)
    cut = replace(finest_cut(graph, 2), deferred={})
    plain = lower_cut(graph, cut)
    keys = sorted(find_deferrable(plain))
    deferred = {(machine, stage): stage for machine, stage in keys}
    some = replace(cut, deferred=deferred, recomputed=frozenset(keys[:1]))
    assert len(keys) > 1
    assert sorted(find_deferred(lower_cut(graph, some))) == keys[1:]


@pytest.mark.parametrize("wrong", [{(0, 99): 0}, {(7, 0): 0}, {(0, 0): 99}])
def test_what_cannot_be_is_named(wrong: dict[tuple[int, int], int]) -> None:
    graph = chain(8, 8, 8)
    dataflow = lower_cut(graph, replace(finest_cut(graph, 2), deferred=wrong))
    with pytest.raises(BadInput, match=r"E341: machine \d cannot defer gradients of stage"):
        programs(dataflow, training=True)


def test_later_is_after_its_own_backward() -> None:
    graph = chain(8, 8, 8)
    cut = finest_cut(graph, 2)
    stages = sorted(stage for machine, stage in find_deferrable(lower_cut(graph, cut)) if machine == 0)
    assert len(stages) > 1
    with pytest.raises(BadInput, match="E341"):
        find_deferred(lower_cut(graph, replace(cut, deferred={(0, stages[0]): stages[-1]})))
