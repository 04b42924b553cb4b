"""Layers that are handed an object and do something else in a later step, be it in the middle alone, are refused."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from handed_layers import Handed, Shared, Stack, TwoInputs, X, loss
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.partition.capture import export, tried_step
from cutset.partition.capture.export import capture


def count_in_layer(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    layer.calls = getattr(layer, "calls", 0) + 1
    return x * 2 if layer.calls > 2 and layer.index == 5 else x


def draw(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x * 2 if random.random() > 0.99 else x


STEPS = [0]


class CountedOutside(Stack):
    """Tells its layers the number of the step, which is counted outside of the model."""

    def hand_out(self, x: Tensor) -> Shared:
        shared = super().hand_out(x)
        STEPS[0] += 1
        shared.calls = STEPS[0]
        return shared


def change_with_steps(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x * 2 if layer.index == 5 and shared.calls % 2 else x


class Lasting(Stack):
    """Hands out the same object in all steps."""

    def hand_out(self, x: Tensor) -> Shared:
        if not hasattr(self, "lasting"):
            self.lasting = Shared(x)
        return self.lasting


def find_what_was_left(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    if layer.index != 5:
        return x
    shared.calls += 1
    return x * 2 if shared.calls > 2 else x


def double_each_second(x: Tensor) -> Tensor:
    STEPS[0] += 1
    return x * 2 if STEPS[0] % 2 else x


def run_another_function(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return double_each_second(x) if layer.index == 5 else x


@torch.overrides.wrap_torch_function(lambda x, index: (x,))
def double_as_torch(x: Tensor, index: int) -> Tensor:
    return double_each_second(x) if index == 5 else x


def run_function_for_tensors(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return double_as_torch(x, layer.index)


class Memory:
    """Holds a tensor of the step before."""

    last: Tensor | None = None


LEFT = {}  # what a step has left outside of the model


class Carrying(Stack):
    """Begins with what the last step has left in an object."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x if self.memory.last is None else self.memory.last)
        self.memory.last = y.detach()
        return y


class CarryingOutside(Stack):
    """Adds what the last step has left."""

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        y, LEFT["last"] = y + LEFT.get("last", 0.0), y.detach()
        return y


def choose_in_turn(shared: Shared) -> bool:
    STEPS[0] += 1
    return STEPS[0] % 2 == 0


def test_inputs_that_are_read_in_turn_are_refused() -> None:
    with pytest.raises(BadInput):
        capture(TwoInputs(choose_in_turn), loss, (X, X.clone()), (X,))


def count_steps(model: Stack, x: Tensor, shared: Shared) -> Tensor:
    model.steps += 1
    return x


def change_one_later(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x * 2 if layer.index == 5 and layer.owner[0].steps > 1 else x


def make_changing_later() -> nn.Module:
    model = Stack(change_one_later, count_steps)
    for layer in model.layers:
        layer.owner = [model]
    return model


def mark_one(model: Stack, x: Tensor, shared: Shared) -> Tensor:
    model.layers[5].marked = True
    return x


def heed_mark(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x * 2 if getattr(layer, "marked", False) else x


def make_turns() -> Callable[[], int]:
    turn = 0

    def count() -> int:
        nonlocal turn
        turn += 1
        return turn

    return count


class Turning(Stack):
    """Hands out what counts the turns, in a way that an object does not show. turns: is handed out."""

    def __init__(self, use: Callable[[Handed, Tensor, Shared], Tensor], turns: Any) -> None:
        super().__init__(use)
        self.turns = [turns]

    def hand_out(self, x: Tensor) -> Shared:
        shared = super().hand_out(x)
        shared.turns = self.turns[0]
        return shared


def call_for_turn(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x * 2 if layer.index == 5 and shared.turns() % 2 else x


def ask_for_turn(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x * 2 if layer.index == 5 and next(shared.turns) % 2 else x


class Slotted:
    """Shows nothing of what it holds."""

    __slots__ = ("turn",)

    def __init__(self) -> None:
        self.turn = 0


def look_for_turn(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x * 2 if layer.index == 5 and shared.turns.turn % 2 else x


class TurningBetween(Turning):
    """Counts the turn once all layers have run."""

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        self.turns[0].turn += 1
        return y


def use_first(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x * shared.first


class Exchanging(Stack):
    """Hands another object to one layer in each second step, but for the first two."""

    def __init__(self) -> None:
        super().__init__(use_first)
        STEPS[0] = 0

    def forward(self, x: Tensor) -> Any:
        y = self.first(x).tanh()
        shared, other = Shared(x), Shared(x.cos())
        STEPS[0] += 1
        for layer in self.layers:
            is_exchanged = layer.index == 5 and STEPS[0] > 2 and STEPS[0] % 2
            y = layer(y, other if is_exchanged else shared)
        return y


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stack(count_in_layer),
        Exchanging,
        lambda: Stack(heed_mark, mark_one),
        lambda: Turning(call_for_turn, make_turns()),
        lambda: Turning(ask_for_turn, itertools.count()),
        lambda: TurningBetween(look_for_turn, Slotted()),
        lambda: Stack(draw),
        lambda: CountedOutside(change_with_steps),
        lambda: Lasting(find_what_was_left),
        lambda: Stack(run_another_function),
        lambda: Stack(run_function_for_tensors),
        Carrying,
        CarryingOutside,
        make_changing_later,
    ],
)
def test_layers_that_do_something_else_later_are_refused(make: Callable[[], nn.Module]) -> None:
    STEPS[0] = 1  # what is done in each second step is not done in the first
    with pytest.raises(BadInput):
        capture(make(), loss, (X,), (X,))


def list_later_steps(monkeypatch: pytest.MonkeyPatch, model: nn.Module) -> list[nn.Module]:
    """Return the steps of which several whole ones are compared in a capture: one, or none."""
    compared = list[nn.Module]()
    for module in (tried_step, export):
        monkeypatch.setattr(module, "compare_steps", lambda tried: compared.append(tried.copies.step))
    capture(model, loss, (X,), (X,))
    return compared


def note_steps(model: Stack, x: Tensor, shared: Shared) -> Tensor:
    model.steps += 1
    return x


def test_the_second_step_of_layers_that_find_all_as_it_was_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list_later_steps(monkeypatch, Stack())
    assert len(list_later_steps(monkeypatch, Stack(finish=note_steps))) == 1
