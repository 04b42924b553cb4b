"""Rules and methods as they are asked for: "adam", "adam:beta1=0.8,weight_decay=0.01"."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ..errors import UsageError

T = TypeVar("T", bound=msgspec.Struct)


def named(what: str, text: str, kinds: Mapping[str, type[T]], given: Mapping[str, Any], *, option: str = "") -> T:
    """The rule or method (`what`) that a text asks for. given: fields that the text need not name, or may override.
    option: of the command line, where its name is another.

    UsageError lists what there is where there is none of that name, or no such field.
    """
    option = option or what
    name, _, rest = text.partition(":")
    kind = kinds.get(name)
    if kind is None:
        known = ", ".join(sorted(kinds))
        raise UsageError("E252", f"no {what} {name!r}; there are {known}", fix=f"--{option} {next(iter(kinds))}")
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    found: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        field, equals, value = part.partition("=")
        if not equals or field not in fields:
            known = ", ".join(fields) or "none"
            facts = f"{what} {name} has no option {part!r}; its options are {known}"
            raise UsageError("E254", facts, fix=f"--{option} {name}:OPTION=VALUE")
        found[field] = value
    unknown = [field for field in given if field not in fields]
    if unknown:
        shown = unknown[0].replace("_", "-")
        facts = f"{what} {name} has no option {unknown[0]!r}; its options are {', '.join(fields) or 'none'}"
        raise UsageError("E254", facts, fix=f"leave out --{shown}")
    try:
        read = {field: msgspec.convert(value, type=fields[field].type, strict=False) for field, value in found.items()}
    except msgspec.ValidationError as error:
        raise UsageError("E254", f"{text!r} is no {what}: {error}", fix=f"--{option} {name}") from error
    lacking = [name for name, field in fields.items() if field.required and name not in {**given, **read}]
    if lacking:
        facts = f"{what} {name} needs its option {lacking[0]!r}"
        raise UsageError("E254", facts, fix=f"--{option} {name}:{lacking[0]}=VALUE")
    return kind(**{**given, **read})
