"""What a call of a layer returns, as plain data: a tensor stands as ("operand" or "result", position)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .graph_segment import CannotRepeat


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
