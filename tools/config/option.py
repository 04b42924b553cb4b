"""How an option of a training run is declared: as a field of `RunConfig` with its help, group, flag and check.

From these fields come the options of the commands (tools/commands/config_options.py), the signature of `cutset.train`
(`takes_options_of`) and the file config.json of a run (config_file.py).
"""

import inspect
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from ...errors import UsageError

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")
Check = Callable[[str, Any], None]  # the flag and the value; raises UsageError

MAX_WHOLE = 2**31 - 1  # of a whole number: products of a few of them still fit into messages
_KEY = "option"  # in the metadata of a field


@dataclass(frozen=True)
class Option:
    """The declaration of an option, beside its name, type and default.

    group: the title above it in `--help`. flag: its name on the command line, as "--leaf-modules". metavar: the name of
    its value there. check: refuses values of the right type that make no sense. shown_default: the default in words,
    if it is None.
    """

    help: str
    group: str
    flag: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    check: Check | None = None
    shown_default: str = ""


def option(
    default: Any = None,
    *,
    help: str,
    group: str,
    flag: str = "",
    metavar: str | None = None,
    choices: tuple[str, ...] = (),
    check: Check | None = None,
    shown_default: str = "",
) -> Any:
    """Return the dataclass field of an option; see `Option`. By default its flag is made from its name."""
    declared = Option(
        help, group, flag, metavar, choices, check or (one_of(*choices) if choices else None), shown_default
    )
    return field(default=default, metadata={_KEY: declared})


def option_of(one: "Field[Any]") -> Option | None:
    """Return the declaration of a field of a config; None if the field is not an option."""
    declared: Option | None = one.metadata.get(_KEY)
    if declared is None or declared.flag:
        return declared
    return Option(**{**vars(declared), "flag": "--" + one.name.replace("_", "-")})


def options_of(config: type[Any]) -> "list[tuple[Field[Any], Option]]":
    """Return the fields of a config that are options, in order."""
    return [(one, declared) for one in fields(config) if (declared := option_of(one)) is not None]


def first_type(one: "Field[Any]") -> str:
    """Return the first type of a field's annotation, which is that of its value on the command line.

    "int" of `int | None`, "tuple" of `tuple[str, ...]`, "str" of `str | AnyMethod`. It is read as text, so that types
    that need torch are not loaded for a help page.
    """
    return str(one.type).partition("[")[0].partition("|")[0].strip()


# Checks --------------------------------------------------------------------------------------------------------------


def whole_number(least: int, most: int = MAX_WHOLE) -> Check:
    """Return the check that a value is a whole number from `least` to `most`."""

    def check(flag: str, value: Any) -> None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and least <= value <= most:
            return
        limit = f"of at least {least}" if most == MAX_WHOLE else f"from {least} to {most}"
        limit = f"of at most {most}" if whole and value > most else limit
        near = most if whole and value > most else least
        raise UsageError("E220", f"{flag} {value}; it must be a whole number {limit}", fix=f"{flag} {near}")

    return check


def number(least: float) -> Check:
    """Return the check that a value is a finite number of at least `least`."""

    def check(flag: str, value: Any) -> None:
        if not _is_number(value) or not least <= value < math.inf:
            raise UsageError(
                "E220", f"{flag} {value}; it must be a number of at least {least:g}", fix=f"{flag} {least:g}"
            )

    return check


def fraction(code: str, what: str, *, such: float) -> Check:
    """Return the check that a value is between 0 and 1. what: a phrase for the value; such: a value to suggest."""

    def check(flag: str, value: Any) -> None:
        if not _is_number(value) or not 0 <= value <= 1:
            raise UsageError(code, f"{flag} {value}; it must be {what}, from 0 to 1", fix=f"{flag} {such:g}")

    return check


def one_of(*choices: str, code: str = "E224") -> Check:
    """Return the check that a value is one of these."""

    def check(flag: str, value: Any) -> None:
        if value not in choices:
            raise UsageError(code, f"{flag} {value}; it must be {' or '.join(choices)}", fix=f"{flag} {choices[0]}")

    return check


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def strings(flag: str, value: Any) -> None:
    """Raise UsageError unless a value is a sequence of strings."""
    if not all(isinstance(item, str) for item in value):
        raise UsageError("E220", f"{flag} {value!r}; it must be a text, or a list of texts", fix=f"{flag} TEXT")


# Functions that take options -----------------------------------------------------------------------------------------


def takes_options_of(config: Callable[P, C]) -> Callable[[Callable[[C], R]], Callable[P, R]]:
    """Return a decorator for a function of a config, so that it takes the options of the config instead.

    Type checkers see the options by `P`; `inspect.signature` and `help()` see them as well.
    """

    def decorate(function: Callable[[C], R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            return function(config(*args, **options))

        returns = inspect.signature(function).return_annotation
        call.__signature__ = inspect.signature(config).replace(return_annotation=returns)  # type: ignore[attr-defined]
        call.__doc__ = f"{inspect.getdoc(function)}\n\n{_describe_options(config)}"
        return call

    return decorate


def _describe_options(config: Any) -> str:
    """Return the help of all options, for a docstring."""
    lines: Sequence[str] = [
        textwrap.fill(f"{one.name}: {declared.help}{_describe_default(one, declared)}", 116, subsequent_indent="    ")
        for one, declared in options_of(config)
    ]
    return "\n".join(lines)


def _describe_default(one: "Field[Any]", declared: Option) -> str:
    if declared.shown_default:
        return f" By default {declared.shown_default}."
    if one.default in (None, (), "", MISSING):
        return ""
    return f" By default {one.default!r}."
