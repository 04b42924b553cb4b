"""Arguments are bound once: operands go where the model has them, and torch gets what is not its default alone."""

import msgspec
import pytest
import torch
from rule_calls import drafted, given, x

from cutset.partition.draft.axis_inference import build_graph
from cutset.partition.ir.arguments import find_overload
from cutset.partition.ir.graph import Op
from cutset.partition.operators import bound_arguments
from cutset.partition.operators.bound_arguments import BoundArguments


def operator(target: str, *args: object, **more: object) -> Op:
    return build_graph(drafted(given(target, *args, **more), False)[0]).ops[-1]


def test_operands_go_into_lists_and_between_plain_arguments() -> None:
    op = operator("cat", [x(2, 3), x(4, 3)], 0)
    one, two = torch.randn(2, 3), torch.randn(4, 3)
    bound = BoundArguments(op, op.nest.box, ["tensors[1]", "tensors[0]"])
    assert torch.equal(bound.prepare_call()([two, one]), torch.cat([one, two]))
    filled = bound.fill([two, one])
    assert filled["tensors"] == [one, two]
    assert filled["dim"] == 0
    assert bound.fill([one, two])["tensors"] == [two, one], "what is plain was not written"


def test_a_bias_that_another_part_adds_is_left_out() -> None:
    op = operator("linear", x(2, 6), x(3, 6), x(3))
    later = (*op.nest.box[:-1], (2, 6))
    names = ["input", "weight", "bias"]
    a, w, b = torch.randn(2, 6), torch.randn(3, 6), torch.randn(3)
    call = BoundArguments(op, later, names).prepare_call()
    assert torch.equal(call([a[:, 2:], w[:, 2:], None]), a[:, 2:] @ w[:, 2:].t())
    whole = BoundArguments(op, op.nest.box, names).prepare_call()
    assert torch.equal(whole([a, w, b]), torch.nn.functional.linear(a, w, b))


@pytest.mark.parametrize(
    ("target", "args", "passed"),
    [("relu", (), 1), ("softmax.int", (1,), 2), ("sum.dim_IntList", ([1],), 2), ("sum.dim_IntList", ([1], True), 3)],
)
def test_defaults_are_not_passed(
    target: str, args: tuple[object, ...], passed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = operator(f"aten.{target}" if "." in target else target, x(3, 4), *args)
    real, seen = find_overload(op.target), list[tuple[object, ...]]()

    class Watched:
        _schema = real._schema

        def __call__(self, *given: object, **named: object) -> torch.Tensor:
            seen.append((*given, *named))
            return real(*given, **named)

    found = bound_arguments.list_parameters(op.target)
    monkeypatch.setattr(bound_arguments, "list_parameters", lambda target: (Watched(), *found[1:]))
    tensor = torch.randn(3, 4)
    result = BoundArguments(op, op.nest.box, ["self"]).prepare_call()([tensor])
    assert torch.equal(result, real(tensor, *args))
    assert [len(call) for call in seen] == [passed]


def test_of_several_results_one_is_meant() -> None:
    op = operator("topk", x(4, 5), 2, output=1)
    tensor = torch.randn(4, 5)
    assert torch.equal(BoundArguments(op, op.nest.box, ["self"]).prepare_call()([tensor]), tensor.topk(2)[1])
    assert msgspec.structs.asdict(op)["arguments"]["@output"] == 1
