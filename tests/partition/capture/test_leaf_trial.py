"""What trial runs of a block find out, and which blocks they refuse."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.partition.capture.export import capture
from cutset.partition.capture.leaf_trial_inputs import STYLES
from cutset.partition.ir.graph import Op
from cutset.partition.operators.leaf_module import LEAF_MODULE, LeafForm, decode_form

X, Y = torch.randn(4, 6), torch.randn(4, 6)
Pair = namedtuple("Pair", ["left", "right"])


class Net(nn.Module):
    """What a block may have; its forward pass is the test's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.register_buffer("mean", torch.zeros(6))
        self.outside = [torch.ones(6, requires_grad=True)]
        self.calls = 0


class Holds(nn.Module):
    def __init__(self, forward: Callable[..., Any], around: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.block = type("Made", (Net,), {"forward": forward})()
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        return self.around(self.block, self.first(x))


def block_of(
    forward: Callable[..., Any], around: Callable[..., Tensor] = lambda block, x: block(x), *, training: bool = True
) -> Op:
    """The block of a model with this forward pass."""
    model = Holds(forward, around)
    arguments = (F.mse_loss, [X], [Y]) if training else (None, [X])
    graph, _ = capture(model, *arguments, leaf_modules=["block"])  # type: ignore[arg-type]
    return next(op for op in graph.ops if op.target == LEAF_MODULE)


# What is found out ---------------------------------------------------------------------------------------------------


def test_a_leaf_module_is_one_operator_with_its_states_as_operands() -> None:
    op = block_of(lambda self, x: self.linear(x) if x.sum() > 0 else x)
    states = ["linear.weight", "linear.bias", "norm.weight", "norm.bias", "mean", "norm.running_mean"]
    assert {f"block.{name}" for name in states} < set(op.inputs)
    assert op.inputs[-2:] == ("linear", "leaf_module.random")  # its argument, and the generator's state
    form = decode_form(op.arguments["form"])
    assert next(shape.shape for shape in form.tensors) == (4, 6)
    assert op.module == "block"
    assert op.source.startswith("test_leaf_trial.py:")


def test_flops_are_those_of_the_dearest_way() -> None:
    op = block_of(lambda self, x: self.linear(self.linear(x)) if x.sum() < 0 else x)
    assert op.arguments["flops"] == 2 * (2 * 4 * 6 * 6) + 4 * 6 + 1, "the sum and the comparison, too"


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("forward", "drawn"),
    [
        (lambda self, x: self.linear(x), True),  # there is a dropout, which no run may have met
        (lambda self, x: F.dropout(x, 0.5) if x.abs().max() > 50 else x, True),
        (lambda self, x: torch.rand_like(x) + x if x.sum() == 0 else x, True),
    ],
)
def test_a_leaf_module_draws_if_it_may(forward: Callable[..., Any], drawn: bool) -> None:
    assert block_of(forward).arguments["draws"] is drawn


@pytest.mark.run
def test_a_leaf_module_without_dropout_does_not_draw_and_neither_does_dropout_in_evaluation() -> None:
    def forward(self: Net, x: Tensor) -> Tensor:
        self.drop = nn.Identity()
        return self.linear(x)

    model = Holds(lambda self, x: self.drop(x), lambda block, x: block(x))
    model.block.drop = nn.Identity()
    graph, _ = capture(model, F.mse_loss, [X], [Y], leaf_modules=["block"])
    (op,) = [op for op in graph.ops if op.target == LEAF_MODULE]
    assert op.arguments["draws"] is False
    assert not [name for name in graph.tensors if name.endswith(".random")]
    assert block_of(lambda self, x: self.drop(x), training=False).arguments["draws"] is False


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("forward", "names"),
    [
        (lambda self, x: x, ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]),
        (lambda self, x: (self.mean.add_(1), x)[1], ["mean", "norm.running_mean"]),
        (lambda self, x: (setattr(self, "mean", self.mean + 1), x)[1], ["mean"]),
        (lambda self, x: torch.relu_(x), [5 + 5]),
    ],
)
def test_what_a_leaf_module_overwrites(forward: Callable[..., Any], names: list[Any]) -> None:
    op = block_of(forward)
    form = decode_form(op.arguments["form"])
    found = [form.states[i] if i < len(form.states) else i for i in form.overwritten]
    assert set(names) <= set(found) or max(form.overwritten) == len(form.states)


def with_whole_number(number: int, forward: Callable[..., Any]) -> LeafForm:
    """The form of a block that has a whole number among its states."""
    model = Holds(forward, lambda block, x: block(x))
    model.block.register_buffer("number", torch.tensor(number))
    graph, _ = capture(model, None, [X], leaf_modules=["block"])
    return decode_form(next(op for op in graph.ops if op.target == LEAF_MODULE).arguments["form"])


def test_sizes_that_follow_from_whole_numbers_of_a_leaf_module_are_those_of_its_states() -> None:
    def pad(self: Net, x: Tensor) -> Tensor:
        return F.pad(x, (int(self.number), 0))

    assert [with_whole_number(number, pad).tensors[0].shape for number in (0, 1, 3)] == [(4, 6), (4, 7), (4, 9)]


@pytest.mark.parametrize("begins_with", [0, 1])
def test_a_flag_that_a_leaf_module_overwrites_is_tried_both_ways(begins_with: int) -> None:
    def mark_first(self: Net, x: Tensor) -> Tensor:
        if not self.number:
            self.mean.copy_(x.mean(0))
        self.number.fill_(1 - self.number)
        return x - self.mean

    form = with_whole_number(begins_with, mark_first)
    assert {form.states[i] for i in form.overwritten} == {"mean", "number"}


def test_a_flag_that_only_one_way_of_a_leaf_module_overwrites_is_tried_both_ways() -> None:
    def begin(self: Net, x: Tensor) -> Tensor:
        if self.number:
            return F.pad(x, (1, 0))
        self.number.fill_(1)
        return x

    with pytest.raises(BadInput, match=r"depend on data: float32\[4, 6\]; or float32\[4, 7\]"):
        with_whole_number(0, begin)


def test_evaluation_overwrites_no_statistics() -> None:
    op = block_of(lambda self, x: self.norm(x), training=False)
    assert decode_form(op.arguments["form"]).overwritten == ()


def test_a_leaf_module_that_is_called_alike_twice_is_tried_once() -> None:
    tried = []

    def forward(self: Net, x: Tensor) -> Tensor:
        tried.append(self.calls)
        self.calls += 1
        return self.linear(x)

    block_of(forward, lambda block, x: block(block(x)))
    assert tried == [0] * len(STYLES)  # each time a copy, so that Python state of a run does not show


def test_trial_runs_leave_the_callers_module_and_random_numbers_alone() -> None:
    model = Holds(lambda self, x: (self.mean.add_(1), self.drop(self.norm(x)))[1], lambda block, x: block(x))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    capture(model, F.mse_loss, [X], [Y], leaf_modules=["block"])
    assert torch.equal(torch.get_rng_state(), state)
    assert model.block.calls == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_graph_does_not_depend_on_the_values_of_the_model(device: str) -> None:
    def made() -> nn.Module:
        return Holds(lambda self, x: self.drop(self.norm(x)) if x.sum() > 0 else x, lambda block, x: block(x))

    with torch.device(device):
        other = made()
    digests = {capture(model, F.mse_loss, [X], [Y], leaf_modules=["block"])[0].digest for model in (made(), other)}
    assert len(digests) == 1


# What is refused -----------------------------------------------------------------------------------------------------


@dataclass
class Odd:
    """No container that torch knows, with something that is no plain value."""

    x: Any
    y: Any = None


def with_outside(block: nn.Module, x: Tensor) -> Tensor:
    return block(x + torch.ones(6, requires_grad=True))  # type: ignore[no-any-return]


@pytest.mark.first_cases(5)
@pytest.mark.parametrize(
    ("forward", "around", "said"),
    [
        (lambda self, x: x[x[:, 0] > 0], None, r"results that depend on data: float32\[\d, 6\]; or float32\[\d, 6\]"),
        (lambda self, x: (x, x.sum().item()), None, r"depend on data: float32\[4, 6\], -?[\d.]+; or float32\[4, 6\], "),
        (lambda self, x: (x, int(x.sum() > 0)), None, r"depend on data: float32\[4, 6\], [01]; or "),
        (lambda self, x: (x, x) if x.sum() > 0 else x, None, r"depend on data: float32.*; or float32\[4, 6\]"),
        (lambda self, x: x if x.sum() > 0 else [x], None, r"depend on data: float32\[4, 6\]; or float32\[4, 6\]"),
        (lambda self, x: x if x.sum() > 0 else x.t().contiguous().t(), None, "lays its results out as data has it"),
        (lambda self, x: 3, None, "returns int without a tensor"),
        (lambda self, x: None, None, "returns NoneType without a tensor"),
        (lambda self, x: (x, object()), None, "returns object, not tensors and plain values"),
        (lambda self, x: Odd(x, Odd), None, "returns type, not tensors and plain values"),
        (lambda self, x, y: x, lambda block, x: block(x, Odd(x)), "is called with Odd, not tensors"),
        (lambda self, x, y: x, lambda block, x: block(x, Pair(x, x)), "is called with containers that cannot be sent"),
        (
            lambda self, x, y: y.append(x) or x,
            lambda block, x: block(x, y=[]),
            "changes its argument y, a container of type list",
        ),
        (lambda self, x, y: y.update(a=x + 1) or x, lambda block, x: block(x, {"a": x}), "changes its argument 1, a"),
        (lambda self, x: self.linear(x[:, :5]), None, r"trial inputs of float32\[4, 6\] at .*test_leaf_trial.py"),
        (lambda self, x: {}["missing"], None, "KeyError: 'missing'"),
        (lambda self, x: x * self.outside[0], None, "uses a tensor from outside of it that asks for a gradient"),
        (lambda self, x: x, with_outside, "is called with a tensor that asks for a gradient and is no parameter"),
    ],
)
def test_a_leaf_module_that_cannot_be_one_is_refused_by_name(
    forward: Callable[..., Any], around: Callable[..., Tensor] | None, said: str
) -> None:
    with pytest.raises(BadInput, match=f"^E326: the leaf module block .*{said}") as caught:
        block_of(forward, around or (lambda block, x: block(x)))
    assert "--machines 1" in caught.value.fix


def left_from_outside(block: Net, x: Tensor) -> Tensor:
    block.left = [x * 2]  # type: ignore[assignment]
    return block(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("forward", "around"),
    [
        (lambda self, x: x + self.left[0], left_from_outside),
        (lambda self, x: x + self.others[0](x), lambda block, x: block(x)),
        (lambda self, x: x + self.others[0].bias.detach(), lambda block, x: block(x)),
    ],
)
def test_a_leaf_module_that_uses_what_is_not_its_own_is_refused(
    forward: Callable[..., Any], around: Callable[..., Tensor]
) -> None:
    model = Holds(forward, around)
    model.block.others = [model.first]
    with pytest.raises(BadInput, match=r"uses a tensor that is not its own\n  fix: pass it as an argument"):
        capture(model, F.mse_loss, [X], [Y], leaf_modules=["block"])


def test_what_is_left_in_a_leaf_module_and_not_used_does_no_harm() -> None:
    assert block_of(lambda self, x: self.linear(x), left_from_outside)


def test_a_leaf_module_that_overwrites_a_parameter_is_refused() -> None:
    def forward(self: Net, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.weight.clamp_(-0.01, 0.01)
        return self.linear(x)

    with pytest.raises(BadInput, match=r"E326: the leaf module block overwrites its linear\.weight, a parameter"):
        block_of(forward)


def test_values_that_suit_one_run_only_are_no_fault() -> None:
    def forward(self: Net, x: Tensor) -> Tensor:
        assert x.min() >= 0
        return self.linear(x)

    assert block_of(forward)
