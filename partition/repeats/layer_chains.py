"""Chains of like layers: each gets what the one before gives, with no operator in between.

The middle of a long chain need not be traced: see `grown_draft`. A `CallLog` of a run without data shows the chains,
and `skip_layers` has a copy of the model pass over their middle, whose modules and tensors stay where they are. Whether
the rest of the model does the same then, and reads nothing of the middle, the logs of both runs tell.
"""

import contextlib
import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from ..operators.leaf_module import TRACED_CALL
from ..operators.step_module import StepModule
from ..trace.value_numbers import PLAIN
from .call_output import rebuild_output, returns_operand
from .call_signature import list_argument_tensors
from .graph_segment import CannotRepeat

MIN_SKIPPED = 2  # calls of a chain; fewer are traced as fast as they are left out


@dataclass(frozen=True)
class LoggedCall:
    """A call of a layer, given by its name. described: its arguments without values of tensors.

    line: of the model's code that leads to it. inside: what it did, as entries of a log of its own.
    """

    layer: str
    described: Any
    line: str
    inside: Sequence[Any]


@dataclass(frozen=True)
class RepeatedCall(LoggedCall):
    """One that was repeated; `inside` is of the call that it is like. like: the same object for like calls.

    arguments: the tensors of its arguments. structure: the nesting of its output, see `call_output`. states: how many
    operands come before the arguments.
    """

    like: object
    arguments: Sequence[Tensor]
    structure: Any
    results: Sequence[Tensor]
    states: int


@dataclass(frozen=True)
class LayerChain:
    """Layers by their names in the order of the calls; of those that are skipped, `call` says what one would return.

    example: is traced, and shows what the skipped ones do, which follow it. before, after: the layers around these,
    which are traced, too. passed: which of the arguments is the result of the layer before.
    """

    before: str
    example: str
    skipped: tuple[str, ...]
    after: str
    call: RepeatedCall
    passed: int


@dataclass(frozen=True)
class _LoggedTensor:
    """A tensor in a log. shape: None for sizes that depend on data, which cannot be compared.

    origin: what made it: the name of a layer, or the number of an operator, with the number of the result; or the
    number of the tensor among those that nothing has made. values: a digest, where it has any.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    origin: tuple[object, int]
    values: str

    def stands_for(self, examples: Mapping[str, str]) -> "_LoggedTensor":
        """Return the tensor of which the run without skipped layers has one instead. examples: by skipped layers."""
        maker, number = self.origin
        return replace(self, origin=(examples.get(maker, maker) if isinstance(maker, str) else maker, number))


class CallLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the calls of layers that may be repeated, and the operators outside of these, while it is active."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries: list[Any] = []
        self._origins: dict[int, tuple[object, int]] = {}  # of tensors, by id
        self._kept: list[Tensor] = []  # so that no id is given twice
        self._operators = self._unmade = 0
        self._paused = False

    def begin_run(self) -> None:
        """Forget the run before."""
        self.entries.clear()
        self._origins.clear()
        self._kept.clear()
        self._operators = self._unmade = 0

    def has_seen(self, tensors: Iterable[Tensor]) -> bool:
        """Whether an operator or a call of a layer has got one of these tensors; not those within layers."""
        return any(id(tensor) in self._origins for tensor in tensors)

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
        examples = {layer: chain.example for chain in chains for layer in chain.skipped}
        kept = [entry for entry in self.entries if _layer_of(entry) not in examples]
        described = [_describe_entry(one, examples) for one in kept]
        if described != [_describe_entry(one, {}) for one in other.entries]:
            return False
        calls = [
            [entry.inside for entry in entries if isinstance(entry, LoggedCall)] for entries in (kept, other.entries)
        ]
        return all(one is two or one == two for one, two in zip(*calls, strict=True))

    def describe(self, arguments: Any) -> Any:
        """Return nested arguments as plain data."""
        return tree_map(self._describe_leaf, arguments)

    def note_results(self, maker: object, results: Any) -> None:
        """Note what made some tensors, unless they were there before."""
        for number, tensor in enumerate(tree_leaves(results)):
            if isinstance(tensor, Tensor) and id(tensor) not in self._origins:
                self._note(tensor, (maker, number))

    def _note(self, tensor: Tensor, origin: tuple[object, int]) -> tuple[object, int]:
        self._kept.append(tensor)
        self._origins[id(tensor)] = origin
        return origin

    def _describe_leaf(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf if isinstance(leaf, PLAIN) else type(leaf).__name__
        origin = self._origins.get(id(leaf))
        if origin is None:
            self._unmade += 1
            origin = self._note(leaf, ("", self._unmade))
        shape = tuple(size if type(size) is int else None for size in leaf.shape)
        return _LoggedTensor(shape, leaf.dtype, origin, _digest_values(leaf))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        self.entries.append((str(func), self.describe((args, kwargs))))
        self._operators += 1
        number, result = self._operators, func(*args, **kwargs)
        self.note_results(number, result)
        return result


def _digest_values(tensor: Tensor) -> str:
    """Return a digest of the values of a tensor, "" where it has none."""
    real = tensor.constant if isinstance(tensor, FakeTensor) else tensor
    if real is None or real.is_meta or real.layout is not torch.strided or real.is_quantized:
        return ""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        content = (
            real.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return hashlib.sha256(content).hexdigest()


def _layer_of(entry: Any) -> str | None:
    return entry.layer if isinstance(entry, LoggedCall) else None


def _describe_entry(entry: Any, examples: Mapping[str, str]) -> Any:
    """Describe an entry as the run without skipped layers would have it. examples: by skipped layers."""
    plain = (entry.layer, entry.described, entry.line) if isinstance(entry, LoggedCall) else entry
    return tree_map(lambda leaf: leaf.stands_for(examples) if isinstance(leaf, _LoggedTensor) else leaf, plain)


def find_chains(log: CallLog, step: StepModule) -> list[LayerChain]:
    """Return the chains of a step's model whose middle may be left out. log: of a run of the step."""
    runs: list[list[RepeatedCall]] = [[]]
    for before, entry in pairwise([None, *log.entries]):
        if not isinstance(entry, RepeatedCall):
            continue
        if not isinstance(before, RepeatedCall) or _find_passed(before, entry) is None:
            runs.append([])
        runs[-1].append(entry)
    chains = [chain for run in runs for chain in _list_chains(run)]
    counts = Counter(layer for layer in (_layer_of(entry) for entry in log.entries) if layer is not None)
    held = Counter(map(id, _list_tensors(step)))
    return [chain for chain in chains if _is_apart(chain, step.model, counts, held)]


def _find_passed(before: RepeatedCall, call: RepeatedCall) -> int | None:
    """Return which argument of a call is the only result of the one before, where nothing else differs."""
    if before.like is not call.like or len(before.results) != 1 or len(before.arguments) != len(call.arguments):
        return None
    if before.line != call.line:  # which operators name where the layer's code is torch's
        return None
    if any(returns_operand(call.structure, position) for position in range(call.states)):
        return None
    differing = [i for i, (a, b) in enumerate(zip(before.arguments, call.arguments, strict=True)) if a is not b]
    if len(differing) != 1 or call.arguments[differing[0]] is not before.results[0]:
        return None
    return differing[0]


def _list_chains(run: Sequence[RepeatedCall]) -> Iterator[LayerChain]:
    """Yield the chain of consecutive calls, where it is long enough and passes always the same argument."""
    if len(run) < MIN_SKIPPED + 3:
        return
    passed = {_find_passed(before, call) for before, call in pairwise(run)}
    position = passed.pop()
    if not passed and position is not None:
        before, example, *skipped, after = [call.layer for call in run]
        of_skipped = run[2]
        yield LayerChain(before, example, tuple(skipped), after, of_skipped, position)


def _is_apart(chain: LayerChain, model: nn.Module, counts: Mapping[str, int], held: Mapping[int, int]) -> bool:
    """Whether each layer is called once, and holds no tensor that another module holds, whose name it would have.

    counts: of calls. held: how often each tensor is held, by id.
    """
    called = (chain.before, chain.example, *chain.skipped, chain.after)
    own = [tensor for layer in called for tensor in _list_tensors(model.get_submodule(layer))]
    return all(counts[layer] == 1 for layer in called) and all(held[id(tensor)] == 1 for tensor in own)


def _list_tensors(module: nn.Module) -> list[Tensor]:
    """Return parameters and buffers, each as often as it is held."""
    tables = [table for inner in module.modules() for table in (inner._parameters, inner._buffers)]
    return [tensor for table in tables for tensor in table.values() if tensor is not None]


def _list_skipped(step: StepModule, chains: Iterable[LayerChain]) -> list[nn.Module]:
    return [step.model.get_submodule(layer) for chain in chains for layer in chain.skipped]


def list_skipped_tensors(step: StepModule, chains: Iterable[LayerChain]) -> list[Tensor]:
    """Return the parameters and buffers of the layers that are left out."""
    return [tensor for layer in _list_skipped(step, chains) for tensor in _list_tensors(layer)]


def hide_skipped_tensors(step: StepModule, chains: Iterable[LayerChain]) -> None:
    """Take parameters and buffers of skipped layers away, but while the step runs.

    torch.export would list them, which takes it some time for each; the model's code finds them where they are.
    """
    inside = [inner for layer in _list_skipped(step, chains) for inner in layer.modules()]
    tables, forward = [(vars(inner), inner._parameters, inner._buffers) for inner in inside], step.forward

    def set_tables(*, shown: bool) -> None:
        for attributes, parameters, buffers in tables:
            attributes["_parameters"] = parameters if shown else {}
            attributes["_buffers"] = buffers if shown else {}

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        set_tables(shown=True)
        try:
            return forward(*args, **kwargs)
        finally:
            set_tables(shown=False)

    step.forward = run  # type: ignore[method-assign]
    set_tables(shown=False)


def skip_layers(model: nn.Module, chain: LayerChain) -> None:
    """Have the middle of a chain return at once what it gets.

    In a trace, names of nodes go on as if it had added nodes as the layer before it does.
    """
    example = model.get_submodule(chain.example)
    counted = _CountedCall(getattr(example, TRACED_CALL))
    setattr(example, TRACED_CALL, counted.run)
    for layer in chain.skipped:
        setattr(model.get_submodule(layer), TRACED_CALL, _SkippedCall(chain, counted).run)


class _CountedCall:
    """Takes the place of a call. names: by how much it counts up names of a trace's nodes, by what these begin with."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.names: dict[str, int] = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer."""
        before = dict(_find_name_counts())
        output = self._call(*args, **kwargs)
        self.names = {base: count - before.get(base, 0) for base, count in _find_name_counts().items()}
        return output


def _find_name_counts() -> dict[str, int]:
    """Return the numbers up to which a trace has given names; nothing where there is none."""
    proxies = get_proxy_mode()
    counts: dict[str, int] = proxies.tracer.graph._graph_namespace._base_count if proxies is not None else {}
    return counts


class _SkippedCall:
    """Takes the place of a call: what is passed along the chain is its result."""

    def __init__(self, chain: LayerChain, counted: _CountedCall) -> None:
        self._chain, self._counted = chain, counted

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Return what a layer returns whose result is what it gets."""
        counts = _find_name_counts()
        for base, count in self._counted.names.items():
            counts[base] = counts.get(base, 0) + count
        with torch._C.DisableTorchFunction():  # which would see each look at a tensor
            arguments = list_argument_tensors(args, kwargs)
        call = self._chain.call
        if len(arguments) != len(call.arguments):
            raise CannotRepeat("it is called in another way")
        return rebuild_output(call.structure, [None] * call.states + arguments, [arguments[self._chain.passed]])
