"""Running one box: what is added once, what draws, and operators that have no rule."""

import torch
from rule_calls import run_box
from torch import Tensor, nn

from cutset.partition.capture.export import capture
from cutset.partition.ir.graph import Graph, Op
from cutset.partition.ir.random_ops import RANDOM_OPERAND, random_tensor_name
from cutset.partition.operators.kernel import advance_generator


def last(model: nn.Module, *inputs: Tensor, name: str) -> tuple[Graph, Op]:
    graph, _ = capture(model, lambda y: y.sum(), inputs)
    return graph, next(op for op in graph.ops if op.target.startswith(f"aten.{name}."))


class Calls(nn.Module):
    def __init__(self, function) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def test_a_bias_is_added_by_the_first_part_of_a_sum() -> None:
    layer = nn.Linear(4, 3)
    x = torch.randn(2, 4)
    graph, op = last(layer, x, name="linear")
    sizes = [loop.size for loop in op.nest.loops]
    assert sizes == [2, 3, 4]
    parts = []
    for low, high in ((0, 1), (1, 4)):
        operands = {
            "input": x[:, low:high],
            "weight": layer.weight[:, low:high],
            "bias": layer.bias if not low else None,
        }
        parts += run_box(op, ((0, 2), (0, 3), (low, high)), operands, graph.tensors)
    torch.testing.assert_close(parts[0] + parts[1], layer(x))
    torch.testing.assert_close(parts[1], x[:, 1:] @ layer.weight[:, 1:].t())


def test_an_operator_without_a_rule_gives_all_its_results() -> None:
    x = torch.randn(3, 5)
    graph, op = last(Calls(lambda x: torch.mul(*torch.frexp(x))), x, name="frexp")
    mantissa, exponent = run_box(op, op.nest.box, {"self": x}, graph.tensors)
    assert torch.equal(mantissa, x.frexp()[0])
    assert torch.equal(exponent, x.frexp()[1])


def test_of_several_results_an_operator_with_a_rule_gives_the_one_it_stands_for() -> None:
    x = torch.randn(4, 5)
    graph, op = last(Calls(lambda x: x.topk(2, -1)[1]), x, name="topk")
    (indices,) = run_box(op, ((1, 3), (0, 2)), {"self": x[1:3]}, graph.tensors)
    assert torch.equal(indices, x[1:3].topk(2, -1)[1])


def test_an_operator_without_a_rule_sees_its_input_laid_out_as_in_the_trace() -> None:
    graph, op = last(Calls(lambda x: torch.rand_like(x.t()) + x.t()), torch.zeros(3, 5), name="rand_like")
    x = torch.zeros(5, 3)  # as it comes over a network: contiguous
    state = torch.Generator().manual_seed(1).get_state()
    (found,) = run_box(op, op.nest.box, {"self": x, RANDOM_OPERAND: state}, graph.tensors)
    assert torch.equal(found, torch.rand(3, 5, generator=torch.Generator().manual_seed(1)).t())


def test_advancing_the_generator_draws_as_much_as_the_operator() -> None:
    layer = nn.LSTM(4, 3, 2, dropout=0.5)
    x = torch.randn(5, 2, 4)
    graph, op = last(Calls(lambda x: x), x, name="sum")
    assert random_tensor_name(op.name) not in graph.tensors
    graph, op = last(nn.Sequential(layer, Calls(lambda out: out[0])), x, name="lstm")
    state = torch.Generator().manual_seed(3).get_state()
    with torch.random.fork_rng():
        torch.set_rng_state(state)
        layer(x)
        expected = torch.get_rng_state()
    assert torch.equal(advance_generator(op, state, graph.tensors), expected)
