"""Made-up operands of an operator, in several styles: some operators ask for positive numbers, some for matrices that
can be inverted, and one that looks at values must be seen with unlike ones.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from .operator_call import OperandSpec, OperatorCall

Style = Callable[[Tensor], Tensor]  # makes values of a style of normally distributed ones


def _make_definite(values: Tensor) -> Tensor:
    """Return positive definite matrices where the values are square, else the values."""
    if values.dim() < 2 or values.shape[-1] != values.shape[-2]:
        return values
    size = values.shape[-1]
    return values @ values.mH + size * torch.eye(size, dtype=values.dtype)


def _make_real(values: Tensor, change: Style) -> Tensor:
    """Apply what needs real numbers to both parts of complex ones."""
    return torch.complex(change(values.real), change(values.imag)) if values.is_complex() else change(values)


STYLES: Mapping[str, Style] = {
    "normal": lambda values: values,
    "positive": lambda values: _make_real(values, lambda part: part.abs() + 0.1),
    "between 0 and 1": lambda values: _make_real(values, lambda part: part.sigmoid()),
    "definite": _make_definite,
    "large": lambda values: 40 * values,
    "ties": lambda values: _make_real(values, lambda part: part.round()),
}


def integer_ranges(call: OperatorCall) -> list[tuple[int, int]]:
    """Return the ranges that integers are tried in: an index may be into any dimension, a length may not be zero."""
    smallest = min((size for operand in call.operands for size in operand.shape if size > 1), default=1)
    return [(0, smallest), *([(1, smallest)] if smallest > 1 else []), (0, 1)]


def make_operands(
    call: OperatorCall, style: str, *, integers: tuple[int, int], generator: torch.Generator
) -> dict[str, Tensor]:
    """Return operands of a style. integers: the range of integers among them, as [start, stop)."""
    return {operand.name: _make(operand, STYLES[style], integers, generator) for operand in call.operands}


def _make(operand: OperandSpec, style: Style, integers: tuple[int, int], generator: torch.Generator) -> Tensor:
    dtype = operand.probe_dtype
    if dtype.is_floating_point or dtype.is_complex:
        return style(torch.randn(operand.shape, dtype=dtype, device="cpu", generator=generator))
    if dtype is torch.bool:
        return torch.randint(0, 2, operand.shape, device="cpu", generator=generator).bool()
    return torch.randint(*integers, operand.shape, dtype=dtype, device="cpu", generator=generator)
