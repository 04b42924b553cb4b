"""`RepeatedLayers`: in the copy of a model that is traced, calls of layers that are like an earlier call are not run.

A call is recorded where nothing that it reads changes while it runs, by its signature (see `CallSignature`). Another
one with the same signature would do the same, so its nodes are added to the trace, or torch is told its results alone
where there is none. What a layer reads is found by watching its calls; the first only teaches that.
"""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode

from ..operators.leaf_module import TRACED_CALL
from ..trace.user_frames import find_code_line
from ..trace.value_numbers import ValueNumbers, find_value_numbers
from .call_effect import CallContext, CallEffect, describe_arguments, describe_reads, read_context
from .call_log import CallLog, LikeCall, LoggedCall
from .call_output import describe_results, rebuild_output
from .call_scope import CallScope
from .call_signature import (
    CallSignature,
    ChangingArgument,
    LayerCode,
    describe_modes,
    list_operands,
    list_paths,
    sign_call,
)
from .frozen_value import CannotFreeze
from .graph_segment import CannotRepeat, GraphSegment
from .layer_operator import LayerForm, enter_results, enter_write
from .seen_tensors import SeenTensors
from .watched_call import WatchedCall

MAX_FAILURES = 6  # of one group: so many calls more are recorded than repeated


@dataclass
class LayerGroup:
    """What is known of layers that may be alike, in all runs of the model.

    names: of the modules. misses, hits: how many calls were watched, and how many repeated. settled: whether it is
    hopeless, once that is decided. handed: the class of an object that calls get, and may change, so that they are not
    repeated; a log then shows which are alike.
    """

    names: Sequence[str]
    code: LayerCode = field(default_factory=LayerCode)
    misses: int = 0
    hits: int = 0
    settled: bool | None = None
    handed: str = ""

    @property
    def is_hopeless(self) -> bool:
        """Whether it is not worth while to try again."""
        return self.has_failed if self.settled is None else self.settled

    @property
    def has_failed(self) -> bool:
        """Whether many more calls were watched than repeated."""
        return self.misses - self.hits >= MAX_FAILURES

    def settle(self) -> None:
        """Decide for good whether to try, so that runs that are compared repeat the same calls."""
        self.settled = self.is_hopeless


@dataclass(frozen=True)
class _Recorded:
    """A call that others may repeat. output: nested results; a tensor stands as its position, see `call_output`.

    inside: what it did, as entries of a log, where there is one.
    """

    form: LayerForm
    draws: bool
    written: Sequence[int]
    output: Any
    segment: GraphSegment | None
    inside: Sequence[Any] = ()

    def accepts(self, operands: Sequence[Tensor]) -> bool:
        """Whether a call with other operands, of the same signature, can be repeated."""
        return self.segment is None or self.segment.accepts(operands)


class RepeatedLayers:
    """Takes the place of the calls of some modules of a copy of the model. log: notes these calls."""

    def __init__(self, model: nn.Module, groups: Sequence[LayerGroup], log: CallLog | None = None) -> None:
        self._recorded: dict[tuple[int, Any], _Recorded] = {}
        self._effects: dict[int, CallEffect] = {}
        self._log = log
        for number, group in enumerate(groups):
            for name in group.names:
                module = model.get_submodule(name)
                call = _LayerCall(self._recorded, self._effects, name, module, number, group, log)
                setattr(module, TRACED_CALL, call.run)

    def begin_run(self) -> None:
        """Forget the calls of the run before."""
        self._recorded.clear()
        self._effects.clear()
        if self._log is not None:
            self._log.begin_run()


def tell_of_objects(groups: Sequence[LayerGroup], skipped: AbstractSet[str], tell: Callable[[str], None]) -> None:
    """Say which layers are traced one by one where the user can change that. skipped: layers that are not traced."""
    for group in groups:
        if group.handed and group.has_failed and skipped.isdisjoint(group.names):
            tell(
                f"{len(group.names)} layers like {group.names[0]} are traced one by one, which takes long: each gets a "
                f"{group.handed}, which it may change. A language model of transformers gets none with use_cache=False"
            )


class _LayerCall:
    def __init__(
        self,
        recorded: dict[tuple[int, Any], _Recorded],
        effects: dict[int, CallEffect],
        name: str,
        module: nn.Module,
        number: int,
        group: LayerGroup,
        log: CallLog | None,
    ) -> None:
        self._recorded, self._effects = recorded, effects  # effects: of the last call of each group
        self._name, self._module, self._number = name, module, number
        self._group, self._log = group, log

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Repeat an earlier call, or run the layer and record it."""
        group, log = self._group, self._log
        if group.is_hopeless and (log is None or not group.handed):
            return self._call(args, kwargs)
        if log is None:
            return self._answer(args, kwargs, None)[1]
        if log.follows_state:
            with torch._C.DisableTorchFunction():
                log.run.found.append(describe_arguments(args, kwargs, log.describe))
                log.run.found.append(describe_reads(self._module, group.code))
        scope = CallScope(self._name, log.describe((args, kwargs), self._name), find_code_line().line)
        with log.enter(scope):
            run = self._run_again if log.compares else self._run_logged if group.is_hopeless else self._answer
            like, output = run(args, kwargs, scope)
        log.note_call(like or LoggedCall(scope.layer, scope.described, scope.line, scope.entries), output)
        return output

    def _answer(self, args: Any, kwargs: Any, scope: CallScope | None) -> tuple[LikeCall | None, Any]:
        """Return the call, if it is logged and like another, and what it gives. scope: of what it does, if logged."""
        group = self._group
        try:
            signature = self._sign(args, kwargs)
        except CannotFreeze as error:
            group.misses += 1
            group.handed = error.kind if isinstance(error, ChangingArgument) else group.handed
            if group.handed and scope is not None:
                return self._run_logged(args, kwargs, scope)
            return None, self._watch(args, kwargs, None, scope)
        if scope is not None:
            scope.give(signature.operands, self._module.buffers())
        known = self._recorded.get((self._number, signature.decisive))
        if known is None or not known.accepts(signature.operands):
            return None, self._watch(args, kwargs, signature, scope)
        group.hits += 1
        results = _repeat(known, signature)
        output = rebuild_output(known.output, signature.operands, results)
        if scope is None:
            return None, output
        return _make_like(scope, known.inside, known, signature, known.output, results), output

    def _run_logged(self, args: Any, kwargs: Any, scope: CallScope) -> tuple[LikeCall | None, Any]:
        """Run the layer, and find out whether the one before did the same. Return what `_answer` does."""
        group, modes, last = self._group, describe_modes(), self._effects.pop(self._number, None)

        def read() -> CallContext:
            with torch._C.DisableTorchFunction():
                return read_context(self._module, args, kwargs, group.code, modes)

        try:
            context = read()
        except CannotFreeze:
            return None, self._watch(args, kwargs, None, scope)
        scope.give(context.form.operands, self._module.buffers())
        is_next = last is not None and last.is_established and last.context.precedes(context)
        if last is not None and is_next:
            scope.expect(last.entries, last.made)
        with WatchedCall() as watched:
            output = self._call(args, kwargs)
        paths = list_paths(dict(self._module.named_modules()))
        known = group.code.learn(watched, paths)
        try:
            is_steady = known and not watched.is_opaque and not scope.overwrites and modes == describe_modes()
            if not is_steady or not context.is_unchanged(read()):
                return None, output
            with torch._C.DisableTorchFunction():
                structure, results, specs = describe_results(output, context.form.operands)
        except (CannotFreeze, CannotRepeat):
            return None, output
        touched = [(paths[number], name) for number, name in watched.reads if number in paths]
        effect = CallEffect(context, touched, structure, specs, scope.entries, scope.results).follow(last)
        self._effects[self._number] = effect
        call = _make_like(scope, scope.entries, effect.like, context.form, structure, results)
        return replace(call, ran=True), output

    def _run_again(self, args: Any, kwargs: Any, scope: CallScope) -> tuple[LikeCall | None, Any]:
        """Run the layer in a run that is compared with an earlier one."""
        with torch._C.DisableTorchFunction():
            operands = list_operands(self._module, args, kwargs)
        scope.give(operands, self._module.buffers())
        return None, self._call(args, kwargs)

    def _call(self, args: Any, kwargs: Any) -> Any:
        return type(self._module)._call_impl(self._module, *args, **kwargs)  # type: ignore[no-untyped-call]

    def _sign(self, args: Any, kwargs: Any) -> CallSignature:
        modes = describe_modes()
        with torch._C.DisableTorchFunction():  # which would see each look at a tensor
            return sign_call(self._module, args, kwargs, self._group.code, modes)

    def _watch(self, args: Any, kwargs: Any, signature: CallSignature | None, scope: CallScope | None) -> Any:
        """Run the layer, learn what it reads, and record the call where others may repeat it."""
        watched, group = WatchedCall(), self._group
        if signature is None:
            with watched:
                output = self._call(args, kwargs)
            group.code.learn(watched, list_paths(dict(self._module.named_modules())))
            return output
        proxies = get_proxy_mode()
        try:
            segment = GraphSegment(proxies.tracer, signature.operands) if proxies is not None else None
        except CannotRepeat:
            group.misses += 1
            return self._call(args, kwargs)
        seen = SeenTensors(signature.operands) if segment is None else None
        try:
            with watched, seen or contextlib.nullcontext():
                output = self._call(args, kwargs)
        finally:
            if segment is not None:
                segment.stop()
        known = group.code.learn(watched, list_paths(dict(self._module.named_modules())))
        try:
            if not known or watched.is_opaque or not self._sign(args, kwargs).is_same(signature):
                raise CannotRepeat("it reads what was not known, or changes what it reads")
            with torch._C.DisableTorchFunction():
                recorded = _record(output, signature, segment, seen)
        except (CannotFreeze, CannotRepeat):
            group.misses += 1
        else:
            inside = scope.entries if scope is not None else ()
            self._recorded[self._number, signature.decisive] = replace(recorded, inside=inside)
            group.misses += 1
        return output


def _make_like(
    scope: CallScope,
    inside: Sequence[Any],
    like: object,
    form: CallSignature,
    structure: Any,
    results: Sequence[Tensor],
) -> LikeCall:
    given = form.operands[form.states :]
    return LikeCall(scope.layer, scope.described, scope.line, inside, like, given, structure, results, form.states)


def _record(output: Any, signature: CallSignature, segment: GraphSegment | None, seen: SeenTensors | None) -> _Recorded:
    """Return a call as it is to be repeated; raise CannotRepeat where it cannot."""
    operands = signature.operands
    structure, results, specs = describe_results(output, operands)
    numbers = find_value_numbers()
    if segment is not None:
        segment.finish(results)
        written: Sequence[int] = sorted(segment.rewritten)
        computation, draws = "", False
    else:
        assert seen is not None
        written = seen.list_written()
        computation, draws = _describe_computation(numbers, results, [operands[i] for i in written]), seen.draws
    if any(position >= signature.states or isinstance(operands[position], nn.Parameter) for position in written):
        raise CannotRepeat("it overwrites an argument")
    return _Recorded(LayerForm(specs, computation), draws, written, structure, segment)


def _describe_computation(numbers: ValueNumbers | None, results: Sequence[Tensor], written: Sequence[Tensor]) -> str:
    """Say how what a call makes was computed, where values are numbered."""
    if numbers is None:
        return ""
    if not all(map(numbers.varies, results)):  # a table of constants may be kept, which the operator does not show
        raise CannotRepeat("a result is a constant")
    return _digest("".join(map(numbers.number, (*results, *written))))


def _repeat(recorded: _Recorded, signature: CallSignature) -> Sequence[Tensor]:
    """Return the results of a call that is like a recorded one."""
    operands = signature.operands
    with torch._C.DisableTorchFunction():
        carriers = _choose_carriers(signature)
        if recorded.segment is not None:
            with disable_proxy_modes_tracing():
                results = enter_results(carriers, recorded.form, draws=False)
            recorded.segment.repeat(operands, results)
        else:
            form = recorded.form
            numbers = find_value_numbers()
            if numbers is not None:
                reads = "".join(map(numbers.number, operands))
                form = msgspec.structs.replace(form, computation=_digest(form.computation + reads))
            results = enter_results(carriers, form, draws=recorded.draws)
            for number, position in enumerate(recorded.written):
                enter_write(operands[position], carriers, form, number)
    return results


def _choose_carriers(signature: CallSignature) -> list[Tensor]:
    """Return the arguments and one parameter through which gradients flow, since torch is slow with many operands.

    They also tell that results vary, while the form tells of what they are computed.
    """
    states, arguments = signature.operands[: signature.states], signature.operands[signature.states :]
    carrying = [tensor for tensor in states if tensor.requires_grad] or list(states)
    return [*carrying[:1], *arguments]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
