"""`CallLog`: what a run without data does: calls of layers that may be alike, and the operators outside of these."""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from ..trace.value_numbers import PLAIN, find_memory, list_written


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
class LikeCall(LoggedCall):
    """One that does what another does, whose entries `inside` are. like: the same object for all of these.

    arguments: the tensors of its arguments. structure: the nesting of its output, see `call_output`. states: how many
    operands come before the arguments. ran: whether it ran, and is like by what it did; else it was repeated.
    """

    like: object
    arguments: Sequence[Tensor]
    structure: Any
    results: Sequence[Tensor]
    states: int
    ran: bool = False


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
    """Notes calls and operators while it is active.

    unmade: the tensors that nothing in it has made, and that were not given, in the order in which they were met.
    overwrites: whether an operator has written into what was given or is unmade, but for those that may be written.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries: list[Any] = []
        self._paused = False
        self.begin_run()

    def begin_run(self) -> None:
        """Forget the run before."""
        self.entries.clear()
        self.unmade: list[Tensor] = []
        self.overwrites = False
        self._origins: dict[int, tuple[object, int]] = {}  # of tensors, by id
        self._kept: list[Tensor] = []  # so that no id is given twice
        self._fixed: set[int] = set()  # memories that were there before
        self._operators = 0

    def give(self, tensors: Iterable[Tensor], *, writable: Iterable[Tensor] = ()) -> None:
        """Number what a call gets. writable: which of it the call may overwrite."""
        allowed = {find_memory(tensor) for tensor in writable}
        for number, tensor in enumerate(tensors):
            self._note(tensor, ("given", number))
            self._fixed |= {find_memory(tensor)} - allowed

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

    def is_like(self, other: "CallLog", examples: Mapping[str, str]) -> bool:
        """Whether another run did the same without some layers. examples: by the layers that it skipped."""
        kept = [entry for entry in self.entries if find_layer(entry) not in examples]
        described = [_describe_entry(one, examples) for one in kept]
        if described != [_describe_entry(one, {}) for one in other.entries]:
            return False
        calls = [
            [entry.inside for entry in entries if isinstance(entry, LoggedCall)] for entries in (kept, other.entries)
        ]
        return all(one is two or one == two for one, two in zip(*calls, strict=True))

    def describe(self, arguments: Any) -> Any:
        """Return nested arguments as plain data."""
        return tree_map(self._describe_leaf, arguments, is_leaf=_is_leaf)

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
            self.unmade.append(leaf)
            self._fixed.add(find_memory(leaf))
            origin = self._note(leaf, ("", len(self.unmade)))
        shape = tuple(size if type(size) is int else None for size in leaf.shape)
        return _LoggedTensor(shape, leaf.dtype, origin, digest_values(leaf))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._paused or func is torch.ops.prim.device.default:  # which tells where a tensor is
            return func(*args, **kwargs)
        self.entries.append((str(func), torch.is_grad_enabled(), self.describe((args, kwargs))))
        self.overwrites |= any(find_memory(tensor) in self._fixed for tensor in list_written(func, args, kwargs))
        self._operators += 1
        number, result = self._operators, func(*args, **kwargs)
        self.note_results(number, result)
        return result


def digest_values(tensor: Tensor) -> str:
    """Return a digest of the values of a tensor, "" where it has none."""
    real = tensor.constant if isinstance(tensor, FakeTensor) else tensor
    if real is None or real.is_meta or real.layout is not torch.strided or real.is_quantized:
        return ""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        content = (
            real.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return hashlib.sha256(content).hexdigest()


def find_layer(entry: Any) -> str | None:
    """Return the layer that an entry is a call of."""
    return entry.layer if isinstance(entry, LoggedCall) else None


def _is_leaf(value: Any) -> bool:
    """Whether arguments go no deeper. An object may hold tensors, which are of the calls before, too."""
    return not isinstance(value, tuple | list | dict)


def _describe_entry(entry: Any, examples: Mapping[str, str]) -> Any:
    """Describe an entry as the run without skipped layers would have it. examples: by skipped layers."""
    plain = (entry.layer, entry.described, entry.line) if isinstance(entry, LoggedCall) else entry
    return tree_map(lambda leaf: leaf.stands_for(examples) if isinstance(leaf, _LoggedTensor) else leaf, plain)
