"""Layers that are handed an object, which they may change: the middle of those that do the same is not traced."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from handed_layers import DEPTH, Handed, Shared, Stack, TwoInputs, X, count, loss
from layer_stacks import WIDTH
from torch import Tensor, nn

from cutset.partition.capture.export import capture


def assert_same_as_whole(make: Callable[[], nn.Module], *, training: bool = True) -> None:
    criterion, readers = (loss, ()) if training else (None, [loss])
    graphs = [capture(make(), criterion, (X,), (X,), readers=readers, reuse=reuse) for reuse in (True, False)]
    assert graphs[0][0] == graphs[1][0]
    assert repr(graphs[0][0].ops) == repr(graphs[1][0].ops)  # 0.0 and -0.0 are equal
    assert list(graphs[0][0].tensors) == list(graphs[1][0].tensors)


def use_slot_of_the_first(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x + shared.slots[0]


def use_table(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x * shared.first


ALIKE = {
    "slots": Stack,
    "a table of all": lambda: Stack(use_table),
    "what the first has made": lambda: Stack(use_slot_of_the_first),
    "the last slot": lambda: Stack(finish=lambda model, x, shared: x + shared.slots[DEPTH - 1]),
}


@pytest.mark.parametrize("name", ALIKE)
def test_the_middle_of_layers_that_do_the_same_is_not_traced(name: str, grown: list[int]) -> None:
    assert_same_as_whole(ALIKE[name])
    assert grown
    assert grown[0] >= DEPTH - 5


@pytest.mark.parametrize(
    "finish", [lambda model, x, shared: (x, shared), lambda model, x, shared: (x.tanh(), shared.slots)]
)
@pytest.mark.run
def test_an_output_may_hold_the_object(finish: Callable[[Stack, Tensor, Shared], Any], grown: list[int]) -> None:
    assert_same_as_whole(lambda: Stack(finish=finish))
    assert_same_as_whole(lambda: Stack(finish=finish), training=False)
    assert len(grown) == 2


def use_running_sum(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    shared.total = shared.total + x.mean()
    return x * shared.total


def add_to_sum(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    shared.total = shared.total + x.mean()
    return x


def write_in_place(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    shared.written.add_(x.mean())
    return x


def write_into_view(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    shared.written.reshape(1).add_(x.mean())
    return x


def use_slot_before(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x + shared.slots.get(layer.index - 1, x)


def use_count(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    shared.calls += 1
    return x * shared.calls


def be_odd(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x.tanh() if layer.index == 5 else x


def drop_gradients_of_one(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    with torch.set_grad_enabled(layer.index != 5):
        return x * 2


class Heads(Stack):
    """Has layers of another kind, which read what one of the first has made."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Handed(i, read_third_last) for i in range(4))

    def forward(self, x: Tensor) -> Any:
        x, shared = self.first(x).tanh(), Shared(x)
        for layer in self.layers:
            x = layer(x, shared)
        x, shared.history = x.tanh(), shared.history[-3:]
        for head in self.heads:
            x = head(x, shared)
        return x


def read_third_last(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x + shared.history[0].mean()


def scale_by_data(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    mean = x.detach().mean().item()
    return x * (2 * mean if layer.index == 5 else mean)


def add_signed_zero(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x + (-0.0 if layer.index == 5 else 0.0)


def add_of_other_dtype(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if layer.index == 5 else before)
    half = (x > 0).int() + 0.5
    torch.set_default_dtype(before)
    return x + half.sum()


class TwoWays(Handed):
    """Has two modules that do the same."""

    def __init__(self, index: int, use: Callable[[Handed, Tensor, Shared], Tensor]) -> None:
        super().__init__(index, use)
        self.ways = nn.ModuleList([nn.ReLU(), nn.ReLU()])


def use_one_of_two(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return layer.get_submodule(f"ways.{int(layer.index in (0, 5))}")(x)


def use_two_in_turn(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    first = int(layer.index in (0, 5))
    return layer.get_submodule(f"ways.{1 - first}")(layer.get_submodule(f"ways.{first}")(x) - 1)


def make_two_ways(use: Callable[[Handed, Tensor, Shared], Tensor]) -> nn.Module:
    model = Stack()
    model.layers = nn.ModuleList(TwoWays(i, use) for i in range(DEPTH))
    return model


class Counting(Stack):
    """Calls the layer whose turn it is by what the layers have counted."""

    def __init__(self) -> None:
        super().__init__(count)

    def forward(self, x: Tensor) -> Any:
        x = self.first(x).tanh()
        shared = Shared(x)
        while shared.calls < DEPTH:
            x = self.layers[shared.calls](x, shared)
        return x


def make_frozen_one() -> nn.Module:
    model = Stack()
    model.layers[5].requires_grad_(False)
    return model


def make_hooked_one() -> nn.Module:
    model = Stack()
    model.layers[5].wide.register_forward_hook(lambda module, args, output: output * 2)
    return model


def make_other_size() -> nn.Module:
    model = Stack()
    model.layers[5].wide, model.layers[5].back = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
    return model


UNLIKE = {
    "a running sum": lambda: Stack(use_running_sum),
    "a sum at the end": lambda: Stack(add_to_sum, lambda model, x, shared: x * shared.total),
    "a tensor that all overwrite": lambda: Stack(write_in_place, lambda model, x, shared: x * shared.written),
    "a view that all overwrite": lambda: Stack(write_into_view, lambda model, x, shared: x * shared.written),
    "what the layer before has made": lambda: Stack(use_slot_before),
    "a count": lambda: Stack(use_count),
    "a count at the end": lambda: Stack(count, lambda model, x, shared: x * shared.calls),
    "all slots": lambda: Stack(finish=lambda model, x, shared: x + sum(shared.slots.values())),
    "one slot": lambda: Stack(finish=lambda model, x, shared: x + shared.slots[4]),
    "all inputs": lambda: Stack(finish=lambda model, x, shared: x + sum(shared.inputs)),
    "the last input": lambda: Stack(finish=lambda model, x, shared: x + shared.inputs[-1]),
    "the third last of what layers made": lambda: Stack(finish=lambda model, x, shared: x + shared.history[-3].mean()),
    "the third last weight": lambda: Stack(finish=lambda model, x, shared: x + shared.weights[-3].mean()),
    "what other layers read": Heads,
    "called by a count": Counting,
    "numbers made of data": lambda: Stack(scale_by_data),
    "a zero with another sign": lambda: Stack(add_signed_zero),
    "another module of the same kind": lambda: make_two_ways(use_one_of_two),
    "modules in another order": lambda: make_two_ways(use_two_in_turn),
    "numbers of another dtype": lambda: Stack(add_of_other_dtype),
    "one without gradients": lambda: Stack(drop_gradients_of_one),
    "a frozen one": make_frozen_one,
    "a hooked one": make_hooked_one,
    "one of another size": make_other_size,
    "an odd one": lambda: Stack(be_odd),
}


@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.run
def test_others_are_traced_one_by_one(name: str, grown: list[int]) -> None:
    if name != "a hooked one":
        assert_same_as_whole(UNLIKE[name])
    else:
        assert_same_as_whole(UNLIKE[name], training=False)
    assert sum(grown) <= 3  # of nine; two that are like may be between others


def test_an_output_of_all_slots_is_whole(grown: list[int]) -> None:
    readers = [lambda output, target: sum(output)]
    model = Stack(finish=lambda model, x, shared: (*shared.slots.values(), x))
    graphs = [capture(model, None, (X,), (X,), readers=readers, reuse=reuse)[0] for reuse in (True, False)]
    assert graphs[0] == graphs[1]
    assert len(graphs[0].results) == DEPTH
    assert not grown


def test_of_an_output_of_all_slots_one_that_is_whole_may_be_read() -> None:
    assert_same_as_whole(lambda: Stack(finish=lambda model, x, shared: (x, *shared.slots.values())), training=False)


def test_which_input_is_read_is_told(grown: list[int]) -> None:
    graphs = []
    for reuse in (True, False):
        model = TwoInputs(lambda shared: len(shared.slots) < DEPTH)
        graphs.append(capture(model, loss, (X, X.clone()), (X,), reuse=reuse)[0])
    assert graphs[0] == graphs[1]
    assert not grown


class Awkward(Stack):
    """Gives its layers arguments that cannot be described as a tree. make: of the first input."""

    def __init__(self, make: Callable[[Tensor], dict[Any, Any]]) -> None:
        super().__init__()
        self.make = make

    def hand_out(self, x: Tensor) -> Any:
        shared = super().hand_out(x)
        shared.awkward = self.make(x)
        return Awkwardly(self.make(x), shared)


class Awkwardly(dict[Any, Any]):
    """A dictionary that passes for what layers get."""

    def __init__(self, held: dict[Any, Any], shared: Shared) -> None:
        super().__init__(held)
        self.__dict__.update(vars(shared))


def make_endless(x: Tensor) -> dict[Any, Any]:
    held: dict[Any, Any] = {"x": x}
    held["itself"] = held
    return held


@pytest.mark.parametrize("make", [make_endless, lambda x: {x: 1}])
def test_arguments_of_any_kind_are_no_error(make: Callable[[Tensor], dict[Any, Any]]) -> None:
    graphs = [capture(Awkward(make), loss, (X,), (X,), reuse=reuse)[0] for reuse in (True, False)]
    assert graphs[0] == graphs[1]


def keep_one(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    if layer.index in (0, 4):
        shared.first = x.square().mean()
    return x


@pytest.mark.parametrize(
    "finish",
    [
        lambda model, x, shared: (x, shared.first),
        lambda model, x, shared: (x, shared.history[-3]),
        lambda model, x, shared: (x, x.tanh() if len(shared.history) < DEPTH else x.relu()),
    ],
)
@pytest.mark.run
def test_what_a_step_gives_is_of_the_layer_that_made_it(finish: Callable[[Stack, Tensor, Shared], Any]) -> None:
    readers, evaluated, losses = [lambda output, target: output[1].sum()], [], []
    for reuse in (True, False):
        evaluated.append(capture(Stack(keep_one, finish), None, (X,), (X,), readers=readers, reuse=reuse)[0])
        model = Stack(keep_one, lambda model, x, shared: (shared.first, x))
        losses.append(capture(model, lambda output, target: output[0], (X,), (X,), reuse=reuse)[0])
    assert evaluated[0] == evaluated[1]
    assert losses[0] == losses[1]
