"""With and without reuse of repeated layers a capture gives the same graph, also where layers only look alike."""

import contextlib
import gc
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from layer_stacks import ALIKE, COUNT, UNLIKE, WIDTH, CountedInClass, Layer, Stack
from marking import with_slow
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.partition.capture.export import capture
from cutset.partition.repeats import repeated_layers
from cutset.partition.repeats.layer_groups import find_layer_groups

X = torch.zeros(4, WIDTH)


def loss(output: Any, target: Tensor) -> Tensor:
    return F.mse_loss(output, target)


QUICK = [
    "alike",
    "buffers",
    "tied weight",
    "dropout",
    "index in a branch",
    "counter in a global",
    "shared table",
    "frozen",
]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", with_slow(QUICK, [name for name in [*ALIKE, *UNLIKE] if name not in QUICK]))
@pytest.mark.parametrize("training", with_slow([True], [False]))
def test_reuse_changes_no_graph(name: str, training: bool) -> None:
    make = (ALIKE | UNLIKE)[name]
    graphs, notes = [], []
    for reuse in (False, True):
        CountedInClass.calls = COUNT["calls"] = 0
        told: list[str] = []
        torch.manual_seed(0)
        criterion = loss if training else None
        try:
            graph, constants = capture(make(), criterion, (X,), (X,), reuse=reuse, tell=told.append)
        except Exception as error:
            graphs.append((type(error), str(error)))
        else:
            graphs.append((graph, {name: value.tolist() for name, value in constants.items()}))
        notes.append(told)
    assert graphs[0] == graphs[1]
    assert notes[0] == notes[1]


def count_repeats(monkeypatch: pytest.MonkeyPatch, model: nn.Module) -> int:
    """Return how many calls are repeated in a capture, which may be refused in the end."""
    calls = []
    repeat = repeated_layers._repeat
    monkeypatch.setattr(repeated_layers, "_repeat", lambda *args: calls.append(0) or repeat(*args))
    with contextlib.suppress(BadInput):
        capture(model, loss, (X,), (X,))
    return len(calls)


@pytest.mark.run
def test_like_layers_are_run_once() -> None:
    """In a process of its own, as a plan has one: what other tests have had torch load may hide which layers are alike.

    Then they are traced one by one, which takes longer and gives the same.
    """
    command = [sys.executable, "-W", "ignore", __file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True, env=module_path())
    counts = json.loads(done.stdout)
    assert list(counts) == list(ALIKE)
    assert all(counts.values()), counts


def module_path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "name",
    [
        "counter in a shared table",
        "counter in a global",
        "counter in a class",
        "iterator",
        "left in an attribute",
        "list of residuals",
        "overwritten arguments",
    ],
)
def test_layers_that_leave_something_are_run_each_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_repeats(monkeypatch, UNLIKE[name]()) == 0


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        json.dump({name: count_repeats(patch, make()) for name, make in ALIKE.items()}, sys.stdout)


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(WIDTH, WIDTH), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh() * self.factor


@pytest.mark.parametrize("factors", [(1, 1, 2, 2, 2), (1, 2, 3, 3, 3)])
def test_steps_of_which_one_repeats_more_calls_compute_the_same(factors: Sequence[float]) -> None:
    """By the second step of a comparison too many calls have been unlike the others to go on trying."""
    graph, _ = capture(nn.Sequential(*map(Scaled, factors)), loss, (X,), (X,))
    plain, _ = capture(nn.Sequential(*map(Scaled, factors)), loss, (X,), (X,), reuse=False)
    assert graph == plain


def test_what_collects_garbage_is_not_of_a_layers_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def notice(phase: str, info: object) -> None:
        """Code that is neither Python's nor torch's, which the collector runs."""

    expected, threshold = count_repeats(monkeypatch, Stack(Layer)), gc.get_threshold()
    gc.callbacks.append(notice)
    gc.set_threshold(1)
    try:
        assert count_repeats(monkeypatch, Stack(Layer)) == expected > 0
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(notice)
    assert gc.isenabled()


class Around(nn.Module):
    """A layer with another one inside, of a kind that also stands before all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = Scaled(1.0), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x))


def test_no_layer_is_inside_of_another() -> None:
    model = nn.Sequential(Scaled(1.0), *(Around() for _ in range(4)))
    assert find_layer_groups(model) == [["1", "2", "3", "4"]]
    graph, _ = capture(model, loss, (X,), (X,))
    assert graph == capture(model, loss, (X,), (X,), reuse=False)[0]


class Shared:
    """Is handed to all layers."""

    left: Tensor | float = 0.0


class Handed(Layer):
    """Gets an object, and reads what the layer before has left in it."""

    def forward(self, x: Tensor, shared: Shared) -> Tensor:  # type: ignore[override]
        shared.left = x + shared.left
        return super().forward(x) + shared.left


class HandedStack(nn.Module):
    """Hands an object to its layers."""

    def __init__(self, depth: int = 9) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Handed() for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        shared = Shared()
        for layer in self.layers:
            x = layer(x, shared)
        return x


@pytest.mark.parametrize("depth", [5, 9])
@pytest.mark.parametrize("trust", [False, True])
def test_layers_that_get_an_object_are_told_of(depth: int, trust: bool) -> None:
    told = list[str]()
    capture(HandedStack(depth), loss, (X,), (X,), tell=told.append, trust=trust)
    assert [note.partition(",")[0] for note in told] == [f"{depth} layers like layers.0 are traced one by one"]
    assert "each gets a Shared" in told[0]


class Lending(Layer):
    """Calls a layer of another kind, which it does not hold as a module."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.others = [other]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.others[0](x))


class LendingStack(nn.Module):
    """Layers of two kinds, of which those of one call those of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.lent = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(6))
        self.layers = nn.ModuleList(Lending(one) for one in self.lent)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.run
def test_a_layer_may_call_another_that_is_watched_too() -> None:
    graphs = [capture(LendingStack(), loss, (X,), (X,), reuse=reuse)[0] for reuse in (True, False)]
    assert graphs[0] == graphs[1]
    assert "__getattribute__" not in vars(nn.Module)


class Exchanging(Layer):
    """Puts another tensor into a dictionary that all layers get."""

    def forward(self, x: Tensor, sums: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        x = super().forward(x)
        sums["total"] = sums["total"] + x.mean()
        return x


class ExchangingStack(nn.Module):
    """Hands a dictionary to its layers."""

    def __init__(self, *, endless: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Exchanging() for _ in range(9))
        self.endless = endless

    def forward(self, x: Tensor) -> Tensor:
        sums: dict[str, Any] = {"total": x.mean()}
        if self.endless:
            sums["itself"] = sums
        for layer in self.layers:
            x = layer(x, sums)
        return x * sums["total"]


@pytest.mark.parametrize("endless", [False, True])
@pytest.mark.run
def test_a_call_that_exchanges_a_tensor_is_not_repeated(endless: bool) -> None:
    graphs = [capture(ExchangingStack(endless=endless), loss, (X,), (X,), reuse=reuse)[0] for reuse in (True, False)]
    assert graphs[0] == graphs[1]
