"""`WatchedCall`: what a call of a module does in Python - which attributes of modules it reads, what code it runs."""

import contextlib
import dis
import functools
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, TracebackType
from typing import Any

from torch import nn
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode

from ..trace.user_frames import is_users_file

_OWN_GRADIENT = ("apply", "torch/autograd/function.py")
_OF_OPERATORS = "torch/_library/autograd.py"
# Names by which code reaches what its own names do not show.
_REACHING = frozenset(("setattr", "delattr", "globals", "vars", "exec", "eval", "__import__", "import_module"))
_REBINDING = ("STORE_GLOBAL", "DELETE_GLOBAL")


class WatchedCall:
    """Watches this thread while it is active, also within another one.

    No garbage may be collected then: that runs code of anyone.

    reads: modules and names of the attributes that were read, also in vain, by id and name. code: of the model's own
    functions that ran, with their globals. is_opaque: whether something was done that a later call would miss: an
    attribute of a module was written, a global name was bound, code of the model imported or reached by text, or an
    autograd function called that is not a custom operator's. follows_operators: whether it is to see the code within
    functions of torch, too, by which a call takes twice as long.
    """

    def __init__(self, *, follows_operators: bool = True) -> None:
        self.follows_operators = follows_operators
        self.reads: dict[tuple[int, str], nn.Module] = {}
        self.code: dict[CodeType, Mapping[str, Any]] = {}
        self.is_opaque = False
        self._seen: dict[int, CodeType] = {}  # by id, as it takes long to compare code
        self._tracer: Any = None
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> "WatchedCall":
        self._entered.enter_context(watch_modules())
        _active.append(self)
        if not self.follows_operators:
            self._entered.enter_context(_UNWATCHED)
        self._tracer = sys.gettrace()
        sys.settrace(self._note_code)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.settrace(self._tracer)
        _active.remove(self)
        self._entered.close()

    def _note_code(self, frame: FrameType, event: str, argument: object) -> None:
        if isinstance(getattr(self._tracer, "__self__", None), WatchedCall):
            self._tracer(frame, event, argument)
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
    """While it is active, the code of torch's functions is not seen, unless a watched call follows operators."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _runs_users_code(func) or any(call.follows_operators for call in _active):
            return func(*args, **kwargs)
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            return func(*args, **kwargs)
        finally:
            sys.settrace(tracer)


def _runs_users_code(func: Any) -> bool:
    code = getattr(getattr(func, "__wrapped__", func), "__code__", None)
    return isinstance(func, HigherOrderOperator) or (code is not None and is_users_file(code.co_filename))


_UNWATCHED = _UnwatchedFunctions()  # one for all, as calls that get other modes count as unlike
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


def _is_users_module(name: str) -> bool:
    """Whether an imported file is, or may be, of the model's code."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return is_users_file(file) if file is not None else name.partition(".")[0] not in sys.builtin_module_names
