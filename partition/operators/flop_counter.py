"""`FlopCounter`: the FLOPs of a run of ordinary torch code, as of a leaf module, whose operators no graph lists.

torch's own counter knows matrix products, convolutions and some attention; flop_formulas.py knows torch's other
operators whose FLOPs are more than their elements. Of the rest, torch's have one FLOP for each element, or none where
they only move data, and those that a library adds, as with `torch.library.custom_op`, have those of what they call.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch._ops import OpOverload
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode

from ..ir.dispatch_mode import DispatchMode
from .flop_formulas import FORMULAS
from .registry import TABLE
from .sharding.cost_class import COPY, EMBEDDING, VIEW

OF_TORCH = ("aten", "prim", "prims")


class FlopCounter:
    """Counts the FLOPs of what runs while it is entered.

    flops: the sum, afterwards. unknown: operators of libraries that call no operator of torch and have no formula.
    has_computed: whether there was an operator of torch that makes tensors of others, whatever FLOPs it took.
    """

    def __init__(self) -> None:
        self.flops = 0
        self.unknown: set[str] = set()
        self.has_computed = False
        self._torch = _TorchCounter()
        self._modes = ExitStack()

    def __enter__(self) -> "FlopCounter":
        self._modes.enter_context(_CountRest(self))
        self._modes.enter_context(self._torch)  # the last mode entered is the first to see an operator
        return self

    def __exit__(self, *raised: Any) -> None:
        self._modes.__exit__(*raised)
        self.flops += self._torch.get_total_flops()

    def has_formula(self, operator: Any) -> bool:
        """Return whether torch's counter knows an operator, by a formula of torch, of ours or of the user's."""
        return operator._overloadpacket in self._torch.flop_registry


class _TorchCounter(FlopCounterMode):
    """Torch's counter in less time, without its modules: their hooks fail where the code calls autograd.grad."""

    def __init__(self) -> None:
        super().__init__(display=False, custom_mapping=dict(FORMULAS))
        self.mod_tracker = _NoModules()  # type: ignore[assignment]

    def __enter__(self) -> "_TorchCounter":
        self.flop_counts.clear()
        self.mode = _CountByFormula(self)
        self.mode.__enter__()  # type: ignore[no-untyped-call]
        return self


class _NoModules:
    """Stands for torch's tracker of modules, and knows of none."""

    parents = frozenset({"Global"})

    def __exit__(self, *raised: Any) -> None:
        pass


class _CountByFormula(_FlopCounterMode):  # type: ignore[no-untyped-call]
    """Torch's own mode, but for operators of which it can be told once that they are not decomposed."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in `DispatchMode`

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, OpOverload) or not _runs_as_it_is(func):
            return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        return self.counter._count_flops(func._overloadpacket, out, args, kwargs)  # type: ignore[no-untyped-call]


@functools.cache
def _runs_as_it_is(func: OpOverload) -> bool:
    """Whether an operator makes tensors, and not by others."""
    composite = DispatchKey.CompositeImplicitAutograd
    makes_tensors = any(str(result.type).startswith(("Tensor", "List[Tensor")) for result in func._schema.returns)
    return makes_tensors and composite not in func.py_kernels and not func.has_kernel_for_dispatch_key(composite)


class _CountRest(DispatchMode):
    """Adds to a counter the FLOPs of operators without a formula."""

    def __init__(self, counter: FlopCounter) -> None:
        super().__init__()
        self._counter = counter

    def run_operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See `DispatchMode`."""
        inputs = list(_tensors_in((args, kwargs)))
        if func.namespace not in OF_TORCH and not self._counter.has_formula(func) and all(map(_is_plain, inputs)):
            return self._run_library(func, args, kwargs)
        out = func(*args, **kwargs)
        outputs = list(_tensors_in(out))
        if inputs and outputs and not _is_view(func):
            self._counter.has_computed = True
            if not self._counter.has_formula(func) and not _moves_data(func):
                touched = inputs if torch.Tag.reduction in func.tags else outputs
                self._counter.flops += max(tensor.numel() for tensor in touched)
        return out

    def _run_library(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run the kernel of a library's operator, and count what it calls."""
        with FlopCounter() as inside:
            out = func.redispatch(DispatchKeySet(DispatchKey.CPU), *args, **kwargs)
        if not inside.has_computed and any(tensor.numel() for tensor in _tensors_in(out)):
            inside.unknown.add(str(func))
        self._counter.flops += inside.flops
        self._counter.unknown |= inside.unknown
        self._counter.has_computed = True
        return out


def _tensors_in(values: Any) -> Iterator[Tensor]:
    """Yield the tensors of what an operator gets or gives, which is nested in lists, tuples and dictionaries."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors_in(value)
    elif isinstance(values, dict):
        yield from _tensors_in(tuple(values.values()))


def _is_view(func: Any) -> bool:
    return func.is_view or func is torch.ops.aten._unsafe_view.default


def _moves_data(func: Any) -> bool:
    """Whether an operator only copies elements."""
    rule = TABLE.get(f"aten.{func._overloadpacket.__name__.rstrip('_')}")  # an in-place operator moves as much
    return rule is not None and rule.cost in (VIEW, COPY, EMBEDDING)


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor's operators have their kernels under the key of the CPU."""
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
