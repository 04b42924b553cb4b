"""Which numbers of two results differ by more than rounding: even the same call twice need not give the same bits."""

import torch
from torch import Tensor

DOUBLE_ROUNDING = 1e-9  # with room for sums in another order
SINGLE_ROUNDING = 1e-4  # of operators whose result is less precise than their operands


def find_differences(found: Tensor, expected: Tensor) -> Tensor:
    """Return where two tensors of one shape differ, a number that is rounded by the size of the largest."""
    if not (expected.is_floating_point() or expected.is_complex()):
        return found != expected
    rounding = DOUBLE_ROUNDING if expected.dtype in (torch.float64, torch.complex128) else SINGLE_ROUNDING
    sizes = expected.detach().abs()
    finite = sizes[sizes.isfinite()]
    largest = finite.max().item() if finite.numel() else 0.0
    return ~torch.isclose(found.detach(), expected.detach(), rtol=rounding, atol=rounding * largest, equal_nan=True)


def are_close(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are of one shape and dtype, and the same but for rounding."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    return not bool(find_differences(found, expected).any())
