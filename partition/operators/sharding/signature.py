"""`Signature`: what a sharding rule says of one call - a label for each dimension, as in einsum.

Equal labels mean one axis; where they stand side by side, these dimensions together are one index range. A label of the
output is a parallel loop; a label that only operands have is a reduction, additive where it is in `summed`. A dimension
labelled None is read whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...ir.box import Box
from ...ir.graph import Fixed, Op, Operand, TensorInfo, Window, read_box


@dataclass(frozen=True)
class Sliding:
    """A dimension of which point p of loop `label` reads a window (see `ir.graph.Window` for the numbers)."""

    label: str
    stride: int
    offset: int
    extent: int
    covers: bool = True
    divisor: int = 1


@dataclass(frozen=True)
class FixedRange:
    """A dimension of which only [start, stop) is read, whatever the loops."""

    start: int
    stop: int


@dataclass(frozen=True)
class Composite:
    """A dimension of several index ranges, outermost first, each with its label (None: read whole) and its size."""

    parts: tuple[tuple[str | None, int], ...]


Label = str | Sliding | FixedRange | Composite | None
Labels = Sequence[Label]


@dataclass(frozen=True)
class DropoutMask:
    """The mask that a dropout draws, zero with probability `p`, laid out as torch lays it out. stride: in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    p: float
    labels: Labels


@dataclass(frozen=True)
class Signature:
    """The labels of all operands, by argument name ("tensors[1]" inside a list), and of the output.

    summed: labels of additive reductions, whose partial results are added up. non_additive: labels of reductions whose
    parts must know of each other, as a softmax's (see `Summary`). fixed: labels of the output that are never cut.
    once: arguments that only the first part of a reduction adds or writes, such as a bias. again: arguments that are
    also read whole. work: FLOPs for each point of the loop nest. mask: the dropout mask, where the operator draws one.
    """

    operands: Mapping[str, Labels]
    output: Labels
    summed: frozenset[str] = frozenset()
    non_additive: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    once: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()
    work: float = 1.0
    mask: DropoutMask | None = None


@dataclass(frozen=True)
class DraftTensor:
    """A tensor whose axes are not known yet. stride: in elements. density: as of `ir.graph.TensorInfo`.

    kind: as of `ir.graph.TensorInfo`; or "dynamic", a tensor whose size depends on data, or "number", no tensor at all.
    Neither of these leaves the island of which it is a part.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    stride: tuple[int, ...]
    element_bytes: int
    density: float = 1.0


@dataclass(frozen=True)
class Site:
    """One call of an operator in the model, as a sharding rule sees it: arguments by name, tensors as DraftTensor.

    Where an operator has several results, the argument "@output" is the index of the one that this call computes.
    """

    target: str
    arguments: Mapping[str, Any]
    output: DraftTensor

    @property
    def tensors(self) -> dict[str, DraftTensor]:
        """The arguments that are tensors, by name."""
        return {name: value for name, value in self.arguments.items() if isinstance(value, DraftTensor)}

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor argument."""
        return tuple(self.arguments[name].shape)


class LocalBox:
    """One box of an operator, and what is known of it before it runs, each worked out once."""

    def __init__(self, op: Op, box: Box, tensors: Mapping[str, TensorInfo]) -> None:
        self.op, self.box, self.tensors = op, box, tensors
        self.is_uncut = box == op.nest.box

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype of the output."""
        dtype: torch.dtype = getattr(torch, self.info("").dtype)
        return dtype

    @cached_property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of what this box computes."""
        info = self.info("")
        return info.local_shape(self.box[: len(info.extents)])

    def info(self, argument: str) -> TensorInfo:
        """Return what is known of an argument in the whole model, or of the whole output."""
        return self.tensors[self.operand(argument).tensor if argument else self.op.outputs[0]]

    def operand(self, argument: str) -> Operand:
        """Return how an argument is read."""
        return next(operand for operand in self.op.nest.operands if operand.argument == argument)

    def read(self, argument: str) -> Box | None:
        """Return the box of an argument that this box reads; None where it reads nothing."""
        return read_box(self.op.nest, self.operand(argument), self.box, self.info(argument).extents)


@dataclass(slots=True)
class Call:
    """One box of an operator that is about to run, its arguments with local tensors in place.

    target: runs torch's operator. mask: the box of the dropout mask. summaries: those of all parts of the non-additive
    loops, [parts, width, *sizes of the other loops], see `Summary`. whole: arguments that are read whole besides.
    """

    place: LocalBox
    arguments: Mapping[str, Any]
    target: Callable[[Mapping[str, Any]], Tensor]
    mask: Tensor | None = None
    summaries: Tensor | None = None
    whole: Mapping[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    def run_torch(self, /, **changed: Any) -> Tensor:
        """Run torch's operator on the local tensors, with some arguments changed."""
        return self.target({**self.arguments, **changed})

    @property
    def op(self) -> Op:
        """The operator."""
        return self.place.op

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the output."""
        return self.place.dtype

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of what this box computes."""
        return self.place.local_shape

    def shape(self, argument: str = "") -> tuple[int, ...]:
        """Return the shape of an argument in the whole model, or of the whole output."""
        return self.place.info(argument).shape

    def is_cut_along(self, dims: Sequence[int]) -> bool:
        """Whether this box has only a part of one of these dimensions of the output."""
        whole, local = self.shape(), self.local_shape
        return any(whole[d] != local[d] for d in dims)

    def is_narrowed(self, argument: str, dim: int) -> bool:
        """Whether this operator reads only a window of dimension `dim`; if not, the dimension is there whole."""
        info = self.place.info(argument)
        at = sum(len(sizes) for sizes in info.sizes[:dim])
        reading = self.place.operand(argument).readings[at] if info.sizes[dim] else None
        return isinstance(reading, Window | Fixed)

    def operand_interval(self, argument: str, dim: int) -> tuple[int, int]:
        """Return what this box reads of dimension `dim` of an argument, which must have at most one axis."""
        box = self.place.read(argument)
        return self.place.info(argument).dim_interval(box, dim) if box is not None else (0, 0)

    def output_interval(self, dim: int) -> tuple[int, int]:
        """Return what this box computes of dimension `dim` of the output, which must have at most one axis."""
        info = self.place.info("")
        return info.dim_interval(self.place.box[: len(info.extents)], dim)

    def indices(self, dim: int, argument: str = "") -> Tensor:
        """Return the indices, ascending int64 [n], that this box has of a dimension of the output or of an argument."""
        info = self.place.info(argument)
        box = self.place.read(argument) if argument else self.place.box[: len(info.extents)]
        at = sum(len(sizes) for sizes in info.sizes[:dim])
        indices = torch.zeros(1, dtype=torch.int64)
        for size, (start, stop) in zip(info.sizes[dim], (box or ())[at:], strict=False):
            indices = (indices[:, None] * size + torch.arange(start, stop)).flatten()
        return indices
