"""Counts the FLOPs of an island by running it on made-up operands, since its sizes follow from them.

Integers and booleans - which expert a token goes to, what is masked - are computed as the model computes them, of
random floating-point numbers; so the experts of a mixture get about as many tokens each as they get in a model that
has not learnt yet. Large tensors have no values: operators on them are counted by their sizes.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..ir.arguments import call_operator, decode
from ..operators.flop_counter import FlopCounter
from ..operators.island import NUMBER_FUNCTIONS, IslandForm
from ..operators.routed_rows import find_chosen
from ..operators.sharding.signature import DraftTensor
from .draft import Draft, DraftOp

TRIALS = 3  # of which the mean counts
MAX_VALUES = 1 << 20  # elements of a tensor that gets values
MAX_DEPTH = 200  # operators between a floating-point tensor and an integer that follows from it


def count_flops(form: IslandForm, ops: Sequence[DraftOp], draft: Draft) -> int:
    """Return the FLOPs of an island; 0 where it cannot be run on made-up operands.

    The numbers are the same in every process: they are drawn from seeds of the tensors' names. ops: all operators.
    """
    makers = {name: op for op in ops for name in op.outputs}
    counts = []
    for trial in range(TRIALS):
        values = _MadeUpValues(trial, makers, draft.tensors)
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(trial)
                counts.append(_count(form, [values.get(name) for name in form.operands]))
        except Exception:  # values that do not suit it: torch's operators raise whatever they like
            return 0
    return sum(counts) // len(counts)


def _count(form: IslandForm, operands: Sequence[Tensor]) -> int:
    values: dict[str, Any] = dict(zip(form.operands, operands, strict=True))
    with FlopCounter() as counter:
        for step in form.steps:
            arguments = {name: decode(value, values.__getitem__) for name, value in step.arguments.items()}
            values |= zip(step.outputs, _run(step.target, arguments), strict=True)
    return counter.flops


def _run(target: str, arguments: Mapping[str, Any]) -> list[Any]:
    """Run a step; without values, where one of its operands has none."""
    if target in NUMBER_FUNCTIONS:
        return [NUMBER_FUNCTIONS[target](*arguments.values())]
    leaves = [leaf for value in arguments.values() for leaf in (value if isinstance(value, list) else [value])]
    if any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in leaves):
        arguments = {name: _without_values(value) for name, value in arguments.items()}
    result = call_operator(target, arguments)
    return [part for part in result if part is not None] if isinstance(result, tuple | list) else [result]


def _without_values(value: Any) -> Any:
    if isinstance(value, list):
        return [index for item in value for index in _as_indices(item)]
    return value.to("meta") if isinstance(value, Tensor) else value


def _as_indices(item: Any) -> list[Any]:
    """Return an item of a list without values; a mask, of which the size of the result depends, as indices."""
    if isinstance(item, Tensor) and item.dtype == torch.bool and not item.is_meta:
        return [index.to("meta") for index in item.nonzero(as_tuple=True)]
    return [_without_values(item)]


class RowDensities:
    """What share of a tensor's rows are chosen, by made-up operands that are computed once for all islands of a draft.

    ops: all operators.
    """

    def __init__(self, ops: Sequence[DraftOp], draft: Draft) -> None:
        makers = {name: op for op in ops for name in op.outputs}
        self._values = [_MadeUpValues(trial, makers, draft.tensors) for trial in range(TRIALS)]

    def measure(self, chosen: str, chosen_dims: Sequence[int]) -> float:
        """Return the share of rows for which a tensor is not zero anywhere; 1 where that cannot be computed.

        chosen_dims: its dimensions along which the rows lie.
        """
        shares = []
        for trial, values in enumerate(self._values):
            try:
                with torch.random.fork_rng(devices=[]), torch.no_grad():
                    torch.manual_seed(trial)
                    shares.append(float(find_chosen(values.get(chosen), chosen_dims).float().mean()))
            except Exception:  # values that do not suit it, as above
                return 1.0
        return sum(shares) / len(shares)


class _MadeUpValues:
    """Values of tensors: random floating-point numbers, and what the model makes of them elsewhere."""

    def __init__(self, trial: int, makers: Mapping[str, DraftOp], tensors: Mapping[str, DraftTensor]) -> None:
        self._trial, self._makers, self._tensors = trial, makers, tensors
        self._values: dict[str, Tensor] = {}

    def get(self, name: str, depth: int = 0) -> Tensor:
        """Return the values of a tensor, or one without values where it is large."""
        if name not in self._values:
            self._values[name] = self._make(name, depth)
        return self._values[name]

    def _make(self, name: str, depth: int) -> Tensor:
        info, maker = self._tensors[name], self._makers.get(name)
        dtype: torch.dtype = getattr(torch, info.dtype)
        if dtype.is_floating_point or dtype.is_complex:
            shape = torch.Size(info.shape)
            if shape.numel() > MAX_VALUES:
                return torch.empty(shape, dtype=dtype, device="meta")
            return (2 * torch.rand(shape, generator=self._generator(name)) - 1).to(dtype)
        if maker is not None and depth < MAX_DEPTH:
            return self._follow(maker, maker.outputs.index(name), depth + 1)
        return torch.randint(0, 2, info.shape, generator=self._generator(name)).to(dtype)

    def _follow(self, op: DraftOp, output: int, depth: int) -> Tensor:
        """Return what an operator makes of its operands."""
        arguments = {a: decode(v, lambda name: self.get(name, depth)) for a, v in op.arguments.items()}
        result = call_operator(op.target, arguments)
        if isinstance(result, Tensor):
            return result
        tensor: Tensor = result[op.arguments.get("@output", output)]
        return tensor

    def _generator(self, name: str) -> torch.Generator:
        digest = hashlib.sha256(f"{name}/{self._trial}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:6], "big"))
