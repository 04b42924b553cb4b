"""Trial runs of a block by hand: what it returns, overwrites and draws, found by running it on made-up values.

Several runs on unlike values, so that a branch on a value goes both ways. Whatever the graph says of a block must be
alike in all of them; what none of them met is refused when a worker meets it (hand_block.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten, treespec_dumps
from torch.utils.flop_counter import FlopCounterMode

from ..ir.arguments import encode
from ..ir.autocast import autocast_now
from ...errors import BadInput
from .gradient_leaves import leaves_of_gradient, outside
from ..operators.leaf_module import Called, Form, OwnModule, Shape, is_tensor, operand_name, shape_of
from .leaf_trial_inputs import STYLES, dense, made_up, untraced, untraced_copy
from .source_location import first_line, where
from ..ir.pytree import Rebuild, flatten

WAY_OUT = "name a larger or a smaller module; or train it uncut, data parallel only, with --machines 1"


class TrialFailed(BadInput):
    """No trial run of a block came to an end."""


@dataclass(frozen=True)
class Request:
    """A call as the trace meets it. operands: states first, then arguments; leaves: as in `Form`; spec: their nesting.

    own: values of states that the caller's module has, by name. tensors: all states of the model.
    """

    name: str
    module: OwnModule
    operands: Sequence[Tensor]
    leaves: Sequence[Any]
    spec: Any
    own: Mapping[str, Tensor]
    tensors: Sequence[Tensor]

    @property
    def states(self) -> list[str]:
        """Names of the first operands."""
        return list(self.module.states)


@dataclass(frozen=True)
class Trial:
    """What was found. returns: the leaves of what the block returns; rebuild: puts such into its containers."""

    form: Form
    draws: bool
    flops: int
    returns: Sequence[Any]
    rebuild: Rebuild


@dataclass(frozen=True)
class _Outcome:
    nesting: str
    found: Sequence[Any]
    returns: tuple[Any, ...]
    tensors: tuple[Shape, ...]
    changed: frozenset[int]
    drew: bool
    flops: int
    rebuild: Rebuild

    @property
    def described(self) -> str:
        plain = [leaf for leaf in self.returns if not is_tensor(leaf) and leaf is not None]
        return ", ".join([*(shape.described for shape in self.tensors), *map(str, plain)])

    @property
    def demanded(self) -> Any:
        """What must not depend on data."""
        return self.nesting, self.returns, [(s.shape, _layout(s), s.dtype) for s in self.tensors]


def _layout(shape: Shape) -> list[int]:
    return [stride for size, stride in zip(shape.shape, shape.stride, strict=True) if size > 1]


def trial(request: Request) -> Trial:
    """Run the block; BadInput where it fails, or where what it gives depends on data or is no tensor."""
    outcomes, failures = _outcomes(request, {})
    if not outcomes and request.own:  # it may need its own buffers: an index into a table, say
        outcomes, failures = _outcomes(request, request.own)
    if not outcomes:
        raise _failed(request, failures[0]) from failures[0]
    _demand_alike(request, outcomes)
    first = outcomes[0]
    changed = sorted(frozenset[int]().union(*(o.changed for o in outcomes), _statistics(request)))
    form = Form(
        states=tuple(request.states),
        call=_nesting(request),
        leaves=_encoded(request, request.leaves, "is called with"),
        returns=first.returns,
        tensors=(*first.tensors, *(dense(request.operands[i]) for i in changed)),
        overwritten=tuple(changed),
        autocast=autocast_now(),
    )
    _demand_parameters_kept(request, form)
    draws = any(o.drew for o in outcomes) or _has_dropout(request.module.module)
    return Trial(form, draws, max(o.flops for o in outcomes), first.found, first.rebuild)


def _demand_alike(request: Request, outcomes: Sequence[_Outcome]) -> None:
    first = outcomes[0]
    other = next((o for o in outcomes if o.demanded != first.demanded), None)
    if other is None:
        return
    if first.described == other.described and first.nesting == other.nesting:
        raise _refused(request, f"lays its results out as data has it: {first.described}", fix="return x.contiguous()")
    raise _refused(request, f"gives results that depend on data: {first.described}; or {other.described}")


def _nesting(request: Request) -> str:
    try:
        return treespec_dumps(request.spec)
    except NotImplementedError as error:  # a named tuple, say
        raise _refused(request, f"is called with containers that cannot be sent: {first_line(error)}") from error


def _outcomes(request: Request, own: Mapping[str, Tensor]) -> tuple[list[_Outcome], list[Exception]]:
    outcomes, failures = list[_Outcome](), list[Exception]()
    for number in range(len(STYLES)):
        with untraced(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            try:
                outcomes.append(_outcome(request, number, own))
            except BadInput:
                raise
            except Exception as error:  # whatever the user's code raises; values that do not suit it are no fault
                failures.append(error)
    return outcomes, failures


def _outcome(request: Request, number: int, own: Mapping[str, Tensor]) -> _Outcome:
    states = request.states
    leaves, operands = list[Tensor](), list[Tensor]()
    for i, tensor in enumerate(request.operands):
        known = own.get(states[i]) if i < len(states) else None
        made = made_up(tensor, number, state=i < len(states)) if known is None else known.detach().clone()
        leaves.append(made.requires_grad_(tensor.requires_grad))
        operands.append(made.clone() if made.requires_grad and i >= len(states) else made)  # may be overwritten
    module, before = (
        OwnModule(untraced_copy(request.module.module, (*request.tensors, *request.operands))),
        torch.get_rng_state(),
    )
    given = [operands[leaf["tensor"]] if is_tensor(leaf) else leaf for leaf in request.leaves]
    args, kwargs = tree_unflatten(given, request.spec)
    with FlopCounterMode(display=False) as counter:
        called = module.call(states, operands, args, kwargs)
    _demand_containers_kept(request, args, kwargs, given)
    found, rebuild = flatten(called.output)
    tensors = [leaf for leaf in found if isinstance(leaf, Tensor)]
    if not tensors:
        raise _refused(request, f"returns {type(called.output).__name__} without a tensor")
    _demand_known(request, called, tensors, leaves)
    positions = iter(range(len(tensors)))
    returns = [{"tensor": next(positions)} if isinstance(leaf, Tensor) else leaf for leaf in found]
    return _Outcome(
        repr(tree_structure(called.output)),
        returns,
        _encoded(request, returns, "returns"),
        tuple(dense(tensor) for tensor in tensors),
        frozenset(called.changed),
        not torch.equal(torch.get_rng_state(), before),
        int(counter.get_total_flops()),
        rebuild,
    )


def _encoded(request: Request, leaves: Sequence[Any], how: str) -> tuple[Any, ...]:
    """Leaves as plain data."""
    out: list[Any] = []
    for leaf in leaves:
        try:
            out.append(leaf if is_tensor(leaf) else encode({"": leaf}, str)[""])
        except BadInput as error:
            raise _refused(request, f"{how} {type(leaf).__name__}, not tensors and plain values") from error
    return tuple(out)


def _statistics(request: Request) -> frozenset[int]:
    """Running statistics, which a norm that no run met would overwrite."""
    norms = [m for m in request.module.module.modules() if isinstance(m, _NormBase)]
    kept = {id(b) for m in norms if m.training and m.track_running_stats for b in m.buffers(recurse=False)}
    return frozenset(i for i, t in enumerate(request.module.states.values()) if id(t) in kept)


def _has_dropout(module: nn.Module) -> bool:
    """Whether there is a dropout, which a run may not have met."""
    return any(isinstance(m, _DropoutNd) and m.training and m.p > 0 for m in module.modules())


def _demand_parameters_kept(request: Request, form: Form) -> None:
    for i in form.overwritten:
        if i < len(form.states) and isinstance(request.operands[i], nn.Parameter):
            raise _refused(request, f"overwrites {operand_name(form, i)}, a parameter")


def _demand_containers_kept(request: Request, args: Any, kwargs: Any, given: Sequence[Any]) -> None:
    """Nobody outside would see what a block puts into a container that it is called with, a cache for example."""
    left = list(given)
    for name, value in [*enumerate(args), *kwargs.items()]:
        found = tree_leaves(value)
        before, left = left[: len(found)], left[len(found) :]
        if len(before) != len(found) or any(a is not b for a, b in zip(before, found, strict=True)):
            raise _refused(
                request,
                f"changes its argument {name}, a container of type {type(value).__name__}",
                fix="leave the argument out (a transformers model has use_cache=False in its configuration)",
            )


def _demand_known(request: Request, called: Called, results: Sequence[Tensor], known: Sequence[Tensor]) -> None:
    """What a block uses must be its operands: it would be missing where the block runs, or its gradient lost."""
    if any(isinstance(tensor, FakeTensor) for tensor in (*results, *called.last)):
        raise _refused(request, "uses a tensor that is not its own", fix="pass it as an argument")
    if any(outside(leaf, known) for tensor in results for leaf in leaves_of_gradient(tensor)):
        raise _refused(request, "uses a tensor from outside of it that asks for a gradient")


def _failed(request: Request, error: Exception) -> TrialFailed:
    given = ", ".join(shape_of(t).described for t in request.operands[len(request.states) :]) or "no tensor"
    said = f"{type(error).__name__}: {first_line(error)}"
    facts = f"the block by hand {request.name} fails on made-up values of {given}{where(error)}: {said}"
    return TrialFailed("E326", facts, fix=WAY_OUT)


def _refused(request: Request, what: str, *, fix: str = "") -> BadInput:
    ways = [fix, WAY_OUT] if fix else [WAY_OUT]
    return BadInput("E326", f"the block by hand {request.name} {what}", fix="; or ".join(ways))
