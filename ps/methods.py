"""All methods by name."""

from collections.abc import Mapping
from typing import Any

from .downpour import Downpour
from .spec import named
from .ssp import SSP
from .sync import Sync

AnyMethod = Downpour | SSP | Sync
METHODS: dict[str, type[AnyMethod]] = {"downpour": Downpour, "ssp": SSP, "sync": Sync}


def method(text: str, given: Mapping[str, Any]) -> AnyMethod:
    """The method asked for as "ssp" or "ssp:staleness=5"; given: options said apart. UsageError where there is none."""
    return named("method", text, METHODS, given)
