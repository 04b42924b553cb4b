"""Runs one box of one operator on local tensors, by torch's operator or by the local form of its sharding rule."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..ir.arguments import call_operator, decode
from ..ir.box import Box
from ..ir.empty_copy import dense_stride
from ..ir.graph import FOUND, OPAQUE, Op, TensorInfo, is_at_origin
from ..ir.random_ops import RANDOM_OPERAND, run_with_generator
from .found_rule import run_found
from .island import ISLAND, run_island
from .leaf_module import LEAF_MODULE, LeafModule, run_leaf_module
from .registry import TABLE
from .sharding.sharding_rule import SUMMARIES, SUMMARY_SUFFIX
from .sharding.signature import Call

_WHOLE = "@whole"  # ends the name of an argument that is read whole besides


def run_box(
    op: Op,
    box: Box,
    operands: Mapping[str, Tensor | None],
    tensors: Mapping[str, TensorInfo],
    *,
    leaf_module: LeafModule | None = None,
) -> Sequence[Tensor]:
    """Return the outputs of a box of `op`, each in the shape of its dimensions.

    operands: by argument name, in the shape of their dimensions; None where the box reads nothing of it. leaf_module:
    the user's module that the operator calls, if it is one. Partial results of a sum are returned as they are, to be
    added up by the caller.
    """
    random = operands.get(RANDOM_OPERAND)  # a dropout mask, or the generator's state where the operator has no rule
    if op.sharding_rule in (OPAQUE, FOUND):
        operands = {o.argument: _as_traced(operands[o.argument], tensors[o.tensor]) for o in op.nest.operands}
    arguments = _decode_arguments(op, box, operands)
    if op.target == LEAF_MODULE:
        assert leaf_module is not None
        return run_leaf_module(leaf_module, arguments, random)
    if op.target == ISLAND:
        return run_island(arguments, random)
    if op.sharding_rule == FOUND:
        return [run_found(op, box, arguments, tensors)]
    if op.sharding_rule == OPAQUE:
        if random is None:
            return _run_opaque(op, arguments)
        return run_with_generator(random, lambda: _run_opaque(op, arguments))[0]
    call = Call(
        op,
        box,
        arguments,
        tensors,
        lambda changed: _run_torch(op, changed),
        random,
        operands.get(SUMMARIES),
        {name.removesuffix(_WHOLE): t for name, t in operands.items() if name.endswith(_WHOLE) and t is not None},
    )
    return [_run_by_rule(call)]


def _run_by_rule(call: Call) -> Tensor:
    rule = TABLE[call.op.sharding_rule.removesuffix(SUMMARY_SUFFIX)]
    if rule.summary is not None and call.op.sharding_rule.endswith(SUMMARY_SUFFIX):
        return rule.summary.summarise(call)
    if rule.summary is not None and call.summaries is not None:
        return rule.summary.combine(call)
    if rule.local is None or (call.is_uncut and call.mask is None and not rule.moves_data):
        return call.run_torch()
    return rule.local(call)


def _as_traced(tensor: Tensor | None, info: TensorInfo) -> Tensor | None:
    """Lay an operand, or a part of one, out as in the trace: an operator may draw, or compare, in memory order."""
    if tensor is None or (tensor.stride() == info.stride and tensor.shape == info.shape):
        return tensor
    stride = dense_stride(tensor.shape, info.stride)
    if tensor.stride() == stride and tensor.shape != info.shape:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)


def advance_generator(op: Op, state: Tensor, tensors: Mapping[str, TensorInfo]) -> Tensor:
    """Return the generator's state after an operator without a rule has drawn from `state`.

    The operator is run on arbitrary values: how much it draws does not depend on them (see `DRAWS_BY_VALUE`).
    """
    operands = {o.argument: _any_values(tensors[o.tensor]) for o in op.nest.operands}
    arguments = _decode_arguments(op, op.nest.box, operands)
    with torch.no_grad():
        return run_with_generator(state, lambda: _run_opaque(op, arguments))[1]


def _any_values(info: TensorInfo) -> Tensor:
    dtype = getattr(torch, info.dtype)
    return torch.full(info.shape, 0.5 if dtype.is_floating_point else 0, dtype=dtype)


def _run_opaque(op: Op, arguments: Mapping[str, Any]) -> Sequence[Tensor]:
    result = _run_torch(op, arguments)
    return [result] if isinstance(result, Tensor) else [t for t in result if isinstance(t, Tensor)]


def _run_torch(op: Op, arguments: Mapping[str, Any]) -> Any:
    """Return torch's result; of several results the one that this operator stands for, if it stands for one."""
    result = call_operator(op.target, arguments)
    return result if "@output" not in arguments else result[arguments["@output"]]


def _decode_arguments(op: Op, box: Box, operands: Mapping[str, Tensor | None]) -> dict[str, Any]:
    """Return the arguments with operands in place; None for what another part of the reduction adds."""
    once = {operand.argument for operand in op.nest.operands if operand.once}
    kept = is_at_origin(op.nest, box)
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
