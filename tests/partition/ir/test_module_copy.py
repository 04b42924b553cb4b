"""Copies of modules that hold what Python cannot copy."""

import threading
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.partition.ir.module_copy import copy_module


class Cache:
    """An object with a lock and with values."""

    def __init__(self) -> None:
        self.lock, self.values, self.around = threading.Lock(), [1], self


class Holding(nn.Module):
    """Holds what is given."""

    def __init__(self, **held: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        vars(self).update(held)


class Refusing(nn.Module):
    """Does not want to be copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        raise ValueError("there is one of me")


@pytest.mark.parametrize("value", [threading.Lock(), F, (i for i in range(3))], ids=["lock", "module", "generator"])
def test_what_cannot_be_copied_is_shared(value: Any) -> None:
    module = nn.Sequential(Holding(first=value, inner={"again": (value, [1])}))
    copied = copy_module(module)
    assert copied[0].first is copied[0].inner["again"][0] is value  # type: ignore[index,union-attr]
    assert copied[0].inner["again"][1] is not module[0].inner["again"][1]  # type: ignore[index,union-attr]
    assert copied[0].linear.weight is not module[0].linear.weight  # type: ignore[index,union-attr]


def test_of_an_object_only_the_part_is_shared_that_cannot_be_copied() -> None:
    module = Holding(cache=Cache(), call=partial(print, threading.Lock(), [1]))
    copied = copy_module(module)
    assert copied.cache.lock is module.cache.lock  # type: ignore[union-attr]
    assert copied.cache.values is not module.cache.values  # type: ignore[union-attr]
    assert copied.cache.around is copied.cache  # type: ignore[union-attr]
    assert copied.call.args[0] is module.call.args[0]  # type: ignore[union-attr,index]
    assert copied.call.args[1] is not module.call.args[1]  # type: ignore[union-attr,index]


def test_copies_that_are_known_are_taken() -> None:
    module, weight = Holding(lock=threading.Lock()), nn.Parameter(torch.zeros(2, 2))
    copied = copy_module(module, {id(module.linear.weight): weight})
    assert copied.linear.weight is weight  # type: ignore[union-attr]


def test_tensors_of_a_computation_are_shared() -> None:
    module = Holding(lock=threading.Lock())
    result: Tensor = module.linear(torch.ones(2))
    module.kept = [result]  # type: ignore[assignment]
    assert copy_module(module).kept[0] is result  # type: ignore[index]


def test_a_module_that_cannot_be_copied_is_named() -> None:
    with pytest.raises(BadInput, match=r"E320: module 1 \(Refusing\) cannot be copied: there is one of me"):
        copy_module(nn.Sequential(nn.Linear(2, 2), Refusing()))
