"""`BoundArguments`: the arguments of an operator with its plain ones in place, and places for the tensors of a box."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..ir.arguments import decode, list_parameters
from ..ir.box import Box
from ..ir.graph import Op, is_at_origin

Operands = Sequence[Tensor | None]
OUTPUT = "@output"  # the argument that says which of torch's results the operator stands for
_Place = int | list[int | None]  # of an operand among those that are given, or of each item of a list


class BoundArguments:
    """The arguments of a box of `op`, to be filled with operands whose arguments are `names`, in this order.

    An operand that another part of a reduction adds is None.
    """

    def __init__(self, op: Op, box: Box, names: Sequence[str]) -> None:
        self._target = op.target
        self._plain: dict[str, Any] = {}  # all arguments by name, None where an operand goes
        self._places: dict[str, _Place] = {}
        self._count = len(names)
        once = {operand.argument for operand in op.nest.operands if operand.once}
        kept = is_at_origin(op.nest, box)
        for name, value in op.arguments.items():
            self._plain[name] = None
            if isinstance(value, list) and any(map(_is_tensor, value)):
                self._plain[name] = [None if _is_tensor(item) else decode(item, _never) for item in value]
                self._places[name] = [
                    names.index(f"{name}[{i}]") if _is_tensor(item) else None for i, item in enumerate(value)
                ]
            elif not _is_tensor(value):
                self._plain[name] = decode(value, _never)
            elif kept or name not in once:
                self._places[name] = names.index(name)

    def fill(self, operands: Operands) -> dict[str, Any]:
        """Return the arguments by name with the operands in place."""
        filled = self._plain.copy()
        for name, place in self._places.items():
            filled[name] = _take(operands, place, filled[name])
        return filled

    def prepare_call(self) -> Callable[[Operands], Any]:
        """Return the function that calls torch's operator with operands in place.

        Of several results it returns the one that this operator stands for, if it stands for one. Plain arguments that
        have torch's defaults are left out, as torch takes time to read each.
        """
        operator, positional, keywords = list_parameters(self._target)
        defaults = {p.name: p.default_value for p in operator._schema.arguments if p.has_default_value()}
        parameters = (*positional, *keywords)
        given = {name for name in parameters if name in self._places or not self._has_default(name, defaults)}
        last = max((i for i, name in enumerate(positional) if name in given), default=-1)
        plain = [self._plain[name] for name in positional[: last + 1]]
        named = {name: self._plain[name] for name in keywords if name in given}
        places = [(i, self._places[name]) for i, name in enumerate(positional) if name in self._places]
        named_places = [(name, self._places[name]) for name in keywords if name in self._places]
        if places == [(i, i) for i in range(self._count)] and not named_places:  # as of most operators
            rest = plain[self._count :]
            return self._select(lambda operands: operator(*operands, *rest, **named))

        def call(operands: Operands) -> Any:
            filled = plain.copy()
            for i, place in places:
                filled[i] = _take(operands, place, filled[i])
            if not named_places:
                return operator(*filled, **named)
            return operator(*filled, **named | {n: _take(operands, place, named[n]) for n, place in named_places})

        return self._select(call)

    def _has_default(self, name: str, defaults: dict[str, Any]) -> bool:
        value = self._plain[name]
        return name in defaults and type(defaults[name]) is type(value) and bool(defaults[name] == value)

    def _select(self, call: Callable[[Operands], Any]) -> Callable[[Operands], Any]:
        if OUTPUT not in self._plain:
            return call
        number = self._plain[OUTPUT]
        return lambda operands: call(operands)[number]


def _take(operands: Operands, place: _Place, plain: Any) -> Any:
    if isinstance(place, int):
        return operands[place]
    return [item if i is None else operands[i] for item, i in zip(plain, place, strict=True)]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and "tensor" in value


def _never(name: str) -> Any:
    raise AssertionError(f"tensor {name} is not an operand")
