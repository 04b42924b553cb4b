"""Products with a matrix for each group of rows, in a trace, as mixtures of experts have them.

Torch computes them in float32 as in bfloat16, but without data it refuses all but bfloat16. The operator here stands in
for that of torch, whose arguments it has; it computes nothing.
"""

from typing import Any

import torch
from torch import Tensor

from .stand_ins import Table

_LIBRARY = torch.library.Library("cutset", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None) -> Tensor")  # type: ignore[no-untyped-call]

GROUPED_MM = torch.ops.cutset.grouped_mm.default
GROUPED_STANDS_FOR = {GROUPED_MM: torch.ops.aten._grouped_mm.default}


def _multiply(multiply: Any, *args: Any, **kwargs: Any) -> Any:
    """Multiply rows in groups with a matrix each by the operator of this module; anything else as torch does."""
    self_, mat2, offs, *rest = _bind(*args, **kwargs)
    if self_.dim() == 2 and mat2.dim() == 3 and offs is not None and rest == [None, None]:
        return GROUPED_MM(self_, mat2, offs)
    return multiply(*args, **kwargs)


def _bind(
    mat_a: Tensor, mat_b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> tuple[Any, ...]:
    return mat_a, mat_b, offs, bias, out_dtype


@torch.library.register_fake("cutset::grouped_mm", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _empty_product(self_: Tensor, mat2: Tensor, offs: Tensor | None = None) -> Tensor:
    return self_.new_empty(self_.shape[0], mat2.shape[2])


def _refuse_backward(context: Any, *gradients: Any) -> Any:
    raise AssertionError("a stand-in has no gradient")


# It is registered so that a trace knows that the result carries a gradient.
torch.library.register_autograd("cutset::grouped_mm", _refuse_backward, lib=_LIBRARY)

GROUPED_PRODUCTS: Table = dict.fromkeys((torch.nn.functional.grouped_mm, torch._grouped_mm), _multiply)
