"""Runs one box of one operator on local tensors: the whole operator as torch has it, else the row's local form."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..ir.arguments import call, decode
from ..ir.box import Box
from ..ir.graph import Op, TensorInfo, at_origin
from .leaf_module import BLOCK, OwnModule, run
from ..ir.random_ops import drawing
from ..capture.axis_inference import OPAQUE, dense_stride
from .sharding_rule import PART, PARTS
from .signature import Call
from .registry import TABLE


def run_box(
    op: Op,
    box: Box,
    operands: Mapping[str, Tensor | None],
    tensors: Mapping[str, TensorInfo],
    *,
    own: OwnModule | None = None,
) -> Sequence[Tensor]:
    """The outputs of a box of `op`, each in the shape of its dimensions.

    operands: by argument name, in the shape of their dimensions; None where the box reads nothing of it.
    Partial results are returned as they are, to be added up by the caller. own: the user's module, for a block by hand.
    """
    noise = operands.get("@noise")
    if op.row == OPAQUE:
        operands = {o.argument: _as_traced(operands[o.argument], tensors[o.tensor]) for o in op.nest.operands}
    arguments = _arguments(op, box, operands)
    if op.target == BLOCK:
        assert own is not None
        return run(own, arguments, noise)
    if op.row == OPAQUE:
        return _opaque(op, arguments) if noise is None else drawing(noise, lambda: _opaque(op, arguments))[0]
    row = TABLE[op.row.removesuffix(PART)]
    one_box = Call(
        op,
        box,
        arguments,
        tensors,
        lambda changed: _result(op, changed),
        noise,
        operands.get(PARTS),
        {name.removesuffix("@whole"): t for name, t in operands.items() if name.endswith("@whole") and t is not None},
    )
    if row.summary is not None and op.row.endswith(PART):
        return [row.summary.part(one_box)]
    if row.summary is not None and one_box.parts is not None:
        return [row.summary.join(one_box)]
    if row.local is None or (one_box.uncut and noise is None and not row.moves):
        return [one_box.plain()]
    return [row.local(one_box)]


def _as_traced(tensor: Tensor | None, info: TensorInfo) -> Tensor | None:
    """An operand laid out as in the trace: an operator may draw, or look, in the order of memory."""
    if tensor is None or tensor.stride() == info.stride:
        return tensor
    stride = dense_stride(info.shape, info.stride)
    return torch.empty_strided(info.shape, stride, dtype=tensor.dtype).copy_(tensor)


def rehearse(op: Op, state: Tensor, tensors: Mapping[str, TensorInfo]) -> Tensor:
    """The generator's state after an operator without a row has drawn from it, found by running it on any values."""
    operands = {o.argument: _any_values(tensors[o.tensor]) for o in op.nest.operands}
    arguments = _arguments(op, op.nest.box, operands)
    with torch.no_grad():
        return drawing(state, lambda: _opaque(op, arguments))[1]


def _any_values(info: TensorInfo) -> Tensor:
    dtype = getattr(torch, info.dtype)
    return torch.full(info.shape, 0.5 if dtype.is_floating_point else 0, dtype=dtype)


def _opaque(op: Op, arguments: Mapping[str, Any]) -> Sequence[Tensor]:
    result = _result(op, arguments)
    return [result] if isinstance(result, Tensor) else [t for t in result if isinstance(t, Tensor)]


def _result(op: Op, arguments: Mapping[str, Any]) -> Any:
    """What torch gives; of several results the one that the operator stands for, if it stands for one."""
    result = call(op.target, arguments)
    return result if "@output" not in arguments else result[arguments["@output"]]


def _arguments(op: Op, box: Box, operands: Mapping[str, Tensor | None]) -> dict[str, Any]:
    once = {operand.argument for operand in op.nest.operands if operand.once}
    kept = at_origin(op.nest, box)
    out: dict[str, Any] = {}
    for name, value in op.arguments.items():
        if isinstance(value, list):
            out[name] = [
                operands[f"{name}[{i}]"] if _is_tensor(item) else decode(item, _never) for i, item in enumerate(value)
            ]
        elif _is_tensor(value):
            out[name] = operands[name] if kept or name not in once else None
        else:
            out[name] = decode(value, _never)
    return out


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and "tensor" in value


def _never(name: str) -> Any:
    raise AssertionError(f"tensor {name} is not an operand")
