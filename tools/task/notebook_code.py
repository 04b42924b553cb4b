"""A function of a notebook as a file, from which the processes of a run import it. Nothing is pickled: source travels.

The rule: the function, and by name what it uses. Functions and classes of the notebook are written out as they stand
in their cells, with what these use in turn; modules, and what comes from modules, are imported; numbers, texts, dtypes,
and lists, tuples, sets and dicts of them are written as they are now. Whatever else a name means, a tensor or a model
in memory, cannot be written, and is an error that names it.
"""

import ast
import hashlib
import inspect
import linecache
import math
import symtable
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from ...errors import BadInput
from ...whole_file import write_whole
from ..run_folder import RUNS

FOLDER = RUNS / "notebooks"
_CELL = "ipykernel"  # in the name of the file that a cell is taken to be
_NOTE = '"""Written by cutset of a notebook: what its task consists of. A change here changes nothing there."""'
_LITERALS = (int, float, complex, str, bytes, bool, type(None))
_BRACKETS: Mapping[type[Any], tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), set: ("set([", "])")}


def stands_in_notebook(value: object) -> bool:
    """Return whether a function or a class was defined in a cell of a notebook, whose source is known."""
    code = _find_code(value)
    return code is not None and not Path(code).is_file() and bool(linecache.getlines(code))


def write_notebook_code(function: FunctionType) -> str:
    """Write a function of a notebook, and what it uses, to a file under runs/notebooks; return its name for a run.

    The same code has the same file. BadInput where it uses what cannot be written.
    """
    collected = _Collected()
    collected.add(function.__name__, function, f"the function {function.__name__}")
    text = collected.to_source()
    folder = FOLDER / f"{function.__name__}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "task.py"
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        write_whole(file, text)
    return f"{file.resolve()}:{function.__name__}"


class _Collected:
    """Names with what they stand for, each after those that it needs."""

    def __init__(self) -> None:
        self._imports: dict[str, str] = {}
        self._definitions: dict[str, str] = {}  # in order
        self._known: dict[str, Any] = {}

    def to_source(self) -> str:
        parts = [_NOTE, "\n".join(sorted(self._imports.values())), *self._definitions.values()]
        return "\n\n\n".join(part for part in parts if part) + "\n"

    def add(self, name: str, value: Any, user: str) -> None:
        """Add what a name stands for. user: who uses it, in words."""
        if name in self._known:
            if self._known[name] is not value:
                raise _refuse(user, name, "means two things in different cells", "give one of them another name")
            return
        self._known[name] = value
        if isinstance(value, ModuleType):
            self._imports[name] = f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else "")
        elif _is_from_module(value):
            own = value.__qualname__
            self._imports[name] = f"from {value.__module__} import {own}" + (f" as {name}" if name != own else "")
        elif stands_in_notebook(value):
            self._add_definition(name, value)
        elif (text := _write_literal(value)) is not None:
            self._definitions[name] = f"{name} = {text}"
            if "torch." in text:
                self._imports["torch"] = "import torch"
        else:
            what = f"is a {type(value).__name__} in memory, which is not code"
            raise _refuse(user, name, what, "make it inside of the function, or read it from a file there")

    def _add_definition(self, name: str, value: Any) -> None:
        text, scope = _find_definition(name, value), _find_scope(value)
        for used in _list_outer_names(text):
            if used in scope and used != name:
                self.add(used, scope[used], f"the {'class' if isinstance(value, type) else 'function'} {name}")
        self._definitions[name] = text


def _refuse(user: str, name: str, what: str, fix: str) -> BadInput:
    return BadInput("E307", f"{user} uses {name}, which {what}", fix=fix)


def _find_code(value: object) -> str | None:
    """Return the file, or the cell, in which a function or a class was defined."""
    if isinstance(value, FunctionType):
        return str(inspect.unwrap(value).__code__.co_filename)
    if isinstance(value, type):  # by a method of its own; those that a dataclass is given stand nowhere
        methods = (inspect.unwrap(one) for one in vars(value).values() if callable(one))
        files = (one.__code__.co_filename for one in methods if isinstance(one, FunctionType))
        return next((file for file in files if linecache.getlines(file)), None)
    return None


def _find_scope(value: Any) -> Mapping[str, Any]:
    """Return what the names mean that a function or a class of a notebook sees."""
    if isinstance(value, FunctionType):
        function = inspect.unwrap(value)
        return {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    return vars(sys.modules[value.__module__])


def _find_definition(name: str, value: Any) -> str:
    """Return the text of the statement that defines a function or a class under a name, decorators included.

    It stands in the cell of its code, or, where a decorator of another cell has replaced it, in the last that has it.
    """
    own = _find_code(value) or ""
    replaced = value.__name__ != name or "<locals>" in value.__qualname__
    others = [file for file in reversed(linecache.cache) if replaced and _CELL in file and file != own]
    for file in (own, *others):
        text = "".join(linecache.getlines(file))
        for node in reversed(ast.parse(text).body):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    facts = f"{name} is not defined by that name at the left margin of a cell"
    raise BadInput("E307", facts, fix=f"define it there: def {name}(...):")


def _list_outer_names(text: str) -> list[str]:
    """Return the names that a definition reads and does not bind itself, in alphabetical order."""
    names = set[str]()

    def visit(table: symtable.SymbolTable) -> None:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module"):
                names.add(symbol.get_name())
        for inner in table.get_children():
            visit(inner)

    visit(symtable.symtable(text, "<cell>", "exec"))
    return sorted(names)


def _is_from_module(value: Any) -> bool:
    """Return whether a value can be imported by its own name, from a module that is no notebook."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    known = sys.modules.get(module) if isinstance(module, str) else None
    return module != "__main__" and known is not None and name.isidentifier() and getattr(known, name, None) is value


def _write_literal(value: Any) -> str | None:
    """Return a value as Python writes it; None where it is not made of literals."""
    if isinstance(value, torch.dtype):
        return repr(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if type(value) in _LITERALS:
        return repr(value)
    if type(value) is dict:
        pairs = [(_write_literal(key), _write_literal(one)) for key, one in value.items()]
        known = [f"{key}: {one}" for key, one in pairs if key is not None and one is not None]
        return "{" + ", ".join(known) + "}" if len(known) == len(pairs) else None
    if type(value) in _BRACKETS:
        parts = [part for part in map(_write_literal, value) if part is not None]
        begin, end = _BRACKETS[type(value)]
        comma = "," if len(parts) == 1 else ""
        return f"{begin}{', '.join(parts)}{comma}{end}" if len(parts) == len(value) else None
    return None
