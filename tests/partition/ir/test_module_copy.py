"""Copies of modules that hold what Python cannot copy."""

import copy
import threading
from collections import OrderedDict
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


class Counted(nn.Module):
    """Counts the copies that are made of it."""

    copies = 0

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        type(self).copies += 1


class Made(nn.Module):
    """Is made anew in its own way."""

    def __reduce__(self) -> Any:
        return Made, ()


def test_it_is_the_copy_that_python_makes() -> None:
    shared, table = nn.Linear(2, 2), {"one": [1], 2: {3}}
    module = nn.Sequential(
        Holding(a=shared, b=[], c=table, d=OrderedDict()), Holding(a=table, again=shared), nn.LSTM(2, 2), Made()
    )
    module[0].around = [module]  # type: ignore[assignment]
    module[0].register_forward_hook(print)
    module[2].weight_ih_l0.requires_grad_(False)  # type: ignore[union-attr]
    copied, expected = copy_module(module), copy.deepcopy(module)
    assert [type(inner) for inner in copied.modules()] == [type(inner) for inner in expected.modules()]
    for one, two in zip(copied.state_dict().items(), expected.state_dict().items(), strict=True):
        assert one[0] == two[0]
        assert torch.equal(one[1], two[1])
    assert [p.requires_grad for p in copied.parameters()] == [p.requires_grad for p in expected.parameters()]
    first, second = copied[0], copied[1]  # type: ignore[index]
    assert vars(first).keys() == vars(module[0]).keys()
    assert first.a is second.again is not shared
    assert first.c is second.a == table
    assert first.c is not table
    assert first.c["one"] is not table["one"]
    assert first.around[0] is copied
    assert first.b == []
    assert first.b is not module[0].b
    assert list(first._forward_hooks.values()) == [print]
    assert first._forward_hooks is not module[0]._forward_hooks
    assert copied[2](torch.zeros(1, 2))[0].shape == (1, 2)  # type: ignore[index]


def test_a_class_that_says_how_it_is_copied_is_asked() -> None:
    module = nn.Sequential(Counted(nn.Sequential(Counted(nn.Linear(2, 2)))))
    copied = copy_module(module)
    assert Counted.copies == 2
    assert copied[0].inner[0].inner.weight is not module[0].inner[0].inner.weight  # type: ignore[index,union-attr]


class Guarded(nn.Module):
    """Makes its own copy, of what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Refusing())

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return Guarded()


class View:
    """Looks at a module when it is copied."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.seen = module, False

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.seen = hasattr(self.module, "linear")


def test_a_module_that_makes_its_own_copy_may_hold_what_cannot_be_copied() -> None:
    guarded = Guarded()
    copied = copy_module(nn.Sequential(guarded))
    assert copied[0] is not guarded  # type: ignore[index]


def test_what_looks_at_a_module_while_it_is_copied_finds_what_python_shows_it() -> None:
    first = Holding()
    module = nn.Sequential(first, Holding(view=View(first)))
    for copied in (copy.deepcopy(module), copy_module(module)):
        assert copied[1].view.seen  # type: ignore[index, union-attr]
        assert copied[1].view.module is copied[0]  # type: ignore[index, union-attr]


def test_an_instance_that_says_how_it_is_copied_is_asked() -> None:
    kept = Holding()
    vars(kept)["__deepcopy__"] = lambda memo: kept
    assert copy_module(nn.Sequential(kept))[0] is kept  # type: ignore[index]
