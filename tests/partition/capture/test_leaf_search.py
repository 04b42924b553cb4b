"""The search for leaf modules: where it goes, and that it ends."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.partition.capture.export import capture
from cutset.partition.capture.leaf_search import MAX_ATTEMPTS, capture_by_leaf_modules
from cutset.partition.capture.tracing_error import Untraceable, find_leaf_globs


def test_the_search_ends() -> None:
    tried: list[tuple[str, ...]] = []

    def attempt(leaf_modules: tuple[str, ...]) -> None:
        tried.append(leaf_modules)
        raise Untraceable("the first" if len(tried) == 1 else "", globs=[f"x{len(tried)}"])

    with pytest.raises(Untraceable, match="the first"):
        capture_by_leaf_modules(attempt, ())
    assert len(tried) == 1 + MAX_ATTEMPTS
    assert tried[:3] == [(), ("x1",), ("x1", "x2")]


def test_the_search_goes_outward_where_a_module_is_refused() -> None:
    def attempt(leaf_modules: tuple[str, ...]) -> str:
        if leaf_modules == ("given",):
            raise Untraceable("", globs=["inner", "outer"])
        if leaf_modules == ("given", "inner"):
            raise BadInput("E326", "")
        return "found"

    found, leaf_modules, error = capture_by_leaf_modules(attempt, ["given"])
    assert (found, leaf_modules) == ("found", ("given", "outer"))
    assert error is not None


def test_the_loss_then_the_model_then_the_step() -> None:
    tried = list[tuple[str, ...]]()

    def attempt(leaf_modules: tuple[str, ...]) -> None:
        tried.append(leaf_modules)
        if leaf_modules != ("(step)",):
            raise Untraceable("")

    assert capture_by_leaf_modules(attempt, ())[1] == ("(step)",)
    assert tried == [(), ("(loss)",), ("(model)",), ("(step)",)]


def loss_with_state() -> Callable[[Tensor, Tensor], Tensor]:
    steps = torch.zeros(1)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        steps.add_(1)
        return F.mse_loss(output, target) * steps.sum()

    return loss


class CountingLoss(nn.Module):
    """Counts its steps in a plain tensor of a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Identity()
        self.scale.forward = loss_with_state()  # type: ignore[method-assign]

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = self.scale(output, target)
        return loss


@pytest.mark.parametrize("make_loss", [loss_with_state, CountingLoss])
def test_a_loss_that_overwrites_a_tensor_of_its_own_becomes_an_island(make_loss: Callable[[], nn.Module]) -> None:
    model, loss, x = nn.Linear(6, 6), make_loss(), torch.zeros(4, 6)
    (graph, _), leaf_modules, error = capture_by_leaf_modules(
        lambda tried: capture(model, loss, [x], [x], leaf_modules=tried), ()
    )
    assert leaf_modules == ("(loss)",)
    assert error is not None
    assert "does not compute the same in every step at test_leaf_search.py" in error.traced
    assert [op.target for op in graph.ops if "leaf" in op.target]


def test_parts_of_the_loss_may_become_the_loss() -> None:
    assert find_leaf_globs(nn.Linear(6, 6), ["(loss).inner", "(loss)"], ()) == ("(loss)",)
    assert find_leaf_globs(nn.Linear(6, 6), ["(loss).inner"], ("(loss)",)) == ()


class Remembering(nn.Module):
    """Adds what it got in the step before."""

    def __init__(self) -> None:
        super().__init__()
        self.last: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        result = x + self.last.pop() if self.last else x * 2
        self.last.append(x.detach())
        return result


class AlsoRemembering(Remembering):
    """Is of another class, so that no glob is of both."""


def test_modules_that_fail_each_for_itself_are_tried_together() -> None:
    model, x, tried = nn.Sequential(), torch.zeros(2, 2), list[tuple[str, ...]]()
    parts = {"one": Remembering(), "wide": nn.Linear(2, 2), "two": AlsoRemembering(), "last": nn.Linear(2, 2)}
    for name, part in parts.items():
        model.add_module(name, part)

    def attempt(leaf_modules: tuple[str, ...]) -> object:
        tried.append(leaf_modules)
        return capture(model, F.mse_loss, (x,), (x,), leaf_modules=leaf_modules)

    _, found, error = capture_by_leaf_modules(attempt, ())
    assert tried == [(), ("one", "two")]
    assert found == ("one", "two")
    assert "--leaf-modules 'one' --leaf-modules 'two'" in str(error)


def test_where_they_do_not_suit_together_they_are_tried_one_by_one() -> None:
    tried = list[tuple[str, ...]]()

    def attempt(leaf_modules: tuple[str, ...]) -> str:
        tried.append(leaf_modules)
        if not leaf_modules:
            raise Untraceable("", globs=["inner", "outer"], other_globs=["other"])
        if "other" in leaf_modules:
            raise BadInput("E326", "")
        return "found"

    assert capture_by_leaf_modules(attempt, ())[:2] == ("found", ("inner",))
    assert tried == [(), ("inner", "other"), ("inner",)]
