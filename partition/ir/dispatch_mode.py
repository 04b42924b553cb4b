"""`DispatchMode`: sees the operators that run while it is active, and costs less than torch's own mode."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode of torch's dispatcher. Within `run_operator` it is not active."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def run_operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator, which may be a higher-order one where the mode supports such; return its result."""
        raise NotImplementedError

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do not have each operator call functions of torch's compiler, which is not there where this is active."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:  # where it is, which torch asks for each operand of many operators
            return args[0].device if isinstance(args[0], FakeTensor) else func(*args, **kwargs)
        return self.run_operator(func, args, kwargs)
