"""All methods by name."""

from collections.abc import Mapping
from typing import Any, get_args

from .all_reduce import AllReduce
from .averaging import Averaging
from .diloco import DiLoCo
from .downpour import Downpour
from .easgd import EASGD
from .hogwild import Hogwild
from .sandblaster import Sandblaster
from ..name_and_options import named
from .ssp import SSP
from .sync import Sync

AnyMethod = Downpour | SSP | Sync | Averaging | DiLoCo | EASGD | AllReduce | Hogwild | Sandblaster
METHODS: dict[str, type[AnyMethod]] = {kind.__struct_config__.tag: kind for kind in get_args(AnyMethod)}


def method(text: str, given: Mapping[str, Any]) -> AnyMethod:
    """The method asked for as "ssp" or "ssp:staleness=5"; given: options said apart. UsageError where there is none."""
    return named("method", text, METHODS, given)
