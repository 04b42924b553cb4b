"""How a factory is named: "pkg.module:factory" or "file.py:factory", with arguments as "factory(layers=12,width=768)".

Arguments are Python literals by keyword: numbers, strings, True, None, lists and the like. Nothing is evaluated.
"""

import ast
import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UsageError

_FORM = re.compile(r"(?P<module>.+?):(?P<factory>\w+)(?P<call>\((?P<arguments>.*)\))?", re.DOTALL)
_AS = "as 'cutset.models:transformer(layers=12,width=768)', in quotes"


@dataclass(frozen=True)
class FactoryName:
    """module: its name or the path of a ".py" file."""

    module: str
    factory: str
    arguments: dict[str, Any]


def parse_factory(text: str) -> FactoryName:
    """The parts of a factory's name; UsageError where it has another form or its arguments are not literals."""
    match = _FORM.fullmatch(text)
    if match is None:
        named = f"{text}:FACTORY" if text.endswith(".py") else "cutset.models:digits"
        raise UsageError("E210", f"{text!r} names no factory", fix=f"pkg.module:FACTORY or file.py:FACTORY, as {named}")
    arguments = _arguments(match["arguments"]) if match["call"] else {}
    return FactoryName(match["module"], match["factory"], arguments)


def name_factory(factory: object) -> str:
    """Return the name of a function that stands in a file or an importable module; a text is one already.

    A function of a notebook is written to a file first (notebook_code.py).

    UsageError where other processes could not find it by a name.
    """
    if isinstance(factory, str):
        return factory
    if isinstance(factory, functools.partial) and not factory.args:
        arguments = ", ".join(f"{name}={value!r}" for name, value in factory.keywords.items())
        return f"{name_factory(factory.func)}({arguments})"
    fix = 'cutset.train(task), with a function "def task(): ..." of a file, or cutset.train("file.py:task")'
    code, name = getattr(factory, "__code__", None), getattr(factory, "__qualname__", "")
    if code is None or not name.isidentifier():
        what = f"the function {name}" if code is not None else f"a {type(factory).__name__} itself"
        facts = f"the task is {what}, which the processes of a run cannot find by a name"
        raise UsageError("E227", facts, fix=f"give a function at the top of a file that returns it: {fix}")
    module = getattr(factory, "__module__", "")
    known = sys.modules.get(module)
    if module != "__main__" and getattr(known, name, None) is factory and getattr(known, "__spec__", None) is not None:
        return f"{module}:{name}"
    if not code.co_filename.endswith(".py") or not Path(code.co_filename).is_file():
        return _name_from_notebook(factory, name)
    return f"{Path(code.co_filename).resolve()}:{name}"


def _name_from_notebook(function: Any, name: str) -> str:
    from .notebook_code import stands_in_notebook, write_notebook_code

    if not stands_in_notebook(function):
        facts = f"the function {name} stands in no file, from which the processes of a run could import it"
        raise UsageError("E227", facts, fix="write it to a file, and import it")
    return write_notebook_code(function)


def is_bundled(model: str) -> bool:
    """Return whether a name is that of a bundled task: something that `cutset.models` exports."""
    from ... import models

    name = parse_factory(model)
    return name.module == models.__name__ and name.factory in models.__all__


def _arguments(text: str) -> dict[str, Any]:
    try:
        # The line break ends a comment, which would else swallow the bracket.
        call = ast.parse(f"f({text}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
        raise UsageError("E215", f"the arguments ({text}) cannot be read: {reason}", fix=_AS) from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise UsageError("E215", f"({text}) is not one list of arguments", fix=_AS)
    if call.args:
        raise UsageError("E215", f"the argument {ast.unparse(call.args[0])} has no name", fix=_AS)
    out: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in out:
            what = "a dictionary" if keyword.arg is None else f"{keyword.arg} twice"
            raise UsageError("E215", f"the arguments ({text}) hold {what}", fix=_AS)
        out[keyword.arg] = _literal(keyword.arg, keyword.value)
    return out


def _literal(name: str, value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        source = ast.unparse(value)
        raise UsageError(
            "E215", f"{name}={source} is no number, string, True, None or list of such", fix=_AS
        ) from error
