"""`ShardingRule`: how the loops of one ATen operator run over axes, how one box of it is run, and what it costs.

The rules are entered into `TABLE` by the modules of `operators.rules`, with the decorator `sharding_rule`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .cost_class import CostClass
from .signature import Call, Label, Signature, Site

InferSignature = Callable[[Site], Signature | None]
RunBox = Callable[[Call], Tensor]

SUMMARY_SUFFIX = ".part"  # ends the rule's name in an operator that summarises parts instead of computing its output
SUMMARIES = "@parts"  # the operand that holds the summaries of all parts


@dataclass(frozen=True)
class Summary:
    """How a non-additive reduction, such as a softmax or a maximum, is cut: its parts exchange a few numbers.

    summarise: computes the summary of a box, [1, width, *sizes of the other loops]; its first number is positive
    wherever the box has a value. combine: runs a box with the summaries of all parts at hand, `Call.summaries`
    [parts, width, *sizes of the other loops], where a part without a value is zero. reads: the arguments that
    `summarise` reads. exact: the summaries are float64 whatever the operands are, since indices are among them.
    """

    width: int
    summarise: RunBox
    combine: RunBox
    reads: tuple[str, ...] = ("self",)
    exact: bool = False


@dataclass(frozen=True)
class ShardingRule:
    """The rule of one operator. name: the operator's name without overload, such as "aten.linear".

    infer_signature: labels the dimensions of one call; None where this call is opaque. cost: the operator's class in
    the cost model. local: runs a box that is not the whole operator; None where torch's operator on the local tensors
    does. moves_data: the operator only moves data, so that `local` serves the whole operator too. summary: how
    non-additive labels are cut.
    """

    name: str
    infer_signature: InferSignature
    cost: CostClass
    local: RunBox | None = None
    moves_data: bool = False
    summary: Summary | None = None


TABLE: dict[str, ShardingRule] = {}


def sharding_rule(
    *names: str,
    cost: CostClass,
    local: RunBox | None = None,
    moves_data: bool = False,
    summary: Summary | None = None,
) -> Callable[[InferSignature], InferSignature]:
    """Enter the decorated function as the rule of operators, given by their ATen names without overload.

    The decorator may be stacked, for operators of one signature whose cost classes differ.
    """

    def enter(infer_signature: InferSignature) -> InferSignature:
        for name in names:
            TABLE[name] = ShardingRule(name, infer_signature, cost, local, moves_data, summary)
        return infer_signature

    return enter


def make_labels(rank: int, prefix: str = "d") -> list[str]:
    """Return the labels d0, d1, ... for `rank` dimensions."""
    return [f"{prefix}{i}" for i in range(rank)]


def align_labels(shape: Sequence[int], out: Sequence[int], labels: Sequence[Label]) -> list[Label]:
    """Return the labels of an operand of `shape` that broadcasts to `out`, whose dimensions have `labels`.

    Dimensions are aligned at the right; one of size one is read whole.
    """
    tail = labels[len(out) - len(shape) :]
    return [
        label if size == full else None
        for size, full, label in zip(shape, out[len(out) - len(shape) :], tail, strict=True)
    ]


def is_broadcastable(shape: Sequence[int], out: Sequence[int]) -> bool:
    """Whether a shape broadcasts to `out`."""
    pairs = zip(reversed(shape), reversed(out), strict=False)
    return len(shape) <= len(out) and all(size in (1, full) for size, full in pairs)


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that all these shapes broadcast to."""
    shape: tuple[int, ...] = tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    return shape
