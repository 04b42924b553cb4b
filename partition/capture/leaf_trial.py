"""Trial runs of a leaf module on random inputs, which find out what it returns, overwrites and draws.

There are several runs on unlike values, so that a branch on a value goes both ways. Whatever the graph says of a leaf
module must be alike in all of them; what none of them met is refused when a worker meets it (operators.leaf_module).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten, treespec_dumps

from ...errors import BadInput
from ..ir.arguments import encode
from ..ir.autocast import current_autocast
from ..ir.dispatch_mode import DispatchMode
from ..ir.pytree import Rebuild, flatten
from ..operators.flop_counter import FlopCounter
from ..operators.leaf_module import (
    LeafForm,
    LeafModule,
    LeafResult,
    TensorSpec,
    describe_operand,
    is_tensor_leaf,
    tensor_spec,
)
from ..trace.python_state import read_generators
from ..trace.source_location import describe_location, first_line
from ..trace.suspended_trace import suspend_trace
from .custom_gradients import find_gradient_leaves, is_outside
from .leaf_trial_inputs import STYLES, TrialStates, copy_untraced, dense_spec, is_whole, make_trial_input

_PATIENCE = 3  # failing runs on random states

WAY_OUT = "name a larger or a smaller module; or train it uncut, data parallel only, with --machines 1"


class TrialFailed(BadInput):
    """No trial run of a leaf module came to an end."""


@dataclass(frozen=True)
class LeafCall:
    """One call of a leaf module in the trace.

    operands: the module's states, then the tensors among its arguments. leaves: as in `LeafForm`; spec: the structure
    of (args, kwargs) around them. values: of those states of the caller's module that have values, by name. tensors:
    all states of the model. batch: of operands that are tensors of the example batch, their values, by position.
    """

    name: str
    module: LeafModule
    operands: Sequence[Tensor]
    leaves: Sequence[Any]
    spec: Any
    values: Mapping[str, Tensor]
    tensors: Sequence[Tensor]
    batch: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def states(self) -> list[str]:
        """Names of the states, which are the first operands."""
        return list(self.module.states)


@dataclass(frozen=True)
class LeafTrial:
    """What the runs have found. returns: the leaves of what the module returns; rebuild: puts such into containers."""

    form: LeafForm
    draws: bool
    flops: int
    returns: Sequence[Any]
    rebuild: Rebuild


@dataclass(frozen=True)
class _TrialRun:
    structure: str
    leaves: Sequence[Any]
    returns: tuple[Any, ...]
    tensors: tuple[TensorSpec, ...]
    changed: frozenset[int]
    drew: bool
    flops: int
    rebuild: Rebuild

    @property
    def described(self) -> str:
        plain = [leaf for leaf in self.returns if not is_tensor_leaf(leaf) and leaf is not None]
        return ", ".join([*(shape.described for shape in self.tensors), *map(str, plain)])

    @property
    def demanded(self) -> Any:
        """What must not depend on data."""
        return self.structure, self.returns, [(s.shape, _layout(s), s.dtype) for s in self.tensors]


def _layout(shape: TensorSpec) -> list[int]:
    return [stride for size, stride in zip(shape.shape, shape.stride, strict=True) if size > 1]


def try_leaf_module(request: LeafCall) -> LeafTrial:
    """Run a leaf module; raise BadInput where it fails, or where what it returns depends on data or has no tensor."""
    runs, failures = _run_trials(request)
    if not runs:
        raise _explain_failure(request, failures[0]) from failures[0]
    _demand_alike(request, runs)
    first = runs[0]
    changed = sorted(frozenset[int]().union(*(run.changed for run in runs), _find_statistics(request)))
    form = LeafForm(
        states=tuple(request.states),
        call=_dump_structure(request),
        leaves=_encode_leaves(request, request.leaves, "is called with"),
        returns=first.returns,
        tensors=(*first.tensors, *(dense_spec(request.operands[i]) for i in changed)),
        overwritten=tuple(changed),
        autocast=current_autocast(),
    )
    _demand_parameters_kept(request, form)
    draws = any(run.drew for run in runs) or _has_dropout(request.module.module)
    return LeafTrial(form, draws, max(run.flops for run in runs), first.leaves, first.rebuild)


def _demand_alike(request: LeafCall, runs: Sequence[_TrialRun]) -> None:
    first = runs[0]
    other = next((run for run in runs if run.demanded != first.demanded), None)
    if other is None:
        return
    if first.described == other.described and first.structure == other.structure:
        raise _refused(request, f"lays its results out as data has it: {first.described}", fix="return x.contiguous()")
    raise _refused(request, f"returns results that depend on data: {first.described}; or {other.described}")


def _dump_structure(request: LeafCall) -> str:
    try:
        return treespec_dumps(request.spec)
    except NotImplementedError as error:  # a named tuple, say
        raise _refused(request, f"is called with containers that cannot be sent: {first_line(error)}") from error


def _run_trials(request: LeafCall) -> tuple[list[_TrialRun], list[Exception]]:
    """Return the runs that came to an end, and why others did not.

    Whole numbers among the states, such as a stride or an index into a table, keep their values: sizes follow from
    them. Those that a run overwrites, such as a flag or a counter, are tried with others, too. With random states a
    module may fail whatever it gets: after some runs it has all of its own, where there are some.
    """
    statistics = {request.states[i] for i in _find_statistics(request)}
    whole = {name for name, value in request.values.items() if is_whole(value)}
    kept, states = {name: request.values[name] for name in whole - statistics}, TrialStates()
    runs, failures = _run_all(request, kept, states, most_failures=_PATIENCE if request.values else None)
    if not runs and request.values:
        kept = dict(request.values)
        runs, failures = _run_all(request, kept, states)
    overwritten = {request.states[i] for run in runs for i in run.changed if i < len(request.states)}
    if not overwritten.isdisjoint(whole & kept.keys()):
        kept = {name: value for name, value in kept.items() if name not in overwritten & whole}
        runs += _run_all(request, kept, states)[0]
    return runs, failures


def _run_all(
    request: LeafCall, values: Mapping[str, Tensor], states: TrialStates, *, most_failures: int | None = None
) -> tuple[list[_TrialRun], list[Exception]]:
    """Run the module on values of each style. most_failures: after so many, and no run that came to an end, stop."""
    runs, failures = list[_TrialRun](), list[Exception]()
    for number in range(-1 if request.batch else 0, len(STYLES)):
        with suspend_trace(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(number + 1)
            try:
                runs.append(_run_once(request, number, values, states))
            except BadInput:
                raise
            except Exception as error:  # whatever the user's code raises; values that do not suit it are no fault
                failures.append(error)
        if not runs and len(failures) == most_failures:
            break
    return runs, failures


def _run_once(request: LeafCall, number: int, values: Mapping[str, Tensor], states: TrialStates) -> _TrialRun:
    """Run the module once; number: of the style of the values, -1 for those of the example batch."""
    names, leaves, operands = request.states, list[Tensor](), list[Tensor]()
    for i, tensor in enumerate(request.operands):
        style = max(number, 0)
        if i < len(names):
            value = states.make(names[i], tensor, style, values.get(names[i]))
        elif number < 0 and i in request.batch:
            value = request.batch[i].detach().clone()
        else:
            value = make_trial_input(tensor, style)
        leaves.append(value.requires_grad_(tensor.requires_grad))
        # An argument may be overwritten, which a leaf that asks for a gradient may not.
        operands.append(value.clone() if value.requires_grad and i >= len(names) else value)
    module, before = (
        LeafModule(copy_untraced(request.module.module, (*request.tensors, *request.operands))),
        torch.get_rng_state(),
    )
    leaf_values = [operands[leaf["tensor"]] if is_tensor_leaf(leaf) else leaf for leaf in request.leaves]
    args, kwargs = tree_unflatten(leaf_values, request.spec)
    generators = read_generators()
    with FlopCounter() as counter, _MadeInside() as made:
        result = module.call(names, operands, args, kwargs)
    if read_generators() != generators:
        raise _refused(request, "draws random numbers of Python or numpy", fix="draw them with torch")
    _demand_counted(request, counter.unknown)
    _demand_containers_kept(request, args, kwargs, leaf_values)
    outputs, rebuild = flatten(result.output)
    tensors = [leaf for leaf in outputs if isinstance(leaf, Tensor)]
    if not tensors:
        raise _refused(request, f"returns {type(result.output).__name__} without a tensor")
    _demand_known(request, result, tensors, leaves, made)
    positions = iter(range(len(tensors)))
    returns = [{"tensor": next(positions)} if isinstance(leaf, Tensor) else leaf for leaf in outputs]
    return _TrialRun(
        repr(tree_structure(result.output)),
        returns,
        _encode_leaves(request, returns, "returns"),
        tuple(dense_spec(tensor) for tensor in tensors),
        frozenset(result.changed),
        not torch.equal(torch.get_rng_state(), before),
        counter.flops,
        rebuild,
    )


def _demand_counted(request: LeafCall, unknown: Collection[str]) -> None:
    """Refuse an operator of a library of which nothing says how many FLOPs it takes: a plan would be a guess."""
    if unknown:
        name = min(unknown)
        packet = name.rpartition(".")[0]
        raise _refused(
            request,
            f"calls the operator {name}, whose FLOPs are unknown",
            fix=f"give it a formula: @torch.utils.flop_counter.register_flop_formula(torch.ops.{packet})",
        )


def _encode_leaves(request: LeafCall, leaves: Sequence[Any], how: str) -> tuple[Any, ...]:
    """Return leaves as plain data; raise BadInput where one is not."""
    out: list[Any] = []
    for leaf in leaves:
        try:
            out.append(leaf if is_tensor_leaf(leaf) else encode({"": leaf}, str)[""])
        except BadInput as error:
            raise _refused(request, f"{how} {type(leaf).__name__}, not tensors and plain values") from error
    return tuple(out)


def _find_statistics(request: LeafCall) -> frozenset[int]:
    """Return the positions of running statistics, which a norm that no run met would overwrite."""
    norms = [m for m in request.module.module.modules() if isinstance(m, _NormBase)]
    kept = {id(b) for m in norms if m.training and m.track_running_stats for b in m.buffers(recurse=False)}
    return frozenset(i for i, t in enumerate(request.module.states.values()) if id(t) in kept)


def _has_dropout(module: nn.Module) -> bool:
    """Whether there is a dropout, which a run may not have met."""
    return any(isinstance(m, _DropoutNd) and m.training and m.p > 0 for m in module.modules())


def _demand_parameters_kept(request: LeafCall, form: LeafForm) -> None:
    for i in form.overwritten:
        if i < len(form.states) and isinstance(request.operands[i], nn.Parameter):
            raise _refused(request, f"overwrites {describe_operand(form, i)}, a parameter")


def _demand_containers_kept(request: LeafCall, args: Any, kwargs: Any, leaves: Sequence[Any]) -> None:
    """Refuse to fill a container that the module is called with, such as a cache: nobody outside would see it."""
    left = list(leaves)
    for name, value in [*enumerate(args), *kwargs.items()]:
        after = tree_leaves(value)
        before, left = left[: len(after)], left[len(after) :]
        if len(before) != len(after) or any(a is not b for a, b in zip(before, after, strict=True)):
            raise _refused(
                request,
                f"changes its argument {name}, a container of type {type(value).__name__}",
                fix="leave the argument out (a transformers model has use_cache=False in its configuration)",
            )


class _MadeInside(DispatchMode):
    """Notes in which memories operators put their results while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Any] = []  # so that no memory is given twice
        self._memories: set[int] = set()

    def run_operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See `DispatchMode`."""
        result = func(*args, **kwargs)
        if not func.is_view:
            made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.layout is torch.strided]
            self._kept += [tensor.untyped_storage() for tensor in made]
            self._memories.update(tensor.untyped_storage()._cdata for tensor in made)
        return result

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._memories


def _demand_known(
    request: LeafCall, result: LeafResult, results: Sequence[Tensor], known: Sequence[Tensor], made: _MadeInside
) -> None:
    """Refuse tensors that are no operands: they would be missing where the module runs, or their gradient lost.

    made: what the module has made itself may ask for a gradient, such as that of a penalty.
    """
    if any(isinstance(tensor, FakeTensor) for tensor in (*results, *result.last)):
        raise _refused(request, "uses a tensor that is not its own", fix="pass it as an argument")
    leaves = [leaf for tensor in results for leaf in find_gradient_leaves(tensor)]
    if any(is_outside(leaf, known) and leaf not in made for leaf in leaves):
        raise _refused(request, "uses a tensor from outside of it that asks for a gradient")


def _explain_failure(request: LeafCall, error: Exception) -> TrialFailed:
    inputs = ", ".join(tensor_spec(t).described for t in request.operands[len(request.states) :]) or "no tensor"
    reason = f"{type(error).__name__}: {first_line(error)}"
    facts = f"the leaf module {request.name} fails on trial inputs of {inputs}{describe_location(error)}: {reason}"
    return TrialFailed("E326", facts, fix=WAY_OUT)


def _refused(request: LeafCall, what: str, *, fix: str = "") -> BadInput:
    ways = [fix, WAY_OUT] if fix else [WAY_OUT]
    return BadInput("E326", f"the leaf module {request.name} {what}", fix="; or ".join(ways))
