"""`Row`: what the operator table says of an ATen operator - how its loops run over axes, how to run a box of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .signature import Call, Label, Signature, Site

Sign = Callable[[Site], Signature | None]
Local = Callable[[Call], Tensor]


@dataclass
class Row:
    """sign: labels of a call, or None where this call is opaque; local: runs a box that is not the whole operator.

    moves: the operator only moves data, so that the local form serves every box.
    """

    name: str
    sign: Sign
    local: Local | None = None
    moves: bool = False


TABLE: dict[str, Row] = {}


def row(*names: str, local: Local | None = None, moves: bool = False) -> Callable[[Sign], Sign]:
    """Enter a signature under ATen names without overload."""

    def enter(sign: Sign) -> Sign:
        for name in names:
            TABLE[name] = Row(name, sign, local, moves)
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
