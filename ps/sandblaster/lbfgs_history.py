"""What L-BFGS remembers: pairs of a step and the change of the gradient along it, and the direction that they make.

Both forms are those of Nocedal and Wright, "Numerical Optimization", 2006, algorithm 7.4. The two-loop form asks for
one dot product after the other: two round trips for each pair. The vector-free form (Chen, Wang and Zhou, "Large-scale
L-BFGS using MapReduce", 2014) asks for all that it may need at once, and computes with numbers alone.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .solver import Asking
from .vector_ops import AnyOperation, Axpy, Combine, Dot, Drop, Scale

FREE, LOOP = "free", "loop"
LEAST = 1e-10  # product of step and change below which a pair says nothing of the curvature, as in torch.optim.LBFGS


class Pair(NamedTuple):
    """Names of the step and of the change of the gradient, and their product."""

    step: str
    change: str
    product: float

    @property
    def inverse(self) -> float:
        """Of the product: torch multiplies by it, which rounds otherwise than dividing by the product."""
        return 1.0 / self.product


class Curvature:
    """Of the last `history` pairs. form: "free" or "loop"."""

    def __init__(self, history: int, form: str) -> None:
        self.pairs: deque[Pair] = deque()
        self.scale = 1.0  # of the first guess of the inverse Hessian
        self._history, self._form = history, form
        self._dots: dict[frozenset[str], float] = {}  # by the names of both vectors, of the pairs alone
        self._known: set[str] = set()  # names of vectors whose dots with all others are there

    def add(self, pair: Pair, square: float) -> list[AnyOperation]:
        """Remember a pair, and forget the oldest; what has to be done for that. square: of the change."""
        self.pairs.append(pair)
        self.scale = pair.product / square
        if len(self.pairs) <= self._history:
            return []
        return self._forget([self.pairs.popleft()])

    def forget(self) -> list[AnyOperation]:
        """Forget everything."""
        gone, self.scale = list(self.pairs), 1.0
        self.pairs.clear()
        return self._forget(gone)

    def direction(self, out: str, factor: float, base: str) -> Asking:
        """What, in the end, makes `out` the inverse Hessian, as far as it is known, times factor x base."""
        return (yield from (self._free if self._form == FREE else self._loop)(out, factor, base))

    def _free(self, out: str, factor: float, base: str) -> Asking:
        wanted = list(self._unknown(base))
        answers = (yield [Dot(*pair) for pair in wanted]) if wanted else []
        dots = self._dots | {_key(a, b): value for (a, b), value in zip(wanted, answers, strict=True)}
        self._dots = {key: value for key, value in dots.items() if base not in key}
        self._known = {name for pair in self.pairs for name in (pair.step, pair.change)}
        factors = {base: factor}

        def product(name: str) -> float:
            return math.fsum(value * dots[_key(name, other)] for other, value in factors.items())

        taken = []
        for pair in reversed(self.pairs):
            taken.append(product(pair.step) * pair.inverse)
            factors[pair.change] = factors.get(pair.change, 0.0) - taken[-1]
        factors = {name: value * self.scale for name, value in factors.items()}
        for pair in self.pairs:
            given = product(pair.change) * pair.inverse
            factors[pair.step] = factors.get(pair.step, 0.0) + taken.pop() - given
        return [Combine(out, [(value, name) for name, value in factors.items()])]

    def _unknown(self, base: str) -> Iterator[tuple[str, str]]:
        """The products that are wanted and not known: of pairs with each other, but for steps, and with the base."""
        names = [name for pair in self.pairs for name in (pair.step, pair.change)]
        steps = {pair.step for pair in self.pairs}
        for n, a in enumerate(names):
            yield a, base
            for b in names[: n + 1]:
                if not (a in steps and b in steps) and not (a in self._known and b in self._known):
                    yield a, b

    def _loop(self, out: str, factor: float, base: str) -> Asking:
        batch: list[AnyOperation] = [Combine(out, [(factor, base)])]
        taken = []
        for pair in reversed(self.pairs):
            (dot,) = yield [*batch, Dot(pair.step, out)]
            taken.append(dot * pair.inverse)
            batch = [Axpy(out, -taken[-1], pair.change)]
        batch.append(Scale(out, self.scale))
        for pair in self.pairs:
            (dot,) = yield [*batch, Dot(pair.change, out)]
            batch = [Axpy(out, taken.pop() - dot * pair.inverse, pair.step)]
        return batch

    def _forget(self, gone: Iterable[Pair]) -> list[AnyOperation]:
        names = {name for pair in gone for name in (pair.step, pair.change)}
        self._known -= names
        self._dots = {key: value for key, value in self._dots.items() if not key & names}
        return [Drop(sorted(names))] if names else []

    def __repr__(self) -> str:
        return f"Curvature({self._form}, {len(self.pairs)} of {self._history} pairs)"


def _key(a: str, b: str) -> frozenset[str]:
    return frozenset((a, b))
