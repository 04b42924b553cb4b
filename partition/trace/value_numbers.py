"""`ValueNumbers`: numbers the tensors of a step by how they are computed, as a compiler's value numbering does.

Two steps compute the same if their results have the same numbers: by the same operators, of the same constants, and of
batch, parameters and buffers as they are when the step begins. Numbers are digests, so that steps can be compared; the
digests that one is made of are its parents. (Cocke and Schwartz, "Programming Languages and Their Compilers", 1970.)
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten, tree_leaves

from ..ir.dispatch_mode import DispatchMode
from .user_frames import CodeLine, find_code_line

PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class ValueNumbers(DispatchMode):
    """Numbers what operators return and overwrite while it is active.

    states: batch, parameters and buffers by name. In every step they are numbered anew by their names.
    """

    supports_higher_order_operators = True

    def __init__(self, states: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._states = states
        self._name_of = {find_memory(tensor): name for name, tensor in states.items()}  # one name each memory
        self._numbers: dict[int, str] = {}  # by id of a tensor: how it was made
        self._written: dict[int, str] = {}  # by memory: how it was overwritten since
        self._constants: set[int] = set()  # ids of tensors with values, which Python code may change
        self._varying: set[int] = set()  # memories whose content is made of states or of random numbers
        self._kept: list[Any] = []  # so that no id is given twice
        self._steps = self._draws = 0
        self._left_over: set[str] = set()  # digests of what was left by the steps before
        self._known: set[str] = set()  # digests of the steps before
        self._parents: dict[str, tuple[str, ...]] = {}  # of the digests that are new in this step
        self._places: dict[str, CodeLine] = {}  # of the calls that are new in this step, in their order

    def begin_step(self) -> None:
        """Begin a step. What varied in the last one is no constant in this one, but left over."""
        self._steps, self._draws = self._steps + 1, 0
        self._known.update(self._parents)
        self._parents, self._places = {}, {}
        for number in self._constants:
            self._numbers.pop(number, None)
        for memory in self._varying:
            left = self._digest("left over", parents=[self._written.get(memory, "")])
            self._written[memory] = "" if memory in self._name_of else left
            self._left_over.add(left)
        self._varying.update(self._name_of)

    def end_step(self, results: Sequence[Tensor]) -> Sequence[str]:
        """Return the numbers of the results and of all states after the step."""
        return [*map(self.number, results), *map(self.number, self._states.values())]

    def varies(self, tensor: Tensor) -> bool:
        """Return whether a tensor is made of batch, parameters, buffers or random numbers."""
        return find_memory(tensor) in self._varying

    def is_left_over(self, tensor: Tensor) -> bool:
        """Return whether a tensor is no constant and no state, so that a later step finds what this one leaves."""
        memory = find_memory(tensor)
        return memory in self._varying and memory not in self._name_of

    def find_differences(self, numbers: Sequence[str]) -> Sequence[CodeLine]:
        """Return the places of this step that compute what no step before has, among what leads to `numbers`.

        Left out are those that differ because of another one of them, and read nothing that a step has left over.
        """
        pending, found = list(numbers), set[str]()
        while pending:
            digest = pending.pop()
            if digest not in found and digest not in self._known:
                found.add(digest)
                pending += self._parents.get(digest, ())
        places, following, left = list[CodeLine](), set[str](), set(self._left_over)
        for digest, parents in self._parents.items():  # each is after its parents
            reads_left, follows = not left.isdisjoint(parents), not following.isdisjoint(parents)
            if digest in found and digest in self._places:
                places += [self._places[digest]] if reads_left or not follows else []
                following.add(digest)
            elif follows:
                following.add(digest)
            elif reads_left:
                left.add(digest)
        return list(dict.fromkeys(places))

    def run_operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See `DispatchMode`."""
        operands = list[Tensor]()
        described = _describe((args, kwargs) if isinstance(func, OpOverload) else _flatten((args, kwargs)), operands)
        reads = [self.number(operand) for operand in operands]
        random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        self._draws += random
        varies = random or any(find_memory(operand) in self._varying for operand in operands)
        call = self._digest(str(func), described, torch.is_grad_enabled(), self._draws if random else 0, parents=reads)
        if self._steps > 1 and call not in self._known:
            self._places.setdefault(call, find_code_line())
        result = func(*args, **kwargs)
        changed = set[int]()
        for memory in {find_memory(tensor) for tensor in list_written(func, args, kwargs)}:
            self._written[memory] = self._digest("written", parents=[self._written.get(memory, ""), call])
            changed.add(memory)
        for i, leaf in enumerate((result,) if isinstance(result, Tensor) else tree_leaves(result)):
            if isinstance(leaf, Tensor) and not any(leaf is operand for operand in operands):
                self._enter(leaf, self._digest("result", i, parents=[call]))
                changed.add(find_memory(leaf))
        if varies:
            self._varying |= changed
        return result

    def number(self, tensor: Tensor) -> str:
        """Return the number of what a tensor holds now."""
        made = self._numbers.get(id(tensor)) or self._enter(tensor, self._describe_constant(tensor))
        written = self._written.get(find_memory(tensor), "")
        return self._digest("written to", parents=[made, written]) if written else made

    def _enter(self, tensor: Tensor, number: str) -> str:
        self._numbers[id(tensor)] = number
        self._kept.append((tensor, tensor.untyped_storage() if tensor.layout is torch.strided else None))
        return number

    def _describe_constant(self, tensor: Tensor) -> str:
        """Return the number of a tensor that no operator has made: a state, or a constant by its values."""
        layout = tuple(tensor.shape), str(tensor.dtype), tensor.layout, tensor.device.type
        name = self._name_of.get(find_memory(tensor))
        if name is not None:
            return self._digest("state", name, layout, tensor.stride(), tensor.storage_offset())
        if isinstance(tensor, FakeTensor) or tensor.is_meta or tensor.layout is not torch.strided:
            return self._digest("without values", layout)
        self._constants.add(id(tensor))
        with _disable_current_modes():
            content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return self._digest("constant", layout, hashlib.sha256(content).digest())

    def _digest(self, *parts: object, parents: Sequence[str] = ()) -> str:
        digest = hashlib.sha256(repr((parts, parents)).encode()).hexdigest()
        if digest not in self._known:
            self._parents[digest] = tuple(parents)
        return digest


def find_value_numbers() -> ValueNumbers | None:
    """Return the numbers of values that are active, if any are."""
    return next((mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, ValueNumbers)), None)


def find_memory(tensor: Tensor) -> int:
    """Return what is the same for tensors that share memory, as far as that can be known."""
    has_memory = tensor.layout is torch.strided and not is_functorch_wrapped_tensor(tensor)
    return int(tensor.untyped_storage()._cdata) if has_memory else id(tensor)


def fills_memory(tensor: Tensor) -> bool:
    """Whether a tensor is all that is in its memory, but for gaps between its elements."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    taken = (last + 1) * tensor.element_size() if tensor.numel() else 0
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == taken


def _flatten(arguments: Any) -> tuple[list[Any], str]:
    """Return arguments of a higher-order operator, which may be in containers of any class."""
    leaves, form = tree_flatten(arguments)
    return leaves, str(form)


def _describe(value: Any, operands: list[Tensor]) -> Any:
    """Return nested arguments as plain data, and append the tensors among them to `operands`."""
    kind = type(value)
    if kind in (tuple, list):
        return kind([_describe(one, operands) for one in value])
    if kind is dict:
        return {key: _describe(one, operands) for key, one in value.items()}
    if isinstance(value, Tensor):
        operands.append(value)
    return value if isinstance(value, PLAIN) else kind.__name__


def list_written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that an operator overwrites."""
    written = [args[i] if i < len(args) else kwargs.get(name) for i, name in _list_written_arguments(func)]
    return [leaf for leaf in tree_leaves(written) if isinstance(leaf, Tensor)] if written else []


@functools.cache
def _list_written_arguments(func: Any) -> Sequence[tuple[int, str]]:
    """Return positions and names of the arguments that an operator overwrites."""
    schema = getattr(func, "_schema", None)
    arguments = enumerate(schema.arguments if schema is not None else ())
    return [(i, one.name) for i, one in arguments if one.alias_info is not None and one.alias_info.is_write]
