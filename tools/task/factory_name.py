"""How a factory is named: "pkg.module:factory" or "file.py:factory", with arguments as "factory(layers=12,width=768)".

Arguments are Python literals by keyword: numbers, strings, True, None, lists and the like. Nothing is evaluated.
"""

import ast
import re
from dataclasses import dataclass
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
