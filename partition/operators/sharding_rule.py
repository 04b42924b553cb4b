"""`Row`: what the operator table says of an ATen operator - how its loops run over axes, how to run a box of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .signature import Call, Label, Signature, Site

Sign = Callable[[Site], Signature | None]
Local = Callable[[Call], Tensor]

PART = ".part"  # ends the row of an operator that tells of its part
PARTS = "@parts"  # the operand that holds what all parts told


@dataclass(frozen=True)
class Summary:
    """How the parts of an operator's joined loops learn of each other: each tells all of them a few numbers.

    part: what a box tells, [1, width, *sizes of the other loops]; the first number is positive wherever it tells
    anything. join: runs a box given what all parts told, `Call.parts` [parts, width, *sizes of the other loops], zeros
    where there was none to tell. reads: arguments that `part` reads. exact: the numbers are float64 whatever
    the operands, since indices are among them.
    """

    width: int
    part: Local
    join: Local
    reads: tuple[str, ...] = ("self",)
    exact: bool = False


@dataclass
class Row:
    """sign: labels of a call, or None where this call is opaque; local: runs a box that is not the whole operator.

    moves: the operator only moves data, so that the local form serves every box. summary: where labels are joined.
    """

    name: str
    sign: Sign
    local: Local | None = None
    moves: bool = False
    summary: Summary | None = None


TABLE: dict[str, Row] = {}


def row(
    *names: str, local: Local | None = None, moves: bool = False, summary: Summary | None = None
) -> Callable[[Sign], Sign]:
    """Enter a signature under ATen names without overload."""

    def enter(sign: Sign) -> Sign:
        for name in names:
            TABLE[name] = Row(name, sign, local, moves, summary)
        return sign

    return enter


def dims(rank: int, prefix: str = "d") -> list[str]:
    """Labels d0, d1, ..."""
    return [f"{prefix}{i}" for i in range(rank)]


def aligned(shape: Sequence[int], out: Sequence[int], labels: Sequence[Label]) -> list[Label]:
    """Labels of an operand that broadcasts to `out`: aligned at the right, whole where its size is one."""
    tail = labels[len(out) - len(shape) :]
    return [
        label if size == full else None
        for size, full, label in zip(shape, out[len(out) - len(shape) :], tail, strict=True)
    ]


def fits(shape: Sequence[int], out: Sequence[int]) -> bool:
    """Whether a shape broadcasts to `out`."""
    pairs = zip(reversed(shape), reversed(out), strict=False)
    return len(shape) <= len(out) and all(size in (1, full) for size, full in pairs)


def together(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that these broadcast to."""
    shape: tuple[int, ...] = tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    return shape
