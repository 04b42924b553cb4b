"""`Signature`: what a row of the operator table says - one label per dimension, as in einsum.

Equal labels mean one axis; side by side, the dimensions together are one index range. A label of the output is a
parallel loop; a label that only operands carry is summed over if it is in `summed`. None reads a dimension whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..ir.box import Box
from ..ir.graph import Fixed, Op, Operand, TensorInfo, Window, reads


@dataclass(frozen=True)
class Sliding:
    """A dimension that is a window of loop `label` (see graph.Window)."""

    label: str
    stride: int
    offset: int
    extent: int
    covers: bool = True
    divisor: int = 1


@dataclass(frozen=True)
class At:
    """A dimension that is read at [start, stop) only."""

    start: int
    stop: int


@dataclass(frozen=True)
class Parts:
    """A dimension of several index ranges, outermost first: label (None: read whole) and size of each."""

    parts: tuple[tuple[str | None, int], ...]


Label = str | Sliding | At | Parts | None
Labels = Sequence[Label]


@dataclass(frozen=True)
class Noise:
    """Random numbers that an operator draws: a dropout mask of probability `p`, laid out as torch lays it out."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    p: float
    labels: Labels


@dataclass(frozen=True)
class Signature:
    """Labels of the operands (by argument name; "tensors[1]" inside a list) and of the output.

    summed: labels whose partial results add up; joined: labels whose parts must know of each other (see row.Summary);
    fixed: labels of the output that are never cut; once: arguments that only the first part of a sum adds or writes;
    again: arguments that are also read whole; work: FLOPs per point.
    """

    operands: Mapping[str, Labels]
    output: Labels
    summed: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    once: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()
    work: float = 1.0
    noise: Noise | None = None


@dataclass(frozen=True)
class DraftTensor:
    """A tensor before its axes are known; stride in elements."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    stride: tuple[int, ...]
    element_bytes: int


@dataclass(frozen=True)
class Site:
    """One operator as a row sees it: arguments by name, tensors as DraftTensor, and the output.

    Of an operator with several results the argument "@output" tells which one is meant.
    """

    target: str
    arguments: Mapping[str, Any]
    output: DraftTensor

    @property
    def tensors(self) -> dict[str, DraftTensor]:
        """The arguments that are tensors."""
        return {name: value for name, value in self.arguments.items() if isinstance(value, DraftTensor)}

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor argument."""
        return tuple(self.arguments[name].shape)


@dataclass(frozen=True)
class Call:
    """One box of an operator about to run: its arguments with local tensors in place.

    parts: what all parts of this box's joined loops have found, see row.Summary.
    """

    op: Op
    box: Box
    arguments: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    target: Callable[[Mapping[str, Any]], Tensor]
    noise: Tensor | None = None
    parts: Tensor | None = None
    whole: Mapping[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    def plain(self, /, **changed: Any) -> Tensor:
        """The operator itself on the local tensors, with some arguments changed."""
        return self.target({**self.arguments, **changed})

    @property
    def uncut(self) -> bool:
        """Whether this box is the whole operator."""
        return self.box == self.op.nest.box

    def shape(self, argument: str = "") -> tuple[int, ...]:
        """Shape of an argument in the whole model, or of the whole output."""
        return self._info(argument).shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the output."""
        dtype: torch.dtype = getattr(torch, self._info("").dtype)
        return dtype

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the output of this box."""
        info = self._info("")
        return info.local_shape(self.box[: len(info.extents)])

    def cut_along(self, dims: Sequence[int]) -> bool:
        """Whether this box has only a part of one of these dimensions of the output."""
        whole, local = self.shape(), self.local_shape
        return any(whole[d] != local[d] for d in dims)

    def narrowed(self, argument: str, dim: int) -> bool:
        """Whether this operator reads only a window of dimension `dim`; if not, the dimension is there whole."""
        info = self._info(argument)
        at = sum(len(sizes) for sizes in info.sizes[:dim])
        reading = self._operand(argument).readings[at] if info.sizes[dim] else None
        return isinstance(reading, Window | Fixed)

    def interval(self, argument: str, dim: int) -> tuple[int, int]:
        """What this box reads of dimension `dim` of an argument; the dimension must have at most one axis."""
        info = self._info(argument)
        box = reads(self.op.nest, self._operand(argument), self.box, info.extents)
        return info.dim_interval(box, dim) if box is not None else (0, 0)

    def output_interval(self, dim: int) -> tuple[int, int]:
        """What this box computes of dimension `dim` of the output."""
        info = self._info("")
        return info.dim_interval(self.box[: len(info.extents)], dim)

    def indices(self, dim: int, argument: str = "") -> Tensor:
        """Indices, in the whole model, that this box has of a dimension of the output or of an argument; ascending."""
        info = self._info(argument)
        box: Box | None = self.box[: len(info.extents)]
        if argument:
            box = reads(self.op.nest, self._operand(argument), self.box, info.extents)
        at = sum(len(sizes) for sizes in info.sizes[:dim])
        found = torch.zeros(1, dtype=torch.int64)
        for size, (start, stop) in zip(info.sizes[dim], (box or ())[at:], strict=False):
            found = (found[:, None] * size + torch.arange(start, stop)).flatten()
        return found

    def _info(self, argument: str) -> TensorInfo:
        return self.tensors[self._operand(argument).tensor if argument else self.op.outputs[0]]

    def _operand(self, argument: str) -> Operand:
        return next(operand for operand in self.op.nest.operands if operand.argument == argument)
