"""The search for leaf modules: where it goes, and that it ends."""

import pytest

from cutset.errors import BadInput
from cutset.partition.capture.leaf_search import MAX_ATTEMPTS, capture_by_leaf_modules
from cutset.partition.capture.tracing_error import Untraceable


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
