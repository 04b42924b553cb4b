"""What a step changes outside of tensors: plain attributes of modules, and the generators of Python and numpy."""

import random
import sys
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .user_frames import CodeLine, find_code_line, format_line, is_users

MAX_DEPTH = 8  # of containers and objects within each other
_PLAIN = (bool, int, float, complex, str, bytes, type(None), Enum)
_NEVER_CHANGES = (Tensor, nn.Module, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
_OF_TORCH = frozenset(vars(nn.Module()))

Attributes = Mapping[tuple[str, str], Any]  # by module and name: the value in a form that can be compared


@dataclass(frozen=True)
class Change:
    """An attribute that a step changes. before, after: its values, "" where they are not short."""

    module: str
    attribute: str
    before: str
    after: str

    @property
    def described(self) -> str:
        """The change, such as "steps of layers.0 (1, then 2)"."""
        values = f" ({self.before}, then {self.after})" if self.before and self.after else ""
        return f"{self.attribute}{f' of {self.module}' if self.module else ''}{values}"


def read_attributes(model: nn.Module) -> Attributes:
    """Return what all modules hold besides tensors and modules."""
    return {
        (name, key): _describe(value, {}, 0)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in _OF_TORCH
    }


def list_tensors(model: nn.Module, wanted: Callable[[Tensor], bool]) -> list[Change]:
    """Return the attributes of modules, besides parameters and buffers, that hold a wanted tensor."""
    return [
        Change(name, key, "", "")
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in _OF_TORCH and any(isinstance(leaf, Tensor) and wanted(leaf) for leaf in tree_leaves(value))
    ]


def list_held_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors, besides parameters and buffers, that modules hold, by name."""
    return {
        f"{name}.{key}.{number}": leaf
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in _OF_TORCH
        for number, leaf in enumerate(tree_leaves(value))
        if isinstance(leaf, Tensor)
    }


def list_changes(before: Attributes, after: Attributes) -> list[Change]:
    """Return the attributes that are there before and after, with different values."""
    return [
        Change(*name, _show(value), _show(after[name]))
        for name, value in before.items()
        if name in after and after[name] != value
    ]


def _describe(value: Any, around: Mapping[int, None], depth: int) -> Any:
    """Return a value as plain data. around: ids of the containers and objects that it is within."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, _NEVER_CHANGES) or id(value) in around or depth == MAX_DEPTH:
        return type(value).__name__
    within = {**around, id(value): None}
    if isinstance(value, list | tuple | deque):
        return [_describe(one, within, depth + 1) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_describe(one, within, depth + 1)) for one in value)
    if isinstance(value, Mapping):
        return [(_describe(key, within, depth + 1), _describe(one, within, depth + 1)) for key, one in value.items()]
    if isinstance(value, random.Random):
        return value.getstate()
    generator = getattr(value, "bit_generator", None) or getattr(value, "_bit_generator", None)  # of numpy's
    if generator is not None:
        return repr(generator.state)
    return type(value).__name__, _describe(getattr(value, "__dict__", None), within, depth + 1)


def _show(value: Any) -> str:
    return repr(value) if isinstance(value, bool | int | float | str) and len(repr(value)) < 20 else ""


def read_generators() -> Hashable:
    """Return the states from which the functions of `random`, and of `numpy.random` if it is imported, draw."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return random.getstate()
    kind, key, *rest = numpy.random.get_state()
    return random.getstate(), kind, key.tobytes(), tuple(rest)


def find_drawing_line(run: Callable[[], object]) -> CodeLine | None:
    """Return the first line of the model's code that draws from these generators while `run` is called, if it does."""
    state, last, found = read_generators(), list[tuple[FrameType, str]](), list[CodeLine]()

    def watch(frame: FrameType, event: str, argument: object) -> Any:
        if not is_users(frame) or found:
            return None
        if last and read_generators() != state:
            drawing, line = last.pop()
            found.append(replace(find_code_line(drawing), line=line))
        last[:] = [(frame, format_line(frame))]
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        run()
    finally:
        sys.settrace(before)
    return found[0] if found else None
