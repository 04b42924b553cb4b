"""Nested containers of tensors, dataclasses among them."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from cutset.partition.ir.pytree import first_tensor, flatten, iter_leaves

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Frozen:
    a: Any
    b: Any = None


@dataclass
class Open:
    first: Any
    rest: Any


NESTED = [
    3,
    None,
    (),
    [1, (2, None), {"k": [3]}],
    OrderedDict(b=1, a=(2,)),
    Pair(1, [2]),
    Frozen(1, [Frozen(2), {"x": Open(3, ())}]),
    (Open(None, (1, 2)), 4),
]


@pytest.mark.parametrize("value", NESTED, ids=repr)
def test_flattened_and_rebuilt_a_value_is_as_before(value: Any) -> None:
    leaves, rebuild = flatten(value)
    assert leaves == list(iter_leaves(value))
    assert rebuild(leaves) == value
    assert flatten(rebuild([str(leaf) for leaf in leaves]))[0] == [str(leaf) for leaf in leaves]
    assert flatten(value)[0] == leaves  # the original is not touched


def test_the_first_tensor_is_found_wherever_it_is() -> None:
    x, y = torch.zeros(1), torch.ones(1)
    for value in (x, [None, x, y], {"loss": None, "logits": x, "more": y}, Frozen(2, Open((), [x])), (Frozen(1), x)):
        found = first_tensor(value)
        assert isinstance(found, Tensor)
        assert found is x
    assert first_tensor({"a": 1}) is None
    assert first_tensor(Frozen) is None  # a class is no container
