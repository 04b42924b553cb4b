"""The FLOPs of one call of an operator that has no written rule: by its formula, on tensors without values."""

from collections.abc import Mapping

import torch

from ..ir.arguments import call_operator, decode
from .flop_counter import FlopCounter

Shapes = Mapping[str, tuple[tuple[int, ...], str]]  # shape and dtype, by the name that the arguments have for a tensor


def count_call_flops(target: str, arguments: Mapping[str, object], shapes: Shapes) -> float | None:
    """Return the FLOPs of a call, whose arguments are plain data; None where it cannot run without values."""

    def on_meta(name: str) -> torch.Tensor:
        shape, dtype = shapes[name]
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    try:
        with torch.no_grad(), FlopCounter() as counter:
            call_operator(target, {name: decode(value, on_meta) for name, value in arguments.items()})
    except (NotImplementedError, RuntimeError):
        return None
    return float(counter.flops)
