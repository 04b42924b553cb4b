"""`Recorder`: what a model's code does to values while the model is built on fake tensors."""

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

from .generator_tracking import Draws, Unrecordable
from .init_event import Event, Execution, Place, tensors

ALLOCATES = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
OVERWRITES = {
    *("normal_", "uniform_", "zero_", "fill_", "copy_", "random_", "bernoulli_"),
    *("exponential_", "log_normal_", "cauchy_", "geometric_"),
}
COPIES = {torch.tensor, Tensor.new_tensor}
RESIZES = {"resize_", "resize_as_", "set_"}
LOOKING = ("_no_grad_trunc_normal_",)  # of torch.nn.init: they draw until all values are as wanted
READ_BYTES = 1 << 20  # that are computed at most to tell the model's code a value


@dataclass
class Memories:
    """The memories of a recording, numbered. Kept alive, so that no other gets the address of one."""

    numbers: dict[int, int] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)

    def number(self, tensor: Tensor) -> int | None:
        """Of the memory of a tensor, if it is known."""
        return self.numbers.get(tensor.untyped_storage()._cdata)

    def add(self, tensor: Tensor) -> int:
        """Number the memory of a tensor."""
        storage = tensor.untyped_storage()
        self.numbers[storage._cdata] = len(self.kept)
        self.kept.append(storage)
        self.nbytes.append(storage.nbytes())
        return len(self.kept) - 1


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what changes values; raises Unrecordable, and keeps it, where that is not possible."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self.memories = Memories()
        self.draws = Draws()
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
            said = str(error).strip().partition("\n")[0]
            self.failure = self.failure or Unrecordable(f"{func} cannot be put off: {type(error).__name__}: {said}")
            raise

    def _record(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name.partition("::")[2]
        if func.namespace == "prim":  # what a tensor is like: its device, say
            return func(*args, **kwargs)
        if name in ("_local_scalar_dense", "item", "is_nonzero") and isinstance(args[0], FakeTensor):
            value = self._outside(lambda: self._value(args[0]))
            if value is not None:
                return bool(value) if name == "is_nonzero" else value
        if func.namespace != "aten":
            raise Unrecordable(f"it calls {func}, an operator of its own")
        written = tensors(_written(func, args, kwargs))
        if any(not isinstance(t, FakeTensor) or self.memories.number(t) in self._shared for t in written):
            raise Unrecordable(f"{func} changes a tensor that was there before the model")
        draws = torch.Tag.nondeterministic_seeded in func.tags
        drawing = self._outside(lambda: self.draws.before(_generator(args, kwargs))) if draws else None
        # Numbers of generators and places stand for what the operator gets, as that is before it runs.
        places = tree_map(self._placed, (args, kwargs))
        result = func(*args, **kwargs)
        if name in RESIZES:
            self._resized(name, args)
            return result
        makes = tuple(self._made(leaf) for leaf in tensors(result))
        views = any(value.alias_info is not None for value in func._schema.returns)
        if views and not self.copying and not all(isinstance(t, FakeTensor) for t in tensors((args, kwargs))):
            self._shared.update(place.memory for place in makes if place is not None)
        fresh = any(place is not None for place in makes) and name not in ALLOCATES
        if (written and torch.Tag.inplace_view not in func.tags) or fresh or draws:
            self.events.append(Event(func, places, makes, self._overwritten(name, places), drawing))
        if drawing is not None:
            self._outside(lambda: self.draws.after(drawing))
        return result

    def _outside(self, call: Callable[[], Any]) -> Any:
        """Run for real."""
        with _disable_current_modes():
            return call()

    def _placed(self, leaf: Any) -> Any:
        """What stands for an argument."""
        if isinstance(leaf, torch.Generator):
            return None  # as `draws` tells
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.layout != torch.strided or leaf.is_quantized or leaf.is_conj() or leaf.is_neg():
            raise Unrecordable("it makes tensors that are not plain ones")
        number = self.memories.number(leaf)
        return Place.of(leaf, self._entered(leaf) if number is None else number)

    def _entered(self, tensor: Tensor) -> int:
        """A tensor that no recorded operator has made: real, so that its value is known."""
        if isinstance(tensor, FakeTensor):
            raise Unrecordable("it gets a tensor from elsewhere, a file perhaps")
        number = self.memories.add(tensor)
        value = self._outside(lambda: _bytes_of(tensor))
        self.events.append(Event(None, None, (Place(number, torch.uint8, (len(value),), (1,), 0),), constant=value))
        return number

    def _made(self, tensor: Tensor) -> Place | None:
        """The place of a result if its memory is new."""
        if not isinstance(tensor, FakeTensor):
            raise Unrecordable("an operator gave a real tensor for fake ones")
        if self.memories.number(tensor) is not None:
            return None
        return Place.of(tensor, self.memories.add(tensor))

    def _overwritten(self, name: str, places: Any) -> int | None:
        (first, *others), named = places if places[0] else ((None,), {})
        if name not in OVERWRITES or not isinstance(first, Place):
            return None
        read = {leaf.memory for leaf in tree_leaves((others, named)) if isinstance(leaf, Place)}
        whole = first.covers(self.memories.nbytes[first.memory])
        return first.memory if whole and first.memory not in read else None

    def _value(self, tensor: Tensor) -> bool | int | float | complex | None:
        """The value of a fake tensor of one element, where nothing random and little else leads to that."""
        number = self.memories.number(tensor)
        if number is None:
            return None
        needed, events = {number}, list[Event]()
        for event in reversed(self.events):
            if event.memories & needed:
                needed |= event.memories
                events.append(event)
        if any(event.draws for event in events) or sum(self.memories.nbytes[n] for n in needed) > READ_BYTES:
            return None
        execution = Execution(self.memories.nbytes)
        for event in reversed(events):
            execution.execute(event)
        value: bool | int | float | complex = execution.tensor(Place.of(tensor, number)).item()
        return value

    def initialise(self, initialiser: Callable[..., Tensor], tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Record one of torch's initialisers as an operator, since it looks at the values that it draws."""
        drawing = self._outside(lambda: self.draws.before(_generator(args, kwargs)))
        place, *others = tree_map(self._placed, (tensor, *args))
        named = tree_map(self._placed, kwargs)
        whole = place.covers(self.memories.nbytes[place.memory])
        self.events.append(
            Event(initialiser, ((place, *others), named), (None,), place.memory if whole else None, drawing)
        )
        self._outside(lambda: self.draws.after(drawing))
        return tensor

    def _resized(self, name: str, args: Any) -> None:
        number = self.memories.number(args[0])
        if number is None or self.memories.kept[number].nbytes() != self.memories.nbytes[number]:
            raise Unrecordable(f"it calls {name} with memory of another size")


class Copying(TorchFunctionMode):
    """Notes while torch copies values into a tensor of its own, which nobody else shows."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in COPIES:
            return func(*args, **(kwargs or {}))
        before, self._recorder.copying = self._recorder.copying, True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._recorder.copying = before


@contextlib.contextmanager
def initialisers(recorder: Recorder) -> Iterator[None]:
    """While entered, torch's initialisers that look at values are recorded as operators."""
    before = {name: getattr(torch.nn.init, name) for name in LOOKING if hasattr(torch.nn.init, name)}
    try:
        for name, initialiser in before.items():
            setattr(torch.nn.init, name, functools.partial(recorder.initialise, initialiser))
        yield
    finally:
        for name, initialiser in before.items():
            setattr(torch.nn.init, name, initialiser)


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operator changes."""
    found = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[i] if i < len(args) else kwargs.get(argument.name))
    return found


def _generator(args: Any, kwargs: Any) -> torch.Generator:
    given: Iterator[torch.Generator] = (
        leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Generator)
    )
    return next(given, torch.default_generator)


def _bytes_of(tensor: Tensor) -> Tensor:
    """A copy of all memory that a tensor is part of."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).clone()
