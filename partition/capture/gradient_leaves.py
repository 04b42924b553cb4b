"""Where a gradient would end."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def outside(leaf: Tensor, known: Sequence[Tensor]) -> bool:
    """Whether a tensor is none of those that are known."""
    return not any(leaf is tensor for tensor in known)


def leaves_of_gradient(result: Tensor) -> list[Tensor]:
    """The tensors in whose `.grad` a backward pass from `result` would end."""
    if not result.requires_grad:
        return []
    if result.grad_fn is None:
        return [result]
    pending, seen, leaves = list[Any]([result.grad_fn]), set[Any](), list[Tensor]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        pending += [before for before, _ in node.next_functions]
    return leaves
