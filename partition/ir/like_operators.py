"""`LikeOperators`: which operators of a graph are alike in all but names, as those of repeated layers are.

What planning finds out about one of them, as its costs or what its blocks read, holds for all, so it is found once.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from .arguments import rename_tensors
from .graph import Op, TensorInfo


class LikeOperators:
    """Numbers the operators of one graph, like ones alike. tensors: the graph's, by name."""

    def __init__(self, tensors: Mapping[str, TensorInfo]) -> None:
        self._tensors = tensors
        self._numbers: dict[bytes, int] = {}
        self._known: dict[str, int] = {}

    def number(self, op: Op) -> int:
        """Return the number that an operator shares with those that are like it in all but names."""
        if op.name not in self._known:
            self._known[op.name] = self._numbers.setdefault(_describe(op, self._tensors), len(self._numbers))
        return self._known[op.name]


def _describe(op: Op, tensors: Mapping[str, TensorInfo]) -> bytes:
    """All of an operator but the names of it, of its tensors and of its place, and the numbers of its axes."""
    nest = op.nest
    loops = [(loop.size, loop.kind) for loop in nest.loops]
    operands = [(o.argument, o.readings, o.once, _describe_tensor(tensors[o.tensor])) for o in nest.operands]
    outputs = [_describe_tensor(tensors[name]) for name in op.outputs]
    plain = rename_tensors(op.arguments, dict.fromkeys(op.inputs, ""))
    return msgspec.json.encode(
        [op.target, op.sharding_rule, plain, loops, nest.work, nest.non_additive, operands, outputs, len(op.writes)],
        order="sorted",
    )


def _describe_tensor(info: TensorInfo) -> tuple[Any, ...]:
    return info.shape, info.dtype, info.kind, info.sizes, info.stride, info.gradient, info.element_bytes, info.density
