"""Chains of like layers, each of which gets what the one before gives and nothing happens in between.

The middle of a long chain need not be traced: see `grown_draft`. A `CallLog` of a run without data shows the chains,
and `skip_layers` has a copy of the model go without their middle. Whether the rest of the model does the same then, the
logs of both tell.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ..operators.leaf_module import TRACED_CALL
from .call_output import rebuild_output, returns_operand
from .call_signature import list_argument_tensors
from .graph_segment import CannotRepeat

MIN_SKIPPED = 2  # calls of a chain; fewer are traced as fast as they are left out


@dataclass(frozen=True)
class LoggedCall:
    """A call of a layer, given by its name. described: its arguments without values of tensors."""

    layer: str
    described: Any


@dataclass(frozen=True)
class RepeatedCall(LoggedCall):
    """One that was repeated. like: the same object for calls that are like each other.

    arguments: the tensors of its arguments. structure: how what it returns is made of these and of its own `results`,
    see `call_output`. states: how many operands come before the arguments.
    """

    like: object
    arguments: Sequence[Tensor]
    structure: Any
    results: Sequence[Tensor]
    states: int


@dataclass(frozen=True)
class LayerChain:
    """Layers by their names in the order of the calls; of those that are skipped, `call` says what one would return.

    last_before: the one before `first`; first, last: those before and after the skipped ones. passed: which of the
    arguments is the result of the layer before.
    """

    last_before: str
    first: str
    skipped: tuple[str, ...]
    last: str
    call: RepeatedCall
    passed: int


class CallLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the calls of layers that may be repeated, and the operators outside of these, while it is active."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries: list[Any] = []
        self._paused = False

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Note no operators meanwhile."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def is_like(self, other: "CallLog", chains: Sequence["LayerChain"]) -> bool:
        """Whether another run did the same without the middle of some chains."""
        left_out = {layer for chain in chains for layer in chain.skipped}
        return [_describe_entry(entry) for entry in self.entries if _layer_of(entry) not in left_out] == [
            _describe_entry(entry) for entry in other.entries
        ]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._paused:
            self.entries.append((str(func), describe_arguments(args, kwargs)))
        return func(*args, **kwargs)


def describe_arguments(args: Any, kwargs: Any) -> Any:
    """Return arguments as plain data, without the values of tensors."""
    return tree_map(_describe_leaf, (args, kwargs))


def _describe_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype
    return leaf if isinstance(leaf, _PLAIN) else type(leaf).__name__


_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _layer_of(entry: Any) -> str | None:
    return entry.layer if isinstance(entry, LoggedCall) else None


def _describe_entry(entry: Any) -> Any:
    return (entry.layer, entry.described) if isinstance(entry, LoggedCall) else entry


def find_chains(log: CallLog, model: nn.Module) -> list[LayerChain]:
    """Return the chains of a model whose middle may be left out."""
    runs: list[list[RepeatedCall]] = [[]]
    for before, entry in pairwise([None, *log.entries]):
        if not isinstance(entry, RepeatedCall):
            continue
        if not isinstance(before, RepeatedCall) or _find_passed(before, entry) is None:
            runs.append([])
        runs[-1].append(entry)
    chains = [chain for run in runs for chain in _list_chains(run)]
    counts = Counter(layer for layer in (_layer_of(entry) for entry in log.entries) if layer is not None)
    return [chain for chain in chains if _is_apart(chain, model, counts)]


def _find_passed(before: RepeatedCall, call: RepeatedCall) -> int | None:
    """Return which argument of a call is the only result of the one before, where nothing else differs."""
    if before.like is not call.like or len(before.results) != 1 or len(before.arguments) != len(call.arguments):
        return None
    if any(returns_operand(call.structure, position) for position in range(call.states)):
        return None
    differing = [i for i, (a, b) in enumerate(zip(before.arguments, call.arguments, strict=True)) if a is not b]
    if len(differing) != 1 or call.arguments[differing[0]] is not before.results[0]:
        return None
    return differing[0]


def _list_chains(run: Sequence[RepeatedCall]) -> Iterator[LayerChain]:
    """Yield the chain of consecutive calls, where it is long enough and passes always the same argument."""
    last_before, first, *skipped, last = [call.layer for call in run] if len(run) > MIN_SKIPPED + 2 else [""] * 3
    passed = {_find_passed(before, call) for before, call in pairwise(run)}
    if len(skipped) >= MIN_SKIPPED and len(passed) == 1:
        (position,) = passed
        assert position is not None
        yield LayerChain(last_before, first, tuple(skipped), last, run[2], position)


def _is_apart(chain: LayerChain, model: nn.Module, counts: Mapping[str, int]) -> bool:
    """Whether each layer is called once, holds no tensor that another module holds, and they are in the model's order.

    Else a tensor or an operator of theirs goes by the name of another one.
    """
    called = (chain.last_before, chain.first, *chain.skipped, chain.last)
    if any(counts[layer] > 1 for layer in called):
        return False
    order = [name for name, _ in model.named_modules() if name in set(called)]
    held = Counter(map(id, _list_tensors(model)))
    own = [tensor for layer in called for tensor in _list_tensors(model.get_submodule(layer))]
    return order == list(called) and all(held[id(tensor)] == 1 for tensor in own)


def _list_tensors(module: nn.Module) -> list[Tensor]:
    """Return parameters and buffers, each as often as it is held."""
    tables = [table for inner in module.modules() for table in (inner._parameters, inner._buffers)]
    return [tensor for table in tables for tensor in table.values() if tensor is not None]


def skip_layers(model: nn.Module, chain: LayerChain) -> None:
    """Have the middle of a chain return at once what it gets, and take its tensors away, so that nobody reads them."""
    for layer in chain.skipped:
        module = model.get_submodule(layer)
        for inner in module.modules():
            inner._parameters.clear()
            inner._buffers.clear()
        setattr(module, TRACED_CALL, _SkippedCall(chain).run)


class _SkippedCall:
    """Takes the place of a call: what is passed along the chain is its result."""

    def __init__(self, chain: LayerChain) -> None:
        self._chain = chain

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Return what a layer returns whose result is what it gets."""
        with torch._C.DisableTorchFunction():  # which would see each look at a tensor
            arguments = list_argument_tensors(args, kwargs)
        call = self._chain.call
        if len(arguments) != len(call.arguments):
            raise CannotRepeat("it is called in another way")
        return rebuild_output(call.structure, [None] * call.states + arguments, [arguments[self._chain.passed]])
