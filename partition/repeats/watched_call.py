"""`WatchedCall`: what a call of a module does in Python - which attributes of modules it reads, what code it runs."""

import dis
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, TracebackType
from typing import Any

from torch import nn

from ..trace.user_frames import is_users_file

_OWN_GRADIENT = ("apply", "torch/autograd/function.py")
_OF_OPERATORS = "torch/_library/autograd.py"
# Names by which code reaches what its own names do not show.
_REACHING = frozenset(("setattr", "delattr", "globals", "vars", "exec", "eval", "__import__", "import_module"))
_REBINDING = ("STORE_GLOBAL", "DELETE_GLOBAL")


class WatchedCall:
    """Watches this thread while it is active. No garbage may be collected then: that runs code of anyone.

    reads: modules and names of the attributes that were read, also in vain, by id and name. code: of the model's own
    functions that ran, with their globals. is_opaque: whether something was done that a later call would miss: an
    attribute of a module was written, a global name was bound, code of the model imported or reached by text, or an
    autograd function called that is not a custom operator's. follows_code: whether it is to see what code runs, by
    which a call takes twice as long.
    """

    def __init__(self, *, follows_code: bool = True) -> None:
        self._follows_code = follows_code
        self.reads: dict[tuple[int, str], nn.Module] = {}
        self.code: dict[CodeType, Mapping[str, Any]] = {}
        self.is_opaque = False
        self._seen: dict[int, CodeType] = {}  # by id, as it takes long to compare code
        self._tracer: Any = None

    def __enter__(self) -> "WatchedCall":
        reads = self.reads

        def read(module: nn.Module, name: str) -> Any:
            reads[id(module), name] = module
            if name == "__dict__" and is_users_file(sys._getframe(1).f_code.co_filename):
                self.is_opaque = True
            return object.__getattribute__(module, name)

        self._write, self._delete = nn.Module.__setattr__, nn.Module.__delattr__
        nn.Module.__getattribute__ = read  # type: ignore[method-assign, assignment]
        nn.Module.__setattr__ = self._note(self._write)  # type: ignore[method-assign]
        nn.Module.__delattr__ = self._note(self._delete)  # type: ignore[method-assign]
        self._tracer = sys.gettrace()
        if self._follows_code:
            sys.settrace(self._note_code)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.settrace(self._tracer)
        del nn.Module.__getattribute__
        nn.Module.__setattr__ = self._write  # type: ignore[method-assign]
        nn.Module.__delattr__ = self._delete  # type: ignore[method-assign]

    def _note(self, change: Callable[..., None]) -> Callable[..., None]:
        def note(module: nn.Module, *args: Any) -> None:
            self.is_opaque = True
            change(module, *args)

        return note

    def _note_code(self, frame: FrameType, event: str, argument: object) -> None:
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
