"""Operator arguments as plain data, and back."""

import json
import math

import pytest
import torch
from torch.fx import Graph

from cutset.errors import BadInput
from cutset.partition.ir.arguments import bind_arguments, call_operator, decode, encode, find_overload, find_tensors

aten = torch.ops.aten


def there_and_back(value: object) -> object:
    coded = encode({"value": value}, lambda node: node.name)["value"]
    return decode(json.loads(json.dumps(coded, allow_nan=False)), lambda name: f"tensor {name}")


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -1.5,
        "mean",
        [1, [2, None]],
        torch.float16,
        torch.channels_last,
        torch.strided,
        math.inf,
        -math.inf,
        1j,
        complex(-math.inf, 2.5),
    ],
)
def test_plain_values_come_back_from_json(value: object) -> None:
    assert there_and_back(value) == value


def test_nan_comes_back_too() -> None:
    assert math.isnan(there_and_back(math.nan))  # type: ignore[arg-type]


def test_devices_of_the_trace_are_forgotten() -> None:
    assert there_and_back(torch.device("meta")) == torch.device("cpu")


def test_nodes_become_tensor_names() -> None:
    node = Graph().placeholder("x")
    assert there_and_back([node, None]) == ["tensor x", None]
    coded = encode({"self": node, "others": [node, 1]}, lambda n: n.name)
    assert find_tensors(coded) == {"self": "x", "others[0]": "x"}


def test_what_cannot_be_written_down_is_refused() -> None:
    with pytest.raises(BadInput, match=r"E323: an operator argument of type set cannot be planned: \{1\}"):
        encode({"value": {1}}, str)


def test_arguments_are_named_with_their_defaults() -> None:
    found = bind_arguments(aten.add.Tensor, (1, 2), {})
    assert found == {"self": 1, "other": 2, "alpha": 1}
    assert bind_arguments(aten.softmax.int, (1,), {"dim": 0}) == {"self": 1, "dim": 0, "dtype": None}


def test_an_operator_is_called_by_name() -> None:
    x = torch.tensor([1.0, 2.0])
    assert find_overload("aten.add.Tensor") is aten.add.Tensor
    assert call_operator("aten.add.Tensor", {"self": x, "other": x, "alpha": 3}).tolist() == [4.0, 8.0]
