"""JSON that every reader takes: a number that is not finite, for which JSON has no word, is null."""

from typing import Any

import msgspec


def to_json(value: Any, *, indent: int = 0) -> str:
    """Return plain data as JSON, in one line or, with an indent, in several."""
    encoded = msgspec.json.encode(value)
    return (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()
