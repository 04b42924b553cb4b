"""Prepares one box of one operator for local tensors: torch's operator, or the local form of its sharding rule.

All that a box needs besides its tensors - which torch operator it is, its plain arguments, where among them the tensors
go - is the same in every step, so it is worked out once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..ir.arguments import call_operator
from ..ir.box import Box
from ..ir.empty_copy import dense_stride
from ..ir.graph import FOUND, OPAQUE, Op, TensorInfo
from ..ir.random_ops import RANDOM_OPERAND, run_with_generator
from .bound_arguments import BoundArguments, Operands
from .found_rule import run_found
from .island import ISLAND, run_island
from .leaf_module import LEAF_MODULE, LeafModule, run_leaf_module
from .registry import TABLE
from .sharding.sharding_rule import SUMMARIES, SUMMARY_SUFFIX, RunBox, ShardingRule
from .sharding.signature import Call, LocalBox

_WHOLE = "@whole"  # ends the name of an argument that is read whole besides
BoxRun = Callable[[Operands], Sequence[Tensor]]


def prepare_box(
    op: Op,
    box: Box,
    names: Sequence[str],
    tensors: Mapping[str, TensorInfo],
    *,
    leaf_module: Callable[[], LeafModule] | None = None,
) -> BoxRun:
    """Return the function that computes a box of `op`: its outputs, each in the shape of its dimensions.

    It takes the operands whose arguments are `names`, in this order, in the shape of their dimensions; None where the
    box reads nothing of one. leaf_module: returns the user's module that the operator calls, if it is one. Partial
    results of a sum are returned as they are, to be added up by the caller.
    """
    arguments = BoundArguments(op, box, names)
    if op.sharding_rule not in (OPAQUE, FOUND):
        return _prepare_rule(op, box, names, tensors, arguments)
    run = _prepare_opaque(op, box, names, tensors, arguments, leaf_module)
    layouts = [(names.index(o.argument), tensors[o.tensor]) for o in op.nest.operands if o.argument in names]

    def run_as_traced(operands: Operands) -> Sequence[Tensor]:
        laid_out = list(operands)
        for place, info in layouts:
            laid_out[place] = _as_traced(operands[place], info)
        return run(laid_out)

    return run_as_traced


def _prepare_opaque(
    op: Op,
    box: Box,
    names: Sequence[str],
    tensors: Mapping[str, TensorInfo],
    arguments: BoundArguments,
    leaf_module: Callable[[], LeafModule] | None,
) -> BoxRun:
    """Return what runs an operator without a written rule, its operands laid out as in the trace."""
    random = names.index(RANDOM_OPERAND) if RANDOM_OPERAND in names else None  # where the generator's state is

    def get_state(operands: Operands) -> Tensor | None:
        return None if random is None else operands[random]

    if op.target == LEAF_MODULE:
        assert leaf_module is not None
        return lambda operands: run_leaf_module(leaf_module(), arguments.fill(operands), get_state(operands))
    if op.target == ISLAND:
        return lambda operands: run_island(arguments.fill(operands), get_state(operands))
    if op.sharding_rule == FOUND:
        return lambda operands: [run_found(op, box, arguments.fill(operands), tensors)]
    call = arguments.prepare_call()

    def run(operands: Operands) -> Sequence[Tensor]:
        state = get_state(operands)
        if state is None:
            return _list_results(call(operands))
        return run_with_generator(state, lambda: _list_results(call(operands)))[0]

    return run


def _prepare_rule(
    op: Op, box: Box, names: Sequence[str], tensors: Mapping[str, TensorInfo], arguments: BoundArguments
) -> BoxRun:
    """Return what runs an operator by its rule: torch's operator with the operands in place, or the local form."""
    place = LocalBox(op, box, tensors)
    local = _choose_local(TABLE[op.sharding_rule.removesuffix(SUMMARY_SUFFIX)], place, names)
    if local is None:
        call = arguments.prepare_call()
        return lambda operands: (call(operands),)
    mask, summaries = (names.index(name) if name in names else None for name in (RANDOM_OPERAND, SUMMARIES))
    whole = [(name.removesuffix(_WHOLE), i) for i, name in enumerate(names) if name.endswith(_WHOLE)]

    def run_torch(changed: Mapping[str, Any]) -> Any:
        """Return torch's result; of several results the one that this operator stands for, if it stands for one."""
        result = call_operator(op.target, changed)
        return result if "@output" not in changed else result[changed["@output"]]

    def run(operands: Operands) -> Sequence[Tensor]:
        read_whole = {name: tensor for name, i in whole if (tensor := operands[i]) is not None}
        return (
            local(
                Call(
                    place,
                    arguments.fill(operands),
                    run_torch,
                    None if mask is None else operands[mask],
                    None if summaries is None else operands[summaries],
                    read_whole,
                )
            ),
        )

    return run


def _choose_local(rule: ShardingRule, place: LocalBox, names: Sequence[str]) -> RunBox | None:
    """Return the local form by which a box is run; None where torch's operator on the local tensors does."""
    if rule.summary is not None and place.op.sharding_rule.endswith(SUMMARY_SUFFIX):
        return rule.summary.summarise
    if rule.summary is not None and SUMMARIES in names:
        return rule.summary.combine
    draws = RANDOM_OPERAND in names
    return None if place.is_uncut and not draws and not rule.moves_data else rule.local


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
    call = BoundArguments(op, op.nest.box, [o.argument for o in op.nest.operands]).prepare_call()
    operands = [_any_values(tensors[o.tensor]) for o in op.nest.operands]
    with torch.no_grad():
        return run_with_generator(state, lambda: call(operands))[1]


def _any_values(info: TensorInfo) -> Tensor:
    dtype = getattr(torch, info.dtype)
    return torch.full(info.shape, 0.5 if dtype.is_floating_point else 0, dtype=dtype)


def _list_results(result: Any) -> Sequence[Tensor]:
    return [result] if isinstance(result, Tensor) else [t for t in result if isinstance(t, Tensor)]
