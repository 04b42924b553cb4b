"""JSON that every reader takes: a number that is not finite, for which JSON has no word, is null."""

import json
import math
from collections.abc import Mapping
from typing import Any


def to_json(value: Any, *, indent: int = 0) -> str:
    """Return plain data as JSON, in one line or, with an indent, in several. TypeError for what is no plain data."""
    return json.dumps(_replace(value), indent=indent or None, allow_nan=False, default=_get_number)


def _replace(value: Any) -> Any:
    """Return the data with None for every number that is not finite."""
    if isinstance(value, Mapping):
        return {key: _replace(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_replace(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _get_number(value: Any) -> Any:
    """Return the number of numpy or torch that a value is, as Python has it."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return _replace(value.item())
    raise TypeError(f"{type(value).__name__} is no JSON")
