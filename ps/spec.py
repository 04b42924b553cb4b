"""Rules and methods as they are asked for: "adam", "adam:beta1=0.8,weight_decay=0.01"."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ..partition.errors import UsageError

T = TypeVar("T", bound=msgspec.Struct)


def named(what: str, text: str, kinds: Mapping[str, type[T]], given: Mapping[str, Any]) -> T:
    """The rule or method (`what`) that a text asks for. given: fields that the text need not name, or may override.

    UsageError lists what there is where there is none of that name, or no such field.
    """
    name, _, rest = text.partition(":")
    kind = kinds.get(name)
    if kind is None:
        known = ", ".join(sorted(kinds))
        raise UsageError("E252", f"no {what} {name!r}; there are {known}", fix=f"--{what} {next(iter(kinds))}")
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    found: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        field, equals, value = part.partition("=")
        if not equals or field not in fields:
            known = ", ".join(fields) or "none"
            facts = f"{what} {name} has no option {part!r}; its options are {known}"
            raise UsageError("E254", facts, fix=f"--{what} {name}:OPTION=VALUE")
        found[field] = value
    unknown = [field for field in given if field not in fields]
    if unknown:
        shown = unknown[0].replace("_", "-")
        facts = f"{what} {name} has no option {unknown[0]!r}; its options are {', '.join(fields) or 'none'}"
        raise UsageError("E254", facts, fix=f"leave out --{shown}")
    try:
        read = {field: msgspec.convert(value, type=fields[field].type, strict=False) for field, value in found.items()}
    except msgspec.ValidationError as error:
        raise UsageError("E254", f"{text!r} is no {what}: {error}", fix=f"--{what} {name}") from error
    return kind(**{**given, **read})
