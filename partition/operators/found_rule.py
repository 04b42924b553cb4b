"""What an operator with a rule found by running is to the kernel and to the cost model: torch's operator on parts."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..ir.arguments import call_operator, find_overload
from ..ir.box import Box
from ..ir.graph import Op, TensorInfo
from .sharding.cost_class import ELEMENTWISE, OPAQUE, REDUCTION, VIEW, CostClass

SIZES = "@sizes"  # the argument that says which plain arguments are the size of a dimension of the output


def run_found(op: Op, box: Box, arguments: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> Tensor:
    """Return the output of a box. arguments: with local tensors in place, as they are laid out in the trace."""
    shape = tensors[op.outputs[0]].local_shape(box[: len(tensors[op.outputs[0]].extents)])
    result = call_operator(op.target, _with_local_sizes(arguments, shape))
    tensor: Tensor = result if "@output" not in arguments else result[arguments["@output"]]
    return tensor.resolve_conj().resolve_neg()  # a lazy conjugate cannot be sent


def _with_local_sizes(arguments: Mapping[str, Any], shape: Sequence[int]) -> dict[str, Any]:
    """Return the arguments with plain sizes as those of the box, whose output has this shape."""
    changed = dict(arguments)
    for name, place, dim in arguments.get(SIZES, ()):
        changed[name] = [shape[dim] if i == place else size for i, size in enumerate(changed[name])]
    return changed


def classify_found(target: str) -> CostClass:
    """Return the class of an operator without a written rule, as far as torch tells of it."""
    overload = find_overload(target)
    if overload.is_view:
        return VIEW
    if torch.Tag.pointwise in overload.tags:
        return ELEMENTWISE
    return REDUCTION if torch.Tag.reduction in overload.tags else OPAQUE
