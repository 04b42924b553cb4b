"""What a call of a layer returns, as plain data: a tensor stands as ("operand" or "result", position)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..trace.value_numbers import fills_memory
from .graph_segment import CannotRepeat
from .layer_operator import ResultSpec


def locate_output(output: Any, operands: Sequence[Tensor], results: list[Tensor]) -> Any:
    """Return nested results with tensors by position, adding to `results` those that are no operands."""
    if isinstance(output, Tensor):
        for kind, tensors in (("operand", operands), ("result", results)):
            at = next((i for i, tensor in enumerate(tensors) if tensor is output), None)
            if at is not None:
                return kind, at
        results.append(output)
        return "result", len(results) - 1
    if type(output) in (tuple, list):
        return type(output), [locate_output(one, operands, results) for one in output]
    if type(output) is dict:
        return dict, [(key, locate_output(one, operands, results)) for key, one in output.items()]
    if output is None or type(output) in (bool, int, float, str):
        return "plain", output
    raise CannotRepeat(f"it returns a {type(output).__name__}")


def describe_results(output: Any, operands: Sequence[Tensor]) -> tuple[Any, list[Tensor], tuple[ResultSpec, ...]]:
    """Return the nesting of an output, its results and their forms; CannotRepeat where others could not be like it."""
    results = list[Tensor]()
    structure = locate_output(output, operands, results)
    specs = tuple(_describe_result(tensor, operands) for tensor in results)
    made = {t.untyped_storage()._cdata for t in results}
    if len(made) < len(results) or not made.isdisjoint(t.untyped_storage()._cdata for t in operands):
        raise CannotRepeat("results share memory")
    return structure, results, specs


def _describe_result(tensor: Tensor, operands: Sequence[Tensor]) -> ResultSpec:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise CannotRepeat("a result is not dense, or not on the CPU")
    shape, stride = tuple(tensor.shape), tensor.stride()
    if not all(type(size) is int for size in (*shape, *stride)):
        raise CannotRepeat("a result has a size that depends on data")
    if not fills_memory(tensor):
        raise CannotRepeat("a result is a part of a larger tensor")
    carries = torch.is_grad_enabled() and any(operand.requires_grad for operand in operands)
    if tensor.requires_grad and (tensor.is_leaf or not carries):
        raise CannotRepeat("a result asks for a gradient by itself")
    return ResultSpec(shape, stride, str(tensor.dtype).removeprefix("torch."), tensor.requires_grad)


def rebuild_output(structure: Any, operands: Sequence[Any], results: Sequence[Tensor]) -> Any:
    """Return nested results of other tensors."""
    kind, value = structure
    if kind in ("operand", "result"):
        return (operands if kind == "operand" else results)[value]
    if kind is dict:
        return {key: rebuild_output(one, operands, results) for key, one in value}
    return value if kind == "plain" else kind(rebuild_output(one, operands, results) for one in value)


def returns_operand(structure: Any, position: int) -> bool:
    """Whether an operand is among the results."""
    kind, value = structure
    if kind == "operand":
        return bool(value == position)
    inner = [one for _, one in value] if kind is dict else value if kind in (tuple, list) else ()
    return any(returns_operand(one, position) for one in inner)
