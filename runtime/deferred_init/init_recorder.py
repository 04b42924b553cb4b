"""`InitRecorder`: records what a model's code does to values while the model is built on fake tensors."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from .generator_tracking import GeneratorTracker, Unrecordable
from .init_event import EventExecutor, InitEvent, TensorView, tensors

ALLOCATING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
OVERWRITING = {
    *("normal_", "uniform_", "zero_", "fill_", "copy_", "random_", "bernoulli_"),
    *("exponential_", "log_normal_", "cauchy_", "geometric_"),
}
COPYING = {torch.tensor, Tensor.new_tensor}
RESIZING = {"resize_", "resize_as_", "set_"}
DATA_DEPENDENT = ("_no_grad_trunc_normal_",)  # in torch.nn.init: they draw until all values are within bounds
MAX_READ_BYTES = 1 << 20  # that may be computed to give the model's code a value


@dataclass
class Memories:
    """The memories of a recording, by number. They are kept alive, so that no other gets the address of one."""

    numbers: dict[int, int] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)

    def number(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor's memory, or None where it is unknown."""
        return self.numbers.get(tensor.untyped_storage()._cdata)

    def add(self, tensor: Tensor) -> int:
        """Give the memory of a tensor a number, and return it."""
        storage = tensor.untyped_storage()
        self.numbers[storage._cdata] = len(self.kept)
        self.kept.append(storage)
        self.nbytes.append(storage.nbytes())
        return len(self.kept) - 1


class InitRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operators that change values; where that is not possible, it raises Unrecordable and keeps it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[InitEvent] = []
        self.memories = Memories()
        self.tracker = GeneratorTracker()
        self.copying = False
        self._shared: set[int | None] = set()  # memories that real tensors or arrays show too
        self.failure: Unrecordable | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self._record(func, args, kwargs or {})
        except Unrecordable as error:
            self.failure = self.failure or error
            raise
        except Exception as error:  # a value was asked for; that must be known even if the model's code goes on
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            self.failure = self.failure or Unrecordable(f"{func} cannot be deferred: {reason}")
            raise

    def _record(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name.partition("::")[2]
        if func.namespace == "prim":  # a property of a tensor, such as its device
            return func(*args, **kwargs)
        if name in ("_local_scalar_dense", "item", "is_nonzero") and isinstance(args[0], FakeTensor):
            value = self._run_unrecorded(lambda: self._compute_value(args[0]))
            if value is not None:
                return bool(value) if name == "is_nonzero" else value
        if func.namespace != "aten":
            raise Unrecordable(f"it calls {func}, an operator of its own")
        written = tensors(_find_written(func, args, kwargs))
        if any(not isinstance(t, FakeTensor) or self.memories.number(t) in self._shared for t in written):
            raise Unrecordable(f"{func} changes a tensor that was there before the model")
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        draw = self._run_unrecorded(lambda: self.tracker.begin(_find_generator(args, kwargs))) if is_random else None
        # Views and numbers of generators stand for the operator's arguments, taken before it changes them.
        arguments = tree_map(self._to_view, (args, kwargs))
        result = func(*args, **kwargs)
        if name in RESIZING:
            self._check_resize(name, args)
            return result
        makes = tuple(self._new_view(leaf) for leaf in tensors(result))
        is_view = any(value.alias_info is not None for value in func._schema.returns)
        if is_view and not self.copying and not all(isinstance(t, FakeTensor) for t in tensors((args, kwargs))):
            self._shared.update(view.memory for view in makes if view is not None)
        fresh = any(view is not None for view in makes) and name not in ALLOCATING
        if (written and torch.Tag.inplace_view not in func.tags) or fresh or is_random:
            self.events.append(InitEvent(func, arguments, makes, self._find_overwritten(name, arguments), draw))
        if draw is not None:
            self._run_unrecorded(lambda: self.tracker.end(draw))
        return result

    def _run_unrecorded(self, call: Callable[[], Any]) -> Any:
        """Run on real tensors, without recording."""
        with _disable_current_modes():
            return call()

    def _to_view(self, leaf: Any) -> Any:
        """Return what stands for an argument in an event."""
        if isinstance(leaf, torch.Generator):
            return None  # `InitEvent.draw` stands for it
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.layout != torch.strided or leaf.is_quantized or leaf.is_conj() or leaf.is_neg():
            raise Unrecordable("it makes tensors that are not dense and plain")
        number = self.memories.number(leaf)
        return TensorView.of(leaf, self._enter_constant(leaf) if number is None else number)

    def _enter_constant(self, tensor: Tensor) -> int:
        """Record the value of a tensor that no recorded operator has made, and return its memory's number.

        Raises Unrecordable for a fake tensor, whose value is not known.
        """
        if isinstance(tensor, FakeTensor):
            raise Unrecordable("it gets a tensor from elsewhere, a file perhaps")
        number = self.memories.add(tensor)
        value = self._run_unrecorded(lambda: _copy_bytes(tensor))
        self.events.append(
            InitEvent(None, None, (TensorView(number, torch.uint8, (len(value),), (1,), 0),), constant=value)
        )
        return number

    def _new_view(self, tensor: Tensor) -> TensorView | None:
        """Return the view of a result if its memory is new, else None."""
        if not isinstance(tensor, FakeTensor):
            raise Unrecordable("an operator returned a real tensor for fake ones")
        if self.memories.number(tensor) is not None:
            return None
        return TensorView.of(tensor, self.memories.add(tensor))

    def _find_overwritten(self, name: str, arguments: Any) -> int | None:
        """Return the memory of whose former content an operator leaves nothing, if there is one."""
        (first, *others), named = arguments if arguments[0] else ((None,), {})
        if name not in OVERWRITING or not isinstance(first, TensorView):
            return None
        read = {leaf.memory for leaf in tree_leaves((others, named)) if isinstance(leaf, TensorView)}
        whole = first.covers(self.memories.nbytes[first.memory])
        return first.memory if whole and first.memory not in read else None

    def _compute_value(self, tensor: Tensor) -> bool | int | float | complex | None:
        """Return the value of a fake tensor of one element, if nothing random and few bytes lead to it."""
        number = self.memories.number(tensor)
        if number is None:
            return None
        needed, events = {number}, list[InitEvent]()
        for event in reversed(self.events):
            if event.memories & needed:
                needed |= event.memories
                events.append(event)
        if any(event.draw for event in events) or sum(self.memories.nbytes[n] for n in needed) > MAX_READ_BYTES:
            return None
        executor = EventExecutor(self.memories.nbytes)
        for event in reversed(events):
            executor.execute(event)
        value: bool | int | float | complex = executor.tensor(TensorView.of(tensor, number)).item()
        return value

    def initialise(self, initialiser: Callable[..., Tensor], tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Record one of torch's initialisers as an operator, since it looks at the values that it draws."""
        draw = self._run_unrecorded(lambda: self.tracker.begin(_find_generator(args, kwargs)))
        view, *others = tree_map(self._to_view, (tensor, *args))
        named = tree_map(self._to_view, kwargs)
        whole = view.covers(self.memories.nbytes[view.memory])
        self.events.append(
            InitEvent(initialiser, ((view, *others), named), (None,), view.memory if whole else None, draw)
        )
        self._run_unrecorded(lambda: self.tracker.end(draw))
        return tensor

    def _check_resize(self, name: str, args: Any) -> None:
        """Raise Unrecordable where an operator has changed the size of a memory."""
        number = self.memories.number(args[0])
        if number is None or self.memories.kept[number].nbytes() != self.memories.nbytes[number]:
            raise Unrecordable(f"it calls {name} with memory of another size")


class CopyWatch(TorchFunctionMode):
    """Tells the recorder while torch copies values into a new tensor, which nobody else views."""

    def __init__(self, recorder: InitRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in COPYING:
            return func(*args, **(kwargs or {}))
        before, self._recorder.copying = self._recorder.copying, True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._recorder.copying = before


@contextlib.contextmanager
def record_initialisers(recorder: InitRecorder) -> Iterator[None]:
    """Record torch's initialisers that look at values as operators while the context is active."""
    before = {name: getattr(torch.nn.init, name) for name in DATA_DEPENDENT if hasattr(torch.nn.init, name)}
    try:
        for name, initialiser in before.items():
            setattr(torch.nn.init, name, functools.partial(recorder.initialise, initialiser))
        yield
    finally:
        for name, initialiser in before.items():
            setattr(torch.nn.init, name, initialiser)


def _find_written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments that an operator changes."""
    written = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(args[i] if i < len(args) else kwargs.get(argument.name))
    return written


def _find_generator(args: Any, kwargs: Any) -> torch.Generator:
    generators: Iterator[torch.Generator] = (
        leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Generator)
    )
    return next(generators, torch.default_generator)


def _copy_bytes(tensor: Tensor) -> Tensor:
    """Return a copy of all bytes of the memory that a tensor views."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).clone()
