"""Operator arguments as plain data, and back."""

import json
import math

import pytest
import torch
from torch.fx import Graph

from cutset.partition.ir.arguments import call, decode, encode, named, overload, tensors_in
from cutset.errors import BadInput

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
    assert tensors_in(coded) == {"self": "x", "others[0]": "x"}


def test_what_cannot_be_written_down_is_refused() -> None:
    with pytest.raises(BadInput, match="E323: an operator argument of type complex cannot be planned: 1j"):
        encode({"value": 1j}, str)


def test_arguments_are_named_with_their_defaults() -> None:
    found = named(aten.add.Tensor, (1, 2), {})
    assert found == {"self": 1, "other": 2, "alpha": 1}
    assert named(aten.softmax.int, (1,), {"dim": 0}) == {"self": 1, "dim": 0, "dtype": None}


def test_an_operator_is_called_by_name() -> None:
    x = torch.tensor([1.0, 2.0])
    assert overload("aten.add.Tensor") is aten.add.Tensor
    assert call("aten.add.Tensor", {"self": x, "other": x, "alpha": 3}).tolist() == [4.0, 8.0]
