"""`CallLog`: what a run without data does: calls of layers that may be alike, and the operators outside of these.

What a tensor is, is said by where it comes from: a parameter by its name, what was made by which operator of which
layer made it. So it shows who reads what of another layer, by whatever way it got there.
"""

import contextlib
import hashlib
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import SymBool, SymFloat, SymInt, Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from ..ir.dispatch_mode import DispatchMode
from ..ir.output_layout import list_tensors
from ..trace.value_numbers import PLAIN, find_memory, list_written
from .call_scope import CallScope

# Makers that are no layers: of what the step holds or gets, of the operands of a call, of what the call itself makes,
# of what the run before has made, of what nobody knows.
HELD, GIVEN, OWN, LEFT, UNMADE = "(held)", "(given)", "(own)", "(left)", "(unmade)"
RESULT = "result"  # the place of what a call gives
_NAME = re.compile(r"[A-Za-z_]\w*")
_SYMBOLIC = (SymInt, SymFloat, SymBool)
_NUMBERS, _CONTAINERS = frozenset((bool, int, float, complex)), (tuple, list, dict)
_DESCRIBED_BY_THEMSELVES = frozenset(PLAIN) - _NUMBERS


@dataclass(frozen=True)
class LoggedCall:
    """A call of a layer, given by its name. described: its arguments without values of tensors.

    line: of the model's code that leads to it. inside: what it did, as entries of its own.
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


class Origin(NamedTuple):
    """Where a tensor, or a number that is computed of data, comes from.

    maker: the layer that made it, "" for the model outside of layers; or one of those above. place: the numbers of the
    operator and of the result, the name of what is held, or the position of an operand. What nobody knows equals
    itself alone, but for tensors with values, which are compared by these.
    """

    maker: str
    place: Hashable


class _LoggedTensor(NamedTuple):
    """A tensor in a log. shape: a size that depends on data as text. values: a digest, where it has any.

    Strides, and whether it has a gradient, follow from how it was made.
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype
    origin: Origin
    values: str

    def stands_for(self, examples: Mapping[str, str]) -> "_LoggedTensor":
        """Return the tensor of which the run without skipped layers has one instead. examples: by skipped layers."""
        maker = self.origin.maker
        return self._replace(origin=self.origin._replace(maker=examples[maker])) if maker in examples else self


@dataclass(frozen=True)
class ForeignRead:
    """That something was read which another layer owns. reader: a layer, or "". owner: a layer, or a parameter's name.

    by_arguments: whether the reader got it as an argument.
    """

    reader: str
    owner: str
    by_arguments: bool


class LoggedRun:
    """What a run did. entries: of an operator, what it got; or a `LoggedCall`. reads: of what other layers own.

    found: what each call of a layer got and read, also one that was left out, where that is followed. output: of the
    step. results: the tensors in it, described; they count as read where they are wanted alone.
    """

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.found: list[Hashable] = []
        self.reads: set[ForeignRead] = set()
        self.output: Any = None
        self.results: Sequence[_LoggedTensor] = ()

    def is_like(self, other: "LoggedRun", examples: Mapping[str, str], wanted: Iterable[int]) -> bool:
        """Whether another run did the same without some layers. examples: by the layers that it skipped.

        wanted: the numbers of the results that are.
        """
        kept = [_replace(entry, examples) for entry in self.entries if find_layer(entry) not in examples]
        return _is_same(kept, other.entries) and all(self.results[i] == other.results[i] for i in wanted)

    def is_same(self, other: "LoggedRun") -> bool:
        """Whether another run of the same modules did the same, and its layers found the same."""
        is_same = self.results == other.results and self.found == other.found
        return is_same and _is_same(self.entries, other.entries)


class CallLog(DispatchMode):
    """Notes calls and operators while it is active. held: the tensors that the step holds or gets, by name.

    run: the last one. compares: whether it is a second run, in which no likeness is to be found. follows_state: whether
    it notes what layers find, too.
    """

    supports_higher_order_operators = True

    def __init__(self, *, follows_state: bool = False) -> None:
        super().__init__()
        self.compares, self.follows_state = False, follows_state
        self._names: dict[int, str] = {}  # of what is held, by id
        self._held: Sequence[Tensor] = ()  # as all that is kept, so that no id is given twice
        self._origins: dict[int, Origin] = {}  # of other tensors, by id
        self._symbols: dict[str, Origin] = {}
        self._kept: list[Tensor] = []
        self._left: set[int] = set()
        self._kept_left: Sequence[Tensor] = ()
        self.begin_run()

    def begin_run(self) -> None:
        """Begin anew. What operators have made before is left over."""
        self.run = LoggedRun()
        self._scopes = [CallScope("")]
        self._scopes[0].entries = self.run.entries
        self._left, self._kept_left = set(self._origins), self._kept
        self._origins, self._kept = {}, []
        self._symbols = {name: Origin(LEFT, name) for name in self._symbols}

    def name_held(self, held: Mapping[str, Tensor]) -> None:
        """Take note of the tensors that a step holds or gets."""
        self._names = {id(tensor): name for name, tensor in held.items()}
        self._held = list(held.values())

    @contextlib.contextmanager
    def enter(self, scope: CallScope) -> Iterator[None]:
        """Note operators in a scope meanwhile."""
        self._scopes.append(scope)
        try:
            yield
        finally:
            self._scopes.pop()

    def describe(self, value: Any, reader: str | None = None, around: tuple[int, ...] = ()) -> Any:
        """Return nested arguments as plain data. reader: the layer that gets them. around: ids of what holds them.

        Of what is not plain the class is all that there is: operators take nothing else that could be captured.
        """
        kind = type(value)
        if kind in _DESCRIBED_BY_THEMSELVES:
            return value
        if isinstance(value, Tensor):
            return self._describe_tensor(value, reader)
        if kind in _NUMBERS:
            return kind, repr(value)  # 0.0 and -0.0 are equal
        if isinstance(value, _CONTAINERS) and id(value) not in around:
            around = (*around, id(value))
            if not isinstance(value, dict):
                return kind, tuple([self.describe(one, reader, around) for one in value])
            keys = [key if isinstance(key, PLAIN) else type(key).__name__ for key in value]
            return kind, tuple(keys), tuple([self.describe(one, reader, around) for one in value.values()])
        if isinstance(value, _SYMBOLIC):
            return kind, self._describe_symbolic(value, reader)
        return value if isinstance(value, PLAIN) else kind.__name__

    def note_output(self, output: Any) -> None:
        """Take note of what a step gives, of which nobody may read most."""
        reads, self.run.output = set(self.run.reads), output
        self.run.results = [self._describe_tensor(tensor, None) for tensor in list_tensors(output)]
        self.run.reads = reads

    def note_call(self, call: LoggedCall, output: Any) -> None:
        """Take note of a call, whether it ran or was repeated, and that its layer has made what it gives."""
        self._scopes[-1].note_call(call)
        for number, leaf in enumerate(tree_leaves(output)):
            if isinstance(leaf, Tensor):
                known = self._find_origin(leaf)
                if known is None or known.maker == call.layer:
                    self._note(leaf, Origin(call.layer, (RESULT, number)))

    def _note(self, tensor: Tensor, origin: Origin) -> Origin:
        self._kept.append(tensor)
        self._origins[id(tensor)] = origin
        return origin

    def _find_origin(self, tensor: Tensor) -> Origin | None:
        name = self._names.get(id(tensor))
        if name is not None:
            return Origin(HELD, name)
        return Origin(LEFT, object()) if id(tensor) in self._left else self._origins.get(id(tensor))

    def _describe_tensor(self, tensor: Tensor, reader: str | None) -> _LoggedTensor:
        scope = self._scopes[-1]
        shape = tuple([size if type(size) is int else self._describe_symbolic(size, reader) for size in tensor.shape])
        position = scope.positions.get(id(tensor))
        if position is not None:
            return _LoggedTensor(shape, tensor.dtype, Origin(GIVEN, position), digest_values(tensor))
        values, origin = digest_values(tensor), self._find_origin(tensor)
        if origin is None:
            origin = self._note(tensor, Origin(UNMADE, None if values else object()))
        origin = self._look_at(origin, reader)
        if origin.maker != OWN:
            scope.foreign.add(find_memory(tensor))
        return _LoggedTensor(shape, tensor.dtype, origin, values)

    def _look_at(self, origin: Origin, reader: str | None) -> Origin:
        """Return an origin as the scope has it, and take note that it was read."""
        scope = self._scopes[-1]
        if origin.maker == scope.layer != "":
            return Origin(OWN, origin.place)
        owner = str(origin.place) if origin.maker == HELD else origin.maker
        if owner not in ("", UNMADE, LEFT):
            self.run.reads.add(ForeignRead(scope.layer if reader is None else reader, owner, reader is not None))
        return origin

    def _describe_symbolic(self, value: Any, reader: str | None) -> str:
        """Return a number that is computed of data by where its symbols come from."""
        expression, names = getattr(value.node, "expr", None), dict[str, str]()
        if expression is None:
            return f"unlike any other: {id(value)}"
        for symbol in sorted(map(str, expression.free_symbols)):
            origin = self._symbols.get(symbol)
            if origin is None:
                origin = self._symbols[symbol] = Origin(UNMADE, object())
            names[symbol] = repr(self._look_at(origin, reader))
        return _NAME.sub(lambda name: names.get(name[0], name[0]), str(expression))

    def _note_symbols(self, value: Any, origin: Origin) -> None:
        expression = getattr(value.node, "expr", None)
        for symbol in map(str, expression.free_symbols if expression is not None else ()):
            self._symbols.setdefault(symbol, origin)

    def run_operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See `DispatchMode`."""
        scope = self._scopes[-1]
        known = scope.note((func, torch.is_grad_enabled(), torch.get_default_dtype(), self.describe((args, kwargs))))
        number = scope.operators
        if known is not None:
            result = known.make(args)
        else:
            for tensor in list_written(func, args, kwargs) if scope.layer else ():
                scope.overwrites |= find_memory(tensor) in scope.foreign
            result = func(*args, **kwargs)
            scope.learn(func, args, kwargs, result)
        for i, leaf in enumerate((result,) if isinstance(result, Tensor) else tree_leaves(result)):
            origin = Origin(scope.layer, (number, i))
            if isinstance(leaf, _SYMBOLIC):
                self._note_symbols(leaf, origin)
            elif isinstance(leaf, Tensor) and self._find_origin(leaf) is None and id(leaf) not in scope.positions:
                self._note(leaf, origin)
                for size in leaf.shape:
                    if type(size) is not int:
                        self._note_symbols(size, origin)
        return result


def digest_values(tensor: Tensor) -> str:
    """Return a digest of the values of a tensor, "" where it has none."""
    real = tensor.constant if isinstance(tensor, FakeTensor) else tensor
    if real is None or type(real) not in (Tensor, nn.Parameter) or is_functorch_wrapped_tensor(real):
        return ""
    if real.is_meta or real.layout is not torch.strided or real.is_quantized:
        return ""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        content = (
            real.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return hashlib.sha256(content).hexdigest()


def find_layer(entry: Any) -> str | None:
    """Return the layer that an entry is a call of."""
    return entry.layer if isinstance(entry, LoggedCall) else None


def _is_same(entries: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(entries) == len(others) and all(map(_is_same_entry, entries, others))


def _is_same_entry(one: Any, two: Any) -> bool:
    if not isinstance(one, LoggedCall) or not isinstance(two, LoggedCall):
        return bool(one == two)
    is_like = (one.layer, one.described, one.line) == (two.layer, two.described, two.line)
    return is_like and (one.inside is two.inside or list(one.inside) == list(two.inside))


def _replace(value: Any, examples: Mapping[str, str]) -> Any:
    """Return what is described as the run without skipped layers would have it. examples: by skipped layers."""
    if isinstance(value, _LoggedTensor):
        return value.stands_for(examples)
    if isinstance(value, LoggedCall):
        return replace(value, described=_replace(value.described, examples))
    return tuple([_replace(one, examples) for one in value]) if isinstance(value, tuple) else value
