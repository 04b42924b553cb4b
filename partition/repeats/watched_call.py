"""`WatchedCall`: what a call of a module does in Python - which attributes of modules it reads, what code it runs."""

import contextlib
import dis
import functools
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, MethodWrapperType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ..operators.flop_counter import OF_TORCH
from ..trace.user_frames import is_users_file
from ..trace.value_numbers import PLAIN

_OWN_GRADIENT = ("apply", "torch/autograd/function.py")
_OF_OPERATORS = "torch/_library/autograd.py"
# Names by which code reaches what its own names do not show.
_REACHING = frozenset(("setattr", "delattr", "globals", "vars", "exec", "eval", "__import__", "import_module"))
_REBINDING = ("STORE_GLOBAL", "DELETE_GLOBAL")
# What torch's functions get that has no code of the model, which they would run. Of subclasses nothing is known.
_TENSORS = (Tensor, nn.Parameter, FakeTensor)
_WITHOUT_CODE = frozenset((*PLAIN, *_TENSORS, torch.Size, torch.SymInt, torch.SymFloat, torch.SymBool, type(...)))
_CONTAINERS = (tuple, list)
_RUNNING_BACKWARD = (torch.autograd.grad, torch.autograd.backward, Tensor.backward)


class WatchedCall:
    """Watches this thread while it is active, also within another one.

    No garbage may be collected then: that runs code of anyone.

    reads: modules and names of the attributes that were read, also in vain, by id and name. code: of the model's own
    functions that ran, with their globals. is_opaque: whether something was done that a later call would miss: an
    attribute of a module was written, a global name was bound, code of the model imported or reached by text, or an
    autograd function called that is not a custom operator's.
    """

    def __init__(self) -> None:
        self.reads: dict[tuple[int, str], nn.Module] = {}
        self.code: dict[CodeType, Mapping[str, Any]] = {}
        self.is_opaque = False
        self._seen: dict[int, CodeType] = {}  # by id, as it takes long to compare code
        self._tracer: Any = None
        self._around: Any = None  # the tracer of the call around this one
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> "WatchedCall":
        self._entered.enter_context(watch_modules())
        if not _active:
            self._entered.enter_context(UNWATCHED)
        _active.append(self)
        self._tracer = sys.gettrace()
        self._around = self._tracer if isinstance(getattr(self._tracer, "__self__", None), WatchedCall) else None
        sys.settrace(self._note_code)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.settrace(self._tracer)
        _active.remove(self)
        self._entered.close()

    def _note_code(self, frame: FrameType, event: str, argument: object) -> None:
        if self._around is not None:
            self._around(frame, event, argument)
        code = frame.f_code
        if id(code) in self._seen:
            return
        if code.co_name == _OWN_GRADIENT[0] and code.co_filename.endswith(_OWN_GRADIENT[1]):
            # A custom operator's gradient is a function of torch's: a trace has the operator.
            self.is_opaque |= not frame.f_back or not frame.f_back.f_code.co_filename.endswith(_OF_OPERATORS)
            return
        self._seen[id(code)] = code
        if is_users_file(code.co_filename):
            self.code[code] = frame.f_globals
            reaches = not _REACHING.isdisjoint(code.co_names) or {"sys", "modules"} <= {*code.co_names}
            self.is_opaque |= reaches or _binds_outer_names(code)


class _UnwatchedFunctions(TorchFunctionMode):
    """While it is active, functions of torch that run no code of the model are not watched, which would take long."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, tracer = kwargs or {}, sys.gettrace()
        if tracer is None or isinstance(func, MethodWrapperType):  # to watch an attribute takes less than not to
            return func(*args, **kwargs)
        sys.settrace(None)
        try:
            if _may_run_users_code(func, args, kwargs):
                sys.settrace(tracer)
            return func(*args, **kwargs)
        finally:
            sys.settrace(tracer)


def _may_run_users_code(func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a function may run code of the model, such as a hook, a mode, or what computes an operator's result."""
    if isinstance(func, HigherOrderOperator) or func in _RUNNING_BACKWARD:
        return True
    if isinstance(func, OpOverload | OpOverloadPacket) and str(func).partition(".")[0] not in OF_TORCH:
        return True
    code = getattr(getattr(func, "__wrapped__", func), "__code__", None)
    if code is not None and is_users_file(code.co_filename):
        return True
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return True
    modes = (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack())  # type: ignore[no-untyped-call]
    return any(_is_users_module(type(mode).__module__) for mode in modes) or not (
        _is_without_code(args) and _is_without_code(tuple(kwargs.values()))
    )


def _is_without_code(values: Any) -> bool:
    """Whether nested arguments are of torch's and Python's own classes alone."""
    return all(
        type(value) in _WITHOUT_CODE or (type(value) in _CONTAINERS and _is_without_code(value)) for value in values
    )


UNWATCHED = _UnwatchedFunctions()  # one for all: which modes are active says what a call computes, but for this one
_active: list[WatchedCall] = []  # a layer may call another one that it does not hold
_unwatched: dict[str, Any] = {}  # the methods of modules that are exchanged meanwhile


@contextlib.contextmanager
def watch_modules() -> Iterator[None]:
    """Have calls that are watched meanwhile note what attributes of modules are read, and that one is written.

    Worth while around many calls: with each exchange of methods Python forgets what it knows of all classes of modules,
    of which a library of models has thousands.
    """
    if _unwatched:
        yield
        return
    _unwatched["write"], _unwatched["delete"] = nn.Module.__setattr__, nn.Module.__delattr__
    nn.Module.__getattribute__ = _read_attribute  # type: ignore[method-assign, assignment]
    nn.Module.__setattr__ = _write_attribute  # type: ignore[method-assign, assignment]
    nn.Module.__delattr__ = _delete_attribute  # type: ignore[method-assign]
    try:
        yield
    finally:
        del nn.Module.__getattribute__
        nn.Module.__setattr__ = _unwatched.pop("write")  # type: ignore[method-assign]
        nn.Module.__delattr__ = _unwatched.pop("delete")  # type: ignore[method-assign]


def _read_attribute(module: nn.Module, name: str) -> Any:
    for call in _active:
        call.reads[id(module), name] = module
    if name == "__dict__" and is_users_file(sys._getframe(1).f_code.co_filename):
        _note_change()
    return object.__getattribute__(module, name)


def _write_attribute(module: nn.Module, name: str, value: Any) -> None:
    _note_change()
    _unwatched["write"](module, name, value)


def _delete_attribute(module: nn.Module, name: str) -> None:
    _note_change()
    _unwatched["delete"](module, name)


def _note_change() -> None:
    for call in _active:
        call.is_opaque = True


@functools.lru_cache(maxsize=4096)  # each call of a layer runs the same code
def _binds_outer_names(code: CodeType) -> bool:
    """Whether a function binds names that are not its own, or imports code of the model's."""
    outer = set(code.co_freevars)
    instructions = list(dis.get_instructions(code))
    levels = [
        None,
        None,
        *(one.argval for one in instructions),
    ]  # of the instruction two before each: dots of an import
    return any(
        one.opname in _REBINDING
        or (one.opname in ("STORE_DEREF", "DELETE_DEREF") and one.argval in outer)
        or (one.opname == "IMPORT_NAME" and (level != 0 or _is_users_module(one.argval)))
        for one, level in zip(instructions, levels, strict=False)
    )


@functools.lru_cache(maxsize=256)
def _is_users_module(name: str) -> bool:
    """Whether an imported file is, or may be, of the model's code."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return is_users_file(file) if file is not None else name.partition(".")[0] not in sys.builtin_module_names
