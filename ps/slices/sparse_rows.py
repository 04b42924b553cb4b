"""`SparseRows`: the rows of a sparse table that travel - those that a gradient touched, or whose values changed.

Row numbers count from the first row of the slice. w: width, the elements of a row; r: how many rows travel; n: elements
of the slice.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from .slicing import ParameterSlice

WIDTH = "width"  # key in the body of a message that carries rows


class SparseRows(msgspec.Struct, frozen=True, eq=False):
    """Some rows of a slice: of a gradient that is zero elsewhere, or of parameters.

    numbers: int64 [r], ascending, each once. values: [r, w].
    """

    numbers: Tensor
    values: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that travel: int32 [r] and values [r, w]."""
        return self.numbers.to(torch.int32), self.values

    @property
    def body_fields(self) -> dict[str, Any]:
        """The fields that describe the rows in the body of a message."""
        return {WIDTH: self.values.shape[1]}

    @property
    def borrowed(self) -> bool:
        """Whether somebody else will write the tensors: never."""
        return False

    def with_owned(self, tensors: tuple[Tensor, ...]) -> "SparseRows":
        """Return the rows themselves, which own their memory; see `PushPayload.with_owned`."""
        return self

    def to_gradient(self, size: int, dtype: torch.dtype) -> "SparseRows":
        """Return the gradient that a shard applies: these rows."""
        return self

    def to_dense(self, size: int) -> Tensor:
        """Return the gradient [size] with its zeros."""
        whole = self.values.new_zeros(size)
        whole.view(-1, self.values.shape[1])[self.numbers] = self.values
        return whole

    def select(self, numbers: Tensor) -> "SparseRows":
        """Return those rows whose numbers are among `numbers`."""
        kept = torch.isin(self.numbers, numbers, assume_unique=True)
        return SparseRows(self.numbers[kept], self.values[kept])


def parse_rows(
    body: dict[str, Any], tensors: Sequence[Tensor], piece: ParameterSlice, dtype: torch.dtype
) -> SparseRows | None:
    """Return the rows that a message carries, None if it carries none. ValueError if they do not fit the slice."""
    if WIDTH not in body:
        return None
    kinds = [(tensor.dtype, list(tensor.shape)) for tensor in tensors]
    width, count = piece.width, tensors[0].numel() if tensors else 0
    if not width or body[WIDTH] != width or kinds != [(torch.int32, [count]), (dtype, [count, width])]:
        actual = ", ".join(f"{kind} {shape}" for kind, shape in kinds) or "nothing"
        raise ValueError(f"has {actual} for rows of {body[WIDTH]!r}; the slice is {dtype} in rows of {width}")
    numbers = tensors[0].to(torch.int64)
    ascend = count < 2 or bool((numbers[1:] > numbers[:-1]).all())
    if count and (int(numbers[0]) < 0 or int(numbers[-1]) >= piece.rows or not ascend):
        raise ValueError(f"has rows that do not ascend from 0 to {piece.rows - 1}")
    return SparseRows(numbers, tensors[1])


def mean_gradient(gradients: Sequence[Tensor | SparseRows], size: int) -> Tensor | SparseRows:
    """Return the mean of gradients [size] of one slice, added in their order; as rows if all of them are rows."""
    rows = [gradient for gradient in gradients if isinstance(gradient, SparseRows)]
    if len(rows) == len(gradients):
        return _mean_rows(rows)
    first, *others = (g.to_dense(size) if isinstance(g, SparseRows) else g for g in gradients)
    total = first.clone()
    for gradient in others:
        total.add_(gradient)
    return total.div_(len(gradients)) if others else total


def _mean_rows(gradients: Sequence[SparseRows]) -> SparseRows:
    numbers = torch.unique(torch.cat([rows.numbers for rows in gradients]))
    total = gradients[0].values.new_zeros((numbers.numel(), gradients[0].values.shape[1]))
    for rows in gradients:
        total.index_add_(0, torch.searchsorted(numbers, rows.numbers), rows.values)
    return SparseRows(numbers, total.div_(len(gradients)))


def install_rows(values: Tensor, rows: SparseRows) -> None:
    """Overwrite these rows of a slice's parameters [n]."""
    values.view(-1, rows.values.shape[1]).index_copy_(0, rows.numbers, rows.values)


def descend(values: Tensor, gradient: Tensor | SparseRows, rate: float, *, among: SparseRows | None = None) -> None:
    """Take the plain step values [n] -= rate * gradient; with `among`, in those rows alone."""
    if isinstance(gradient, SparseRows):
        part = gradient if among is None else gradient.select(among.numbers)
        values.view(-1, part.values.shape[1]).index_add_(0, part.numbers, part.values, alpha=-rate)
    elif among is None:
        values.add_(gradient, alpha=-rate)
    else:
        width, numbers = among.values.shape[1], among.numbers
        values.view(-1, width).index_add_(0, numbers, gradient.view(-1, width)[numbers], alpha=-rate)
