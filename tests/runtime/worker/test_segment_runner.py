"""Segments, one by one: what enters, what leaves, and gradients that do not share memory by accident."""

import pytest
import torch
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.models.task import Data
from cutset.partition.capture.export import capture
from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.dataflow.cut import Cut, one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.ir.graph import Graph
from cutset.runtime import held_memory
from cutset.runtime.replica.replica import Replica
from cutset.runtime.worker import segment_runner, worker
from cutset.runtime.worker.flat_parameters import FlatParameters
from cutset.runtime.worker.prepared_segment import MicroBatch
from cutset.runtime.worker.program import programs
from cutset.runtime.worker.segment_runner import BatchTensors, SegmentRunner, find_large_segments


def placed(graph: Graph, machine_of: dict[str, int]) -> Cut:
    """Whole operators on the machines named; the others on machine 0."""
    return Cut(2, {op.name: [(op.nest.box, machine_of.get(op.name, 0))] for op in graph.ops})


def summed(y: Tensor) -> Tensor:
    return y.sum()


def test_gradients_that_arrive_twice_do_not_reach_into_each_other() -> None:
    """Backward of a sum hands one and the same gradient to all that was added; then one of them, a, gets more.

    The square of a + d and exp(a) are on machine 1; a, b and d = sin(exp(a)) + b on machine 0. The gradients of a, d
    and b are one tensor, which goes over the in-memory network, and must not change when exp(a) adds to that of a.
    """

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            a, b = x * self.a, x * self.b
            return (a + (torch.sin(torch.exp(a)) + b)).square()

    torch.manual_seed(0)
    x = torch.randn(2, 3)
    graph, _ = capture(Net(), summed, [x])
    cut = placed(graph, {"exp": 1, "add_1": 1, "square": 1, "sum_1": 1})
    model = Net()
    summed(model(x)).backward()
    with Replica(programs(lower_cut(graph, cut), training=True)) as replica:
        replica.load(lambda name: torch.ones(2, 3))
        assert len(replica.workers[1].program.segments) == 2
        replica.step(Data((x,), ()), 0)
        gradients = replica.gradients()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)


def test_memory_of_large_gradients_is_given_back_after_their_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A square of 96 elements and one of 256, which is large, in segments of their own; then bytes for both."""
    squares = nn.Sequential(nn.Linear(12, 8, bias=False), nn.Linear(8, 32, bias=False))
    graph, _ = capture(squares, summed, [torch.ones(2, 12)])
    flow = lower_cut(graph, placed(graph, {"linear_1": 1}))
    returned = list[str]()
    for module in (worker, held_memory):
        monkeypatch.setattr(module, "return_free_memory", lambda: returned.append("memory"))
    for limit, large in ((1 << 30, [0, 0]), (4 * 256, [0, 1]), (4 * 96, [1, 1])):
        monkeypatch.setattr(segment_runner, "LARGE_BYTES", limit)
        both = programs(flow, training=True)
        assert [len(find_large_segments(program)) for program in both] == large
        returned.clear()
        with Replica(both) as replica:
            replica.load(lambda name: torch.ones(squares.get_parameter(name).shape))
            replica.step(Data((torch.ones(2, 12),), ()), 0)
        assert len(returned) == sum(large) + len(both)  # once by each after the first step


def test_memory_that_steps_have_left_free_is_given_back_more_and_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = capture(nn.Linear(4, 4), summed, [torch.ones(2, 4)])
    returned, steps = list[int](), iter(range(20))
    monkeypatch.setattr(held_memory, "return_free_memory", lambda: returned.append(step))
    with Replica(programs(lower_cut(graph, placed(graph, {})), training=True)) as replica:
        replica.load(lambda name: torch.ones(graph.tensors[name].shape))
        for step in steps:
            replica.step(Data((torch.ones(2, 4),), ()), step)
    assert sorted(set(returned)) == [0, 1, 3, 7, 15]


def test_a_piece_that_nothing_depends_on_has_a_gradient_of_zero() -> None:
    """Machine 1 makes the columns that nobody reads, of a weight that is trained otherwise."""
    layer, x = nn.Linear(3, 4), torch.ones(2, 3)
    graph, _ = capture(layer, lambda y: y[:, :2].sum(), [x])
    cut = placed(graph, {})
    linear = next(op for op in graph.ops if "weight" in op.inputs)
    batch, _, features = linear.nest.box
    boxes = [((batch, columns, features), machine) for machine, columns in enumerate(((0, 2), (2, 4)))]
    with Replica(programs(lower_cut(graph, Cut(2, {**cut.boxes, linear.name: boxes})), training=True)) as replica:
        replica.load(lambda name: torch.ones(graph.tensors[name].shape))
        replica.step(Data((x,), ()), 0)
        found = replica.gradients()
    layer(x)[:, :2].sum().backward()
    assert layer.weight.grad is not None
    assert found["weight"].equal(layer.weight.grad)
    assert found["weight"].any(1).tolist() == found["bias"].bool().tolist() == [True, True, False, False]


def test_forward_then_backward_of_one_segment() -> None:
    model = nn.Linear(3, 2)
    graph, constants = capture(model, summed, [torch.ones(4, 3)])
    (program,) = programs(lower_cut(graph, one_machine_cut(graph)), training=True)
    states = FlatParameters(program)
    states.load(collect_state(model, summed, constants).__getitem__)
    runner = SegmentRunner(program, states)
    assert len(program.segments) == 1
    micro = MicroBatch(0, BatchTensors(program).take(Data((torch.ones(4, 3),), ()), slice(0, 4)), {})
    assert runner.forward(micro, 0) == []
    assert micro.loss == pytest.approx(summed(model(torch.ones(4, 3))).item())
    assert micro.made
    runner.backward(micro, 0, 2)
    assert not micro.made
    # d(sum)/d(weight) is the sum over the four rows of ones, of which a half for each of two micro-batches.
    assert states.gradients.tolist() == [2.0] * 8


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (Data((torch.ones(4, 5),), ()), r"input 0 has samples of torch.float32 \(5,\); .* torch.float32 \(3,\)"),
        (Data((torch.ones(4, 3, dtype=torch.float64),), ()), r"input 0 has samples of torch.float64 \(3,\)"),
    ],
)
def test_a_batch_that_the_model_was_not_planned_for_is_refused(batch: Data, said: str) -> None:
    graph, _ = capture(nn.Linear(3, 2), summed, [torch.ones(4, 3)])
    (program,) = programs(lower_cut(graph, one_machine_cut(graph)), training=True)
    with pytest.raises(BadInput, match=f"E343: {said}"):
        BatchTensors(program).take(batch, slice(0, 4))
