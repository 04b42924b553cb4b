"""How parameters lie in a flat buffer: in a dtype that holds them all, pairs of numbers at even places.

Mixed precision training (Micikevicius et al., ICLR 2018, section 3.1) keeps "an FP32 master copy of weights", to which
updates go that would be lost in the rounding of a half; each step computes with rounded copies. Here the flat buffer is
the master copy, in the replicas and on the shards, where the optimizer's state has its dtype, too.
"""

from collections.abc import Callable, Iterable
from functools import reduce
from typing import TypeVar

import torch
from torch import Tensor

from ...errors import BadInput

T = TypeVar("T")


def sort_for_flat_buffer(pieces: Iterable[T], elements: Callable[[T], int]) -> list[T]:
    """Return pieces in the order in which they lie one behind the other, `elements` of each.

    Those with an odd number of elements come last. All others then begin at an even place, as `torch.view_as_complex`
    asks of the parameters that a model views as complex numbers; beyond that, the order stays.
    """
    return sorted(pieces, key=lambda piece: elements(piece) % 2)


def find_flat_dtype(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """Return the dtype that holds all parameters unrounded, of which there may be none; float32 at least.

    BadInput where some are complex and others are not (E342).
    """
    distinct = set(dtypes)
    if len(distinct) > 1 and any(dtype.is_complex for dtype in distinct):
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in distinct))
        fix = "keep complex ones as nn.Parameter(torch.view_as_real(w)), and read them by torch.view_as_complex"
        raise BadInput("E342", f"the parameters have the dtypes {names}", fix=fix)
    return reduce(torch.promote_types, distinct, torch.float32)


class RoundedCopies:
    """Parameters that are copies of parts of a flat buffer in another dtype, with gradients of their own.

    None where all parameters have the dtype of the buffer: then they are views of it, and nothing is done here.
    """

    def __init__(self, copies: Iterable[tuple[Tensor, slice]]) -> None:
        """copies: each with the elements of the flat buffer that it is a copy of."""
        self._copies = list(copies)

    def refresh(self, values: Tensor) -> None:
        """Round the parameters in a flat buffer [n]; to be called before they are read."""
        if not self._copies:  # to enter a mode of torch takes longer
            return
        with torch.no_grad():
            for copy, span in self._copies:
                copy.copy_(values[span].view(copy.shape))

    def collect(self, gradients: Tensor) -> None:
        """Add the gradients of the copies to the flat ones [n], and begin them anew; to be called after backward."""
        if not self._copies:
            return
        with torch.no_grad():
            for copy, span in self._copies:
                if copy.grad is not None:
                    gradients[span].view(copy.shape).add_(copy.grad)
                    copy.grad.zero_()
