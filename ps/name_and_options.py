"""Parses a name with options, as optimizers, methods and compressions are given: "adam:beta1=0.8,weight_decay=0.01"."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ..errors import UsageError

T = TypeVar("T", bound=msgspec.Struct)


def parse_name_and_options(
    category: str, text: str, kinds: Mapping[str, type[T]], defaults: Mapping[str, Any], *, option: str = ""
) -> T:
    """Return the optimizer, method or compression (the `category`) that a text describes.

    kinds: the types by name, whose fields are their options. defaults: values of fields that the text need not give.
    option: the command-line option, if its name is not the category. Raises UsageError E252 for an unknown name, and
    E254 for an unknown, invalid or missing option; they list what there is.
    """
    option = option or category
    name, _, options = text.partition(":")
    kind = kinds.get(name)
    if kind is None:
        known = ", ".join(sorted(kinds))
        raise UsageError("E252", f"no {category} {name!r}; there are {known}", fix=f"--{option} {next(iter(kinds))}")
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    texts: dict[str, Any] = {}
    for part in filter(None, options.split(",")):
        field, equals, value = part.partition("=")
        if not equals or field not in fields:
            known = ", ".join(fields) or "none"
            facts = f"{category} {name} has no option {part!r}; its options are {known}"
            raise UsageError("E254", facts, fix=f"--{option} {name}:OPTION=VALUE")
        texts[field] = value
    unknown = [field for field in defaults if field not in fields]
    if unknown:
        facts = f"{category} {name} has no option {unknown[0]!r}; its options are {', '.join(fields) or 'none'}"
        raise UsageError("E254", facts, fix=f"leave out --{unknown[0].replace('_', '-')}")
    try:
        values = {
            field: msgspec.convert(value, type=fields[field].type, strict=False) for field, value in texts.items()
        }
    except msgspec.ValidationError as error:
        raise UsageError("E254", f"{text!r} is no {category}: {error}", fix=f"--{option} {name}") from error
    missing = [name for name, field in fields.items() if field.required and name not in {**defaults, **values}]
    if missing:
        facts = f"{category} {name} needs its option {missing[0]!r}"
        raise UsageError("E254", facts, fix=f"--{option} {name}:{missing[0]}=VALUE")
    return kind(**{**defaults, **values})
