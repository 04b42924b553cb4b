"""The methods by name, as `--method` takes them."""

from typing import get_args

from ..name_and_options import parse_name_and_options
from .all_reduce import AllReduce
from .downpour import Downpour
from .easgd import EASGD
from .hogwild import Hogwild
from .local_sgd import Averaging, DiLoCo
from .sandblaster import Sandblaster
from .ssp import SSP
from .sync import Sync

AnyMethod = Downpour | SSP | Sync | Averaging | DiLoCo | EASGD | AllReduce | Hogwild | Sandblaster
METHODS: dict[str, type[AnyMethod]] = {kind.__struct_config__.tag: kind for kind in get_args(AnyMethod)}


def parse_method(text: str) -> AnyMethod:
    """Return the method that is described as "ssp" or "ssp:staleness=5"; UsageError if there is none such."""
    return parse_name_and_options("method", text, METHODS, {})
