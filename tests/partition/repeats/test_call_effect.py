"""Layers that are handed an object, which they may change: the middle of those that do the same is not traced."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from layer_stacks import WIDTH
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.partition.capture import export
from cutset.partition.capture.export import capture
from cutset.partition.draft.draft import Draft
from cutset.partition.repeats.layer_chains import LayerChain

DEPTH = 9
X = torch.zeros(4, WIDTH)


class Shared:
    """Is handed to all layers of one run."""

    def __init__(self, x: Tensor) -> None:
        self.slots = dict[int, Tensor]()
        self.inputs, self.history, self.weights = list[Tensor](), list[Tensor](), list[Tensor]()
        self.calls = 0
        self.total = self.first = self.written = x.mean()


class Handed(nn.Module):
    """A layer that leaves something in what it is handed. use: what else it does with it."""

    def __init__(self, index: int, use: Callable[["Handed", Tensor, Shared], Tensor]) -> None:
        super().__init__()
        self.wide, self.back = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.index, self.use = index, use

    def forward(self, x: Tensor, shared: Shared) -> Tensor:
        shared.inputs.append(x)
        shared.weights.append(self.wide.weight)
        wide = self.wide(x)
        shared.history.append(wide)
        y = x + self.back(wide.relu())
        shared.slots[self.index] = y
        return self.use(self, y, shared)


def leave(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x


class Stack(nn.Module):
    """Hands an object to its layers. finish: what the model makes of both."""

    def __init__(
        self,
        use: Callable[[Handed, Tensor, Shared], Tensor] = leave,
        finish: Callable[["Stack", Tensor, Shared], Any] = lambda model, x, shared: x,
    ) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Handed(i, use) for i in range(DEPTH))
        self.steps, self.finish = 0, finish

    def hand_out(self, x: Tensor) -> Shared:
        """Return what all layers get."""
        return Shared(x)

    def forward(self, x: Tensor) -> Any:
        x = self.first(x).tanh()
        shared = self.hand_out(x)
        for layer in self.layers:
            x = layer(x, shared)
        return self.finish(self, x, shared)


def loss(output: Any, target: Tensor) -> Tensor:
    return F.mse_loss(output if isinstance(output, Tensor) else output[0], target)


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many layers were put in the place of the middle of each chain so far."""
    counts, grow_draft = list[int](), export.grow_draft

    def grow(draft: Draft, chain: LayerChain, states: Sequence[str]) -> Draft:
        result = grow_draft(draft, chain, states)
        counts.append(len(chain.skipped))
        return result

    monkeypatch.setattr(export, "grow_draft", grow)
    return counts


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


def count(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    shared.calls += 1
    return x


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
    "one without gradients": lambda: Stack(drop_gradients_of_one),
    "a frozen one": make_frozen_one,
    "a hooked one": make_hooked_one,
    "one of another size": make_other_size,
    "an odd one": lambda: Stack(be_odd),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_others_are_traced_one_by_one(name: str, grown: list[int]) -> None:
    if name != "a hooked one":
        assert_same_as_whole(UNLIKE[name])
    else:
        assert_same_as_whole(UNLIKE[name], training=False)
    assert sum(grown) <= 3  # of nine; two that are like may be between others


def test_an_output_of_all_slots_is_whole(grown: list[int]) -> None:
    assert_same_as_whole(lambda: Stack(finish=lambda model, x, shared: (x, *shared.slots.values())), training=False)
    readers = [lambda output, target: sum(output)]
    model = Stack(finish=lambda model, x, shared: (*shared.slots.values(), x))
    graphs = [capture(model, None, (X,), (X,), readers=readers, reuse=reuse)[0] for reuse in (True, False)]
    assert graphs[0] == graphs[1]
    assert len(graphs[0].results) == DEPTH
    assert sum(grown) <= DEPTH


class TwoInputs(Stack):
    """Chooses one of its inputs. choose: tells whether it is the first."""

    def __init__(self, choose: Callable[[Shared], bool]) -> None:
        super().__init__()
        self.choose = choose

    def forward(self, x: Tensor, other: Tensor) -> Any:
        y, shared = self.first(x).tanh(), Shared(x)
        for layer in self.layers:
            y = layer(y, shared)
        return y + (x if self.choose(shared) else other)


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
def test_what_a_step_gives_is_of_the_layer_that_made_it(finish: Callable[[Stack, Tensor, Shared], Any]) -> None:
    readers, evaluated, losses = [lambda output, target: output[1].sum()], [], []
    for reuse in (True, False):
        evaluated.append(capture(Stack(keep_one, finish), None, (X,), (X,), readers=readers, reuse=reuse)[0])
        model = Stack(keep_one, lambda model, x, shared: (shared.first, x))
        losses.append(capture(model, lambda output, target: output[0], (X,), (X,), reuse=reuse)[0])
    assert evaluated[0] == evaluated[1]
    assert losses[0] == losses[1]


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stack(count_in_layer),
        lambda: Stack(draw),
        lambda: CountedOutside(change_with_steps),
        lambda: Lasting(find_what_was_left),
        lambda: Stack(run_another_function),
        Carrying,
        CarryingOutside,
        make_changing_later,
    ],
)
def test_layers_that_do_something_else_later_are_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(BadInput):
        capture(make(), loss, (X,), (X,))
