"""Parameters to which no gradient comes back from the loss: nothing reads them, or only what is cut off by `detach`.

torch gives them no gradient, and its optimizers leave them alone, while a gradient of zeros would have weight decay
shrink them. So they are frozen parameters.
"""

from dataclasses import replace

from ..operators.rules.movement import STORE
from .draft import Draft, DraftOp

FLOATING_DTYPES = ("float", "double", "half", "bfloat", "complex")


def passes_gradients(op: DraftOp) -> bool:
    """Whether gradients of what an operator computes go on to what it reads."""
    return ".detach." not in op.target and op.target != STORE


def freeze_untrained(draft: Draft) -> None:
    """Make frozen parameters of those of a training step that get no gradient."""
    reached = set(draft.results)
    for op in reversed(draft.ops):
        if passes_gradients(op) and any(
            name in reached and draft.tensors[name].dtype.startswith(FLOATING_DTYPES) for name in op.outputs
        ):
            reached.update(op.operands.values())
    for name, tensor in draft.tensors.items():
        if tensor.kind == "parameter" and name not in reached:
            draft.tensors[name] = replace(tensor, kind="frozen")
