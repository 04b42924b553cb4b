"""rows_elementwise: boxes of every row against the whole operator."""

from typing import Any

import pytest
import torch
from row_calls import (
    INF,
    Given,
    assert_boxes_are_the_whole,
    assert_stays_whole,
    b,
    build,
    given,
    n,
    rows_called,
    rows_of,
    uncuttable,
    x,
)

from cutset.partition import rows_elementwise
from cutset.partition.rows_elementwise import BINARY, UNARY


def elementwise() -> dict[str, Given]:
    """Operators of one and of two tensors, with their other arguments; "name:second" is another overload."""
    settings: dict[str, tuple[Any, ...]] = {
        "clamp": (-0.5, 0.5),
        "clamp_min": (0.1,),
        "clamp_max": (0.1,),
        "threshold": (0.1, 2.0),
        "leaky_relu": (0.2,),
        "to": (torch.float32,),
        "where": (x(4, 1), x(6)),
        "masked_fill": (b(4, 1), -INF),
    }
    variants = {"to": "dtype", "where": "self", "masked_fill": "Scalar", "threshold": "default"}
    integers = ("bitwise_and", "bitwise_or", "bitwise_not", "logical_not", "logical_and", "logical_or", "logical_xor")
    plain = ("maximum", "minimum", "logical_and", "logical_or", "logical_xor")
    calls = {}
    for name in UNARY:
        first = (
            n(2, 4, 6).bool() if name in integers else x(4, 6).abs() if name in ("log", "sqrt", "rsqrt") else x(4, 6)
        )
        calls[name] = given(f"aten.{name}.{variants.get(name, 'default')}", first, *settings.get(name, ()))
    for name in BINARY:
        first = n(2, 4, 6).bool() if name in integers else b(4, 6) if name == "where" else x(3, 4, 6)
        second = (n(2, 6).bool(),) if name in integers else (x(4, 1).abs() + 0.5,)
        if name == "pow":
            first = first.abs()
        variant = "Tensor_Tensor" if name == "pow" else "default" if name in plain else "Tensor"
        calls[name] = given(f"aten.{name}.{variants.get(name, variant)}", first, *settings.get(name, second))
    return calls


def broadcasting() -> dict[str, Given]:
    return {
        "scalar": given("aten.add.Tensor", x(4, 6), 2.0),
        "zero-dim": given("aten.mul.Tensor", x(4, 6), x()),
        "outer": given("aten.sub.Tensor", x(4, 1, 3), x(5, 1)),
        "rounded": given("aten.div.Tensor_mode", x(4, 6), x(6).abs() + 0.5, rounding_mode="floor"),
        "clone": given("clone", x(4, 6), memory_format=torch.contiguous_format),
        "to other": given("aten.to.other", x(4, 6), x(4, 6).float()),
    }


CALLS = build(elementwise, broadcasting)


@pytest.mark.parametrize("finer", [False, True], ids=["", "finer"])
@pytest.mark.parametrize("name", CALLS)
def test_boxes_together_are_the_whole(name: str, finer: bool) -> None:
    assert_boxes_are_the_whole(CALLS[name], finer=finer)


def test_every_row_has_a_call() -> None:
    assert rows_of(rows_elementwise) == rows_called(CALLS) | {"aten.dropout"}


def test_every_call_can_be_cut() -> None:
    assert uncuttable(CALLS) == set()


@pytest.mark.parametrize(
    "case",
    [
        given("aten.to.other", torch.zeros(4), torch.zeros(2, 3).double()),
        given("aten.view.dtype", torch.zeros(4), torch.int32),
    ],
    ids=lambda case: case.target,
)
def test_a_call_that_no_row_describes_stays_whole(case: Given) -> None:
    assert_stays_whole(case)
