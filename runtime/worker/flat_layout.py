"""How parameters lie in a flat buffer: of one dtype, in an order in which pairs of numbers begin at even places."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from ...errors import BadInput

T = TypeVar("T")


def sort_for_flat_buffer(pieces: Iterable[T], elements: Callable[[T], int]) -> list[T]:
    """Return pieces in the order in which they lie one behind the other, `elements` of each.

    Those with an odd number of elements come last. All others then begin at an even place, as `torch.view_as_complex`
    asks of the parameters that a model views as complex numbers; beyond that, the order stays.
    """
    return sorted(pieces, key=lambda piece: elements(piece) % 2)


def find_one_dtype(dtypes: Iterable[str]) -> str:
    """Return the dtype of all parameters, of which there may be none; raise BadInput where they have several (E342)."""
    distinct = sorted(set(dtypes))
    if len(distinct) > 1:
        fix = "make them one, e.g. model.float()"
        if any(dtype.startswith("complex") for dtype in distinct):
            fix = "keep complex ones as nn.Parameter(torch.view_as_real(w)), and read them by torch.view_as_complex"
        raise BadInput("E342", f"the parameters have several dtypes: {', '.join(distinct)}", fix=fix)
    return distinct[0] if distinct else "float32"
