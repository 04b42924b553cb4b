"""`Rows`: what travels of a slice of a table - the rows that were touched or changed, and what they are.

Everything here counts rows from the slice's first. w: width, the elements of a row; r: how many rows travel.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from .slicing import Slice

WIDTH = "width"  # in the body of a message that brings rows


class Rows(msgspec.Struct, frozen=True, eq=False):
    """numbers: int64 [r], ascending, each once; values [r, w]: a gradient that is zero elsewhere, or parameters."""

    numbers: Tensor
    values: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those that travel."""
        return self.numbers.to(torch.int32), self.values

    @property
    def fields(self) -> dict[str, Any]:
        """What the body of the message says of them."""
        return {WIDTH: self.values.shape[1]}

    @property
    def borrowed(self) -> bool:
        """Whether somebody will write them."""
        return False

    def kept(self, tensors: tuple[Tensor, ...]) -> "Rows":
        """The same, when the channel has copied what was borrowed."""
        return self

    def gradient(self, size: int, dtype: torch.dtype) -> "Rows":
        """What a shard makes of them: the same."""
        return self

    def dense(self, size: int) -> Tensor:
        """The gradient [size] with its zeros."""
        whole = self.values.new_zeros(size)
        whole.view(-1, self.values.shape[1])[self.numbers] = self.values
        return whole

    def among(self, numbers: Tensor) -> "Rows":
        """Those of some rows."""
        kept = torch.isin(self.numbers, numbers, assume_unique=True)
        return Rows(self.numbers[kept], self.values[kept])


def received_rows(body: dict[str, Any], tensors: Sequence[Tensor], piece: Slice, dtype: torch.dtype) -> Rows | None:
    """The rows that a message brings, None where it brings others; ValueError where they are not the slice's."""
    if WIDTH not in body:
        return None
    kinds = [(tensor.dtype, list(tensor.shape)) for tensor in tensors]
    width, count = piece.width, tensors[0].numel() if tensors else 0
    if not width or body[WIDTH] != width or kinds != [(torch.int32, [count]), (dtype, [count, width])]:
        shown = ", ".join(f"{kind} {shape}" for kind, shape in kinds) or "nothing"
        raise ValueError(f"has {shown} for rows of {body[WIDTH]!r}; the slice is {dtype} in rows of {width}")
    numbers = tensors[0].to(torch.int64)
    ascend = count < 2 or bool((numbers[1:] > numbers[:-1]).all())
    if count and (int(numbers[0]) < 0 or int(numbers[-1]) >= piece.rows or not ascend):
        raise ValueError(f"has rows that do not ascend from 0 to {piece.rows - 1}")
    return Rows(numbers, tensors[1])


def mean(gradients: Sequence[Tensor | Rows], size: int) -> Tensor | Rows:
    """Of gradients of one slice, added up in their order; rows, where all are."""
    rows = [gradient for gradient in gradients if isinstance(gradient, Rows)]
    if len(rows) == len(gradients):
        return _mean_rows(rows)
    first, *others = (g.dense(size) if isinstance(g, Rows) else g for g in gradients)
    total = first.clone()
    for gradient in others:
        total.add_(gradient)
    return total.div_(len(gradients)) if others else total


def _mean_rows(gradients: Sequence[Rows]) -> Rows:
    numbers = torch.unique(torch.cat([rows.numbers for rows in gradients]))
    total = gradients[0].values.new_zeros((numbers.numel(), gradients[0].values.shape[1]))
    for rows in gradients:
        total.index_add_(0, torch.searchsorted(numbers, rows.numbers), rows.values)
    return Rows(numbers, total.div_(len(gradients)))


def install(values: Tensor, rows: Rows) -> None:
    """Overwrite these rows of a slice's parameters [n]."""
    values.view(-1, rows.values.shape[1]).index_copy_(0, rows.numbers, rows.values)


def descend(values: Tensor, gradient: Tensor | Rows, rate: float, *, among: Rows | None = None) -> None:
    """values [n] -= rate * gradient; among: in these rows alone."""
    if isinstance(gradient, Rows):
        part = gradient if among is None else gradient.among(among.numbers)
        values.view(-1, part.values.shape[1]).index_add_(0, part.numbers, part.values, alpha=-rate)
    elif among is None:
        values.add_(gradient, alpha=-rate)
    else:
        width, numbers = among.values.shape[1], among.numbers
        values.view(-1, width).index_add_(0, numbers, gradient.view(-1, width)[numbers], alpha=-rate)
