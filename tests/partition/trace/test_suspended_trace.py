"""The absence of a trace."""

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

from cutset.partition.trace.suspended_trace import suspend_trace


class Watches(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise AssertionError("watched")


def test_nothing_watches_an_untraced_run() -> None:
    with FakeTensorMode(), Watches(), suspend_trace():
        made = torch.ones(2) + 1
    assert not isinstance(made, FakeTensor)
    assert made.tolist() == [2.0, 2.0]
