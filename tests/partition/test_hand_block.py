"""The operator that stands for a block by hand, and the call of the user's module."""

import msgspec
import pytest
import torch
from torch import Tensor, nn

from cutset.partition.ir.arguments import overload
from cutset.errors import BadInput
from cutset.partition.operators.leaf_module import BLOCK, Form, OwnModule, Shape, form_of, mark, run, shape_of
from cutset.partition.ir.random_ops import GENERATOR_BYTES, draws


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
FORM = Form(
    states=("weight", "calls"),
    call=CALL,
    leaves=({"tensor": 2}, 0.5),
    returns=({"tensor": 0}, 7),
    tensors=(Shape((2, 3), (3, 1), "float32"), Shape((), (), "float32")),
    overwritten=(1,),
)
X = torch.ones(2, 3)


def arguments(operands: list[Tensor], form: Form = FORM) -> dict[str, object]:
    return {"name": "block", "operands": operands, "form": msgspec.json.encode(form).decode()}


def test_states_go_by_their_first_name_and_ties_stay_tied() -> None:
    module = Counts()
    own = OwnModule(module)
    assert list(own.states) == ["weight", "calls", "inner.weight", "inner.bias"]
    other = torch.full((3,), 2.0)
    called = own.call(["weight", "calls"], [other, torch.zeros(()), X], (X,), {"scale": 1.0})
    assert module.again is other
    assert called.changed == (1,)
    assert called.last[1] == 1


def test_a_mark_gives_results_without_values_and_the_state_of_the_generator() -> None:
    with torch.device("meta"):
        operands = [torch.empty(3, requires_grad=True), torch.empty(()), torch.empty(2, 3)]
    results = mark("block", operands, FORM, draws=True, flops=5)
    assert [tuple(t.shape) for t in results] == [(2, 3), (), (GENERATOR_BYTES,)]
    assert all(t.is_meta for t in results)
    assert len(mark("block", operands, FORM, draws=False, flops=5)) == 2
    assert overload(BLOCK)._schema.name == "cutset::block"
    assert [draws(BLOCK, {"draws": flag}) for flag in (True, False)] == [True, False]


def test_a_run_gives_results_overwritten_operands_and_the_state_after() -> None:
    own, calls = OwnModule(Counts()), torch.zeros(())
    state = torch.Generator().manual_seed(3).get_state()
    y, last, after = run(own, arguments([torch.full((3,), 2.0), calls, X]), state)
    with torch.random.fork_rng():
        torch.set_rng_state(state)
        assert torch.equal(y, nn.functional.dropout(X, 0.5))
        assert torch.equal(after, torch.get_rng_state())
    assert (last.item(), calls.item()) == (1.0, 0.0)  # operands are not touched


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"overwritten": (), "tensors": FORM.tensors[:1]}, "overwrites its calls"),
        ({"returns": ({"tensor": 0}, 8)}, r"gives \[7\] beside its tensors; in its trial runs it gave \[8\]"),
        ({"tensors": (Shape((2, 4), (4, 1), "float32"), FORM.tensors[1])}, r"gives float32\[2, 3\]; in its trial"),
    ],
)
def test_a_run_unlike_the_trial_runs_is_refused(change: dict[str, object], said: str) -> None:
    form = msgspec.structs.replace(FORM, **change)
    with pytest.raises(BadInput, match=f"E327: the block by hand block {said}"):
        run(OwnModule(Counts()), arguments([torch.ones(3), torch.zeros(()), X], form), torch.get_rng_state())


def test_a_block_that_should_not_draw_is_watched() -> None:
    with pytest.raises(BadInput, match="draws random numbers, which it did not in its trial runs"):
        run(OwnModule(Counts()), arguments([torch.ones(3), torch.zeros(()), X]), None)


def test_a_form_is_plain_data() -> None:
    assert form_of(msgspec.json.encode(FORM).decode()) == FORM
    assert shape_of(torch.zeros(2, 3).t()) == Shape((3, 2), (1, 3), "float32")
