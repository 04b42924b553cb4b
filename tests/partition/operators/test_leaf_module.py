"""The operator that stands for a leaf module, and the call of the user's module."""

import msgspec
import pytest
import torch
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.partition.ir.arguments import find_overload
from cutset.partition.ir.random_ops import GENERATOR_BYTES, is_random
from cutset.partition.operators.leaf_module import (
    LEAF_MODULE,
    LeafForm,
    LeafModule,
    TensorSpec,
    decode_form,
    run_leaf_module,
    tensor_spec,
    trace_leaf_module,
)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.again = self.weight
        self.register_buffer("calls", torch.zeros(()))
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor, *, scale: float) -> tuple[Tensor, int]:
        self.calls += 1
        self.weight_used = self.weight
        return nn.functional.dropout(x * self.again * scale, 0.5), 7


CALL = (
    '[1, {"type": "builtins.tuple", "context": "null", "children_spec": ['
    '{"type": "builtins.tuple", "context": "null", "children_spec": ['
    '{"type": null, "context": null, "children_spec": []}]}, '
    '{"type": "builtins.dict", "context": "[\\"scale\\"]", "children_spec": ['
    '{"type": null, "context": null, "children_spec": []}]}]}]'
)
FORM = LeafForm(
    states=("weight", "calls"),
    call=CALL,
    leaves=({"tensor": 2}, 0.5),
    returns=({"tensor": 0}, 7),
    tensors=(TensorSpec((2, 3), (3, 1), "float32"), TensorSpec((), (), "float32")),
    overwritten=(1,),
)
X = torch.ones(2, 3)


def arguments(operands: list[Tensor], form: LeafForm = FORM) -> dict[str, object]:
    return {"name": "block", "operands": operands, "form": msgspec.json.encode(form).decode()}


def test_states_go_by_their_first_name_and_ties_stay_tied() -> None:
    module = Counts()
    leaf = LeafModule(module)
    assert list(leaf.states) == ["weight", "calls", "inner.weight", "inner.bias"]
    other = torch.full((3,), 2.0)
    result = leaf.call(["weight", "calls"], [other, torch.zeros(()), X], (X,), {"scale": 1.0})
    assert module.again is other
    assert result.changed == (1,)
    assert result.last[1] == 1


def test_a_traced_leaf_module_gives_results_without_values_and_the_state_of_the_generator() -> None:
    with torch.device("meta"):
        operands = [torch.empty(3, requires_grad=True), torch.empty(()), torch.empty(2, 3)]
    results = trace_leaf_module("block", operands, FORM, draws=True, flops=5)
    assert [tuple(t.shape) for t in results] == [(2, 3), (), (GENERATOR_BYTES,)]
    assert all(t.is_meta for t in results)
    assert len(trace_leaf_module("block", operands, FORM, draws=False, flops=5)) == 2
    assert find_overload(LEAF_MODULE)._schema.name == "cutset::leaf_module"
    assert [is_random(LEAF_MODULE, {"draws": flag}) for flag in (True, False)] == [True, False]


def test_a_run_gives_results_overwritten_operands_and_the_state_after() -> None:
    leaf, calls = LeafModule(Counts()), torch.zeros(())
    state = torch.Generator().manual_seed(3).get_state()
    y, last, after = run_leaf_module(leaf, arguments([torch.full((3,), 2.0), calls, X]), state)
    with torch.random.fork_rng():
        torch.set_rng_state(state)
        assert torch.equal(y, nn.functional.dropout(X, 0.5))
        assert torch.equal(after, torch.get_rng_state())
    assert (last.item(), calls.item()) == (1.0, 0.0)  # operands are not touched


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"overwritten": (), "tensors": FORM.tensors[:1]}, "overwrites its calls"),
        ({"returns": ({"tensor": 0}, 8)}, r"returns \[7\] beside its tensors; in its trial runs it returned \[8\]"),
        (
            {"tensors": (TensorSpec((2, 4), (4, 1), "float32"), FORM.tensors[1])},
            r"returns float32\[2, 3\]; in its trial",
        ),
    ],
)
def test_a_run_unlike_the_trial_runs_is_refused(change: dict[str, object], message: str) -> None:
    form = msgspec.structs.replace(FORM, **change)
    with pytest.raises(BadInput, match=f"E327: the leaf module block {message}"):
        run_leaf_module(
            LeafModule(Counts()), arguments([torch.ones(3), torch.zeros(()), X], form), torch.get_rng_state()
        )


def test_a_leaf_module_that_drew_in_no_trial_may_not_draw() -> None:
    with pytest.raises(BadInput, match="draws random numbers, which it did not in its trial runs"):
        run_leaf_module(LeafModule(Counts()), arguments([torch.ones(3), torch.zeros(()), X]), None)


def test_a_form_is_plain_data() -> None:
    assert decode_form(msgspec.json.encode(FORM).decode()) == FORM
    assert tensor_spec(torch.zeros(2, 3).t()) == TensorSpec((3, 2), (1, 3), "float32")
