"""`CallEffect`: what a call did that was handed an object, such as a cache, by which it may be like another call.

It may change the object, and find there what other calls have left, so what it does is only known once it has run. Two
such calls are alike if they ran the same operators, on what they were given, on what they had made of it, or on the
very same tensors; if their layers differ in nothing but in their numbers; and if all that they read stayed as it was.
What code runs within functions of torch is seen of the first few alone.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from .call_signature import CallSignature, LayerCode, freeze_globals, freeze_reads, list_paths, sign_form
from .frozen_value import CannotFreeze, Freezer
from .known_result import KnownResult
from .layer_operator import ResultSpec

ESTABLISHED = 3  # calls that are alike


@dataclass(frozen=True)
class CallContext:
    """What a call gets and reads. form: of the layer and of its arguments, in which an object stands for itself.

    reads: the attributes of modules that it reads. code: what its code can reach by names.
    """

    form: CallSignature
    reads: Sequence[tuple[Hashable, str, Hashable]]
    code: Hashable

    def is_unchanged(self, later: "CallContext") -> bool:
        """Whether the call has left it as it was."""
        return self.form.is_same(later.form) and (self.reads, self.code) == (later.reads, later.code)

    def precedes(self, other: "CallContext") -> bool:
        """Whether another layer's is the same but for numbers of the layer, which go up by one."""
        if (self.form.decisive, self.code, len(self.reads)) != (other.form.decisive, other.code, len(other.reads)):
            return False
        return all(
            one[:2] == two[:2] and (one[2] == two[2] or _counts_up(one[2], two[2]))
            for one, two in zip(self.reads, other.reads, strict=True)
        )


@dataclass(frozen=True)
class CallEffect:
    """What a call did. touched: paths within the layer and names of the attributes that it read,
    in the order in which it did so first.

    structure, results: of its output. entries: of its operators. made: what these gave, by their numbers. like: the
    same object for calls that are alike. count: of those so far.
    """

    context: CallContext
    touched: Sequence[tuple[str, str]]
    structure: Any
    results: Sequence[ResultSpec]
    entries: Sequence[Any]
    made: Mapping[int, KnownResult]
    like: object = field(default_factory=object)
    count: int = 1

    @property
    def is_established(self) -> bool:
        """Whether so many calls were alike that the code within operators of the next one is known."""
        return self.count >= ESTABLISHED

    def follow(self, last: "CallEffect | None") -> "CallEffect":
        """Return it as the one after the last, which it may be like."""
        is_like = (
            last is not None
            and last.context.precedes(self.context)
            and (last.touched, last.structure, last.results) == (self.touched, self.structure, self.results)
            and last.entries == self.entries
        )
        return replace(self, like=last.like, count=last.count + 1) if last is not None and is_like else self


def read_context(module: nn.Module, args: Any, kwargs: Any, code: LayerCode, modes: Hashable) -> CallContext:
    """Return what a call gets and reads; raise CannotFreeze where that may change unseen.

    code: what such calls are known to read. modes: torch's, see `describe_modes`.
    """
    modules = dict(module.named_modules())
    freezer = Freezer(list_paths(modules))
    form = sign_form(modules, args, kwargs, freezer, modes, objects=True)
    return CallContext(form, freeze_reads(modules, code, freezer), freeze_globals(modules, code, freezer))


def describe_arguments(args: Any, kwargs: Any, describe: Callable[[Tensor], Hashable]) -> Hashable:
    """Return what a call gets, to be compared with what the layer gets in a later step.

    describe: says what a tensor is. What cannot be described equals nothing.
    """
    try:
        return Freezer({}, describe=describe).freeze((args, kwargs))
    except CannotFreeze:
        return object()


def describe_reads(module: nn.Module, code: LayerCode) -> Hashable:
    """Return what a call reads besides tensors, to be compared with what the layer reads in a later step."""
    modules = dict(module.named_modules())
    freezer = Freezer(list_paths(modules))
    try:
        return freeze_reads(modules, code, freezer), freeze_globals(modules, code, freezer)
    except CannotFreeze:
        return object()


def _counts_up(one: Hashable, two: Hashable) -> bool:
    """Whether two frozen values are whole numbers, no truth values, and the second is larger by one."""
    match one, two:
        case (kind, int(first)), (other, int(second)):
            return kind is int and other is int and second == first + 1
    return False
