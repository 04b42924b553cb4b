"""Chains of like layers: each gets what the one before gives, with no operator in between.

The middle of a long chain need not be traced: see `grown_draft`. A `LoggedRun` of a run without data shows the chains,
and `skip_layers` has a copy of the model pass over their middle, whose modules and tensors stay where they are. Whether
the rest of the model does the same then, and reads nothing of the middle, the logs of both runs tell.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from ..operators.leaf_module import TRACED_CALL
from ..operators.step_module import StepModule
from ..trace.value_numbers import find_memory
from .call_log import CallLog, ForeignRead, LikeCall, LoggedRun, find_layer
from .call_output import rebuild_output, returns_operand
from .call_signature import list_argument_tensors
from .graph_segment import CannotRepeat

MIN_SKIPPED = 2  # calls of a chain; fewer are traced as fast as they are left out


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
    call: LikeCall
    passed: int

    @property
    def examples(self) -> dict[str, str]:
        """The example by each layer that is skipped."""
        return dict.fromkeys(self.skipped, self.example)


def find_chains(done: LoggedRun, step: StepModule) -> list[LayerChain]:
    """Return the chains of a step's model whose middle may be left out. done: what a run of the step did."""
    runs: list[list[LikeCall]] = [[]]
    for before, entry in pairwise([None, *done.entries]):
        if not isinstance(entry, LikeCall):
            continue
        if not isinstance(before, LikeCall) or _find_passed(before, entry) is None:
            runs.append([])
        runs[-1].append(entry)
    chains = [chain for run in runs for chain in _list_chains(run)]
    counts = Counter(layer for layer in (find_layer(entry) for entry in done.entries) if layer is not None)
    held = Counter(map(find_memory, _list_tensors(step)))
    return [chain for chain in chains if _is_apart(chain, step.model, counts, held) and not _is_read(chain, done.reads)]


def _find_passed(before: LikeCall, call: LikeCall) -> int | None:
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


def _list_chains(run: Sequence[LikeCall]) -> Iterator[LayerChain]:
    """Yield the chain of consecutive calls, where it is long enough and passes always the same argument."""
    if len(run) < MIN_SKIPPED + 3:
        return
    passed = {_find_passed(before, call) for before, call in pairwise(run)}
    position = passed.pop()
    if not passed and position is not None:
        before, example, *skipped, after = [call.layer for call in run]
        yield LayerChain(before, example, tuple(skipped), after, run[2], position)


def _is_apart(chain: LayerChain, model: nn.Module, counts: Mapping[str, int], held: Mapping[int, int]) -> bool:
    """Whether each layer is called once, and holds no tensor that another module holds, whose name it would have.

    counts: of calls. held: how often the memory of each tensor is held.
    """
    called = (chain.before, chain.example, *chain.skipped, chain.after)
    own = [tensor for layer in called for tensor in _list_tensors(model.get_submodule(layer))]
    return all(counts[layer] == 1 for layer in called) and all(held[find_memory(tensor)] == 1 for tensor in own)


def _is_read(chain: LayerChain, reads: Iterable[ForeignRead]) -> bool:
    """Whether anybody reads what a skipped layer has or makes, but the next one what it is passed."""
    following = dict(pairwise((*chain.skipped, chain.after)))
    for read in reads:
        layer = _find_owner(read.owner, following)
        if layer is None or read.reader == layer:
            continue
        if not read.by_arguments or read.reader != following[layer]:
            return True
    return False


def _find_owner(owner: str, layers: Iterable[str]) -> str | None:
    """Return which of some layers it is, or has the parameter of that name."""
    return next((layer for layer in layers if owner == layer or owner.startswith(f"model.{layer}.")), None)


def _list_tensors(module: nn.Module) -> list[Tensor]:
    """Return parameters and buffers, each as often as it is held."""
    tables = [table for inner in module.modules() for table in (inner._parameters, inner._buffers)]
    return [tensor for table in tables for tensor in table.values() if tensor is not None]


def _list_skipped(step: StepModule, chains: Iterable[LayerChain]) -> list[nn.Module]:
    return [step.model.get_submodule(layer) for chain in chains for layer in chain.skipped]


def list_skipped_tensors(step: StepModule, chains: Iterable[LayerChain]) -> list[Tensor]:
    """Return the parameters and buffers of the layers that are left out."""
    return [tensor for layer in _list_skipped(step, chains) for tensor in _list_tensors(layer)]


def hide_skipped_layers(step: StepModule, chains: Iterable[LayerChain]) -> None:
    """Take parameters, buffers and modules of skipped layers away, except while the step runs.

    torch.export would list them, which takes it some time for each; the model's code finds them where they are.
    """
    layers, forward = _list_skipped(step, chains), step.forward
    shown_tables = [{name: vars(layer)[name] for name in ("_parameters", "_buffers", "_modules")} for layer in layers]

    def set_tables(*, shown: bool) -> None:
        for layer, tables in zip(layers, shown_tables, strict=True):
            vars(layer).update(tables if shown else {name: {} for name in tables})

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        set_tables(shown=True)
        try:
            return forward(*args, **kwargs)
        finally:
            set_tables(shown=False)

    step.forward = run  # type: ignore[method-assign]
    set_tables(shown=False)


def skip_layers(model: nn.Module, chain: LayerChain, log: CallLog | None = None) -> None:
    """Have the middle of a chain return at once what it gets. log: notes what that is, where it follows such.

    In a trace, names of nodes go on as if it had added nodes as the layer before it does.
    """
    example = model.get_submodule(chain.example)
    counted = _CountedCall(getattr(example, TRACED_CALL))
    setattr(example, TRACED_CALL, counted.run)
    for position, layer in enumerate(chain.skipped):
        setattr(model.get_submodule(layer), TRACED_CALL, _SkippedCall(position, chain, counted, log).run)


class _CountedCall:
    """Takes the place of the call of the layer before those that are skipped.

    names: by how much it counts up names of a trace's nodes, by what these begin with. given: what it got last.
    skipped: how many layers were called since.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.names: dict[str, int] = {}
        self.given: Sequence[Any] = ()
        self.skipped = 0

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer."""
        self.given, before = (*args, *kwargs.values()), dict(_find_name_counts())
        output = self._call(*args, **kwargs)
        self.names = {base: count - before.get(base, 0) for base, count in _find_name_counts().items()}
        self.skipped = 0
        return output


def _find_name_counts() -> dict[str, int]:
    """Return the numbers up to which a trace has given names; nothing where there is none."""
    proxies = get_proxy_mode()
    counts: dict[str, int] = proxies.tracer.graph._graph_namespace._base_count if proxies is not None else {}
    return counts


class _SkippedCall:
    """Takes the place of a call: what is passed along the chain is its result. position: in the chain's middle."""

    def __init__(self, position: int, chain: LayerChain, counted: _CountedCall, log: CallLog | None) -> None:
        self._position, self._chain, self._counted, self._log = position, chain, counted, log

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Return what a layer returns whose result is what it gets."""
        if self._counted.skipped != self._position:
            raise CannotRepeat("layers are called in another order without what they leave")
        self._counted.skipped += 1
        if self._log is not None and self._log.follows_state:
            # What objects hold is described where the layers are called that are not left out, as it takes long.
            pairs = zip((*args, *kwargs.values()), self._counted.given, strict=False)
            self._log.run.found.append((self._log.describe((args, kwargs)), tuple([a is b for a, b in pairs])))
        counts = _find_name_counts()
        for base, count in self._counted.names.items():
            counts[base] = counts.get(base, 0) + count
        with torch._C.DisableTorchFunction():  # which would see each look at a tensor
            arguments = list_argument_tensors(args, kwargs)
        call = self._chain.call
        if len(arguments) != len(call.arguments):
            raise CannotRepeat("it is called in another way")
        return rebuild_output(call.structure, [None] * call.states + arguments, [arguments[self._chain.passed]])
