"""Conditions on random numbers that always come out alike, as of a layer that is dropped with probability 0.

    if torch.rand([]) < self.layerdrop: continue

A trace cannot branch on a value. But a number of torch.rand is at least 0 and less than 1, so it is never less than 0.
So it is with random.random(), random.uniform(0, 1) and those of numpy.random: where the outcome is known, nothing is
drawn; else the number is, and whoever watches the generator sees that.
"""

import contextlib
import functools
import operator
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from ...errors import CutsetError
from .stand_ins import Table

P = ParamSpec("P")
T = TypeVar("T")

_ONE_AT_A_TIME = threading.RLock()
_LESS = (Tensor.__lt__, Tensor.lt, torch.lt)


class KnownConditions:
    """Stand-ins by which `torch.rand(...) < p` is known: false where p is at most 0, and true where it is 1 or more."""

    def __init__(self) -> None:
        self.stand_ins: Table = {
            torch.rand: self._draw,
            Tensor.__bool__: self._decide,
            **dict.fromkeys(_LESS, self._compare),
        }
        self._drawn: dict[int, Tensor] = {}
        self._known: dict[int, tuple[Tensor, bool]] = {}

    def _draw(self, rand: Any, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = rand(*args, **kwargs)
        self._drawn[id(result)] = result
        return result

    def _compare(self, compare: Any, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = compare(*args, **kwargs)
        drawn, bound = args if len(args) == 2 else (None, 0.5)
        if id(drawn) in self._drawn and type(bound) in (int, float) and not 0 < bound < 1:
            self._known[id(result)] = result, bound >= 1
        return result

    def _decide(self, decide: Any, condition: Tensor) -> bool:
        _, known = self._known.get(id(condition), (None, None))
        return bool(decide(condition)) if known is None else known


@dataclass(eq=False)
class _Undrawn:
    """A number that is drawn at its first use, unless all that is asked is how it compares with what it never reaches.

    low, high: its range. closed: whether it may be `high`.
    """

    draw: Callable[[], float]
    low: float
    high: float
    closed: bool

    @functools.cached_property
    def value(self) -> float:
        return self.draw()

    @property
    def was_drawn(self) -> bool:
        """Whether it came to matter."""
        return "value" in vars(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def __lt__(self, bound: Any) -> Any:
        return self._compare(operator.lt, bound, never=lambda: bound <= self.low, always=lambda: self._is_below(bound))

    def __ge__(self, bound: Any) -> Any:
        return self._compare(operator.ge, bound, never=lambda: self._is_below(bound), always=lambda: bound <= self.low)

    def __le__(self, bound: Any) -> Any:
        return self._compare(operator.le, bound, never=lambda: bound < self.low, always=lambda: bound >= self.high)

    def __gt__(self, bound: Any) -> Any:
        return self._compare(operator.gt, bound, never=lambda: bound >= self.high, always=lambda: bound < self.low)

    def _is_below(self, bound: float) -> bool:
        return bound > self.high or (bound == self.high and not self.closed)

    def _compare(
        self,
        compare: Callable[[Any, Any], Any],
        bound: Any,
        never: Callable[[], bool],
        always: Callable[[], bool],
    ) -> Any:
        if type(bound) in (int, float) and (always() or never()):
            return always()
        return compare(self.value, bound)


def _use_value(name: str) -> Callable[..., Any]:
    return lambda self, *args: getattr(self.value, name)(*args)


def _calculate(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return an operator of Python with the number on its left, and with it on its right."""
    apply = divmod if name == "divmod" else getattr(operator, name)
    return lambda self, other: apply(self.value, other), lambda self, other: apply(other, self.value)


# Python looks up what operators do in the class: all that floats have and other objects do not.
for _name in ({*dir(float)} - {*dir(object)}) | {"__eq__", "__ne__", "__hash__", "__repr__", "__str__", "__format__"}:
    if _name.startswith("__"):
        setattr(_Undrawn, _name, _use_value(_name))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod"):  # with a tensor, maybe
    _on_left, _on_right = _calculate(_name)
    setattr(_Undrawn, f"__{_name}__", _on_left)
    setattr(_Undrawn, f"__r{_name}__", _on_right)


def draw_what_matters(trace: Callable[P, T]) -> Callable[P, T]:
    """Have a function leave numbers undrawn that decide nothing; where it fails with such numbers, call it without.

    What is not a float but stands for one may not suit all that wants a number; and whoever draws is named by its line.
    Where no number mattered, the first error is the one that tells something. One thread traces at a time, since what
    it replaces is everybody's: functions of Python and torch, and what they warn of.
    """

    @functools.wraps(trace)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with _ONE_AT_A_TIME:
            return trace_in_two_ways(*args, **kwargs)

    def trace_in_two_ways(*args: P.args, **kwargs: P.kwargs) -> T:
        with leave_known_numbers_undrawn() as put_off:
            try:
                return trace(*args, **kwargs)
            except CutsetError as error:
                if not put_off:
                    raise
                first = error
        try:
            return trace(*args, **kwargs)
        except CutsetError:
            if any(number.was_drawn for number in put_off):
                raise
        raise first

    return call


@contextlib.contextmanager
def leave_known_numbers_undrawn() -> Iterator[Sequence[_Undrawn]]:
    """Let functions of Python and numpy that draw one number draw it when it matters, in this thread, while active.

    The numbers that were asked for are in the list that it returns.
    """
    put_off_numbers = list[_Undrawn]()
    numpy_random = sys.modules.get("numpy.random")
    names = [(random, "random"), (random, "uniform")]
    names += [(numpy_random, name) for name in ("random", "rand", "uniform")] if numpy_random is not None else []
    thread, real = threading.get_ident(), [(module, name, getattr(module, name)) for module, name in names]

    def put_off(draw: Callable[..., Any], is_uniform: bool) -> Callable[..., Any]:
        @functools.wraps(draw)
        def call(*args: Any, **kwargs: Any) -> Any:
            limits = args if is_uniform and args else (0, 1)
            is_one_number = (
                not kwargs and (is_uniform or not args) and [type(a) in (int, float) for a in limits] == [True] * 2
            )
            if threading.get_ident() != thread or not is_one_number:
                return draw(*args, **kwargs)
            put_off_numbers.append(_Undrawn(lambda: draw(*args), min(limits), max(limits), closed=is_uniform))
            return put_off_numbers[-1]

        return call

    for module, name, draw in real:
        setattr(module, name, put_off(draw, name == "uniform"))
    try:
        yield put_off_numbers
    finally:
        for module, name, draw in real:
            setattr(module, name, draw)
