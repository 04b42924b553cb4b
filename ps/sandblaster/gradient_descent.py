"""Gradient descent, with momentum or without, and conjugate gradients: on the same operations as L-BFGS.

They differ from it in the direction alone. Conjugate gradients: Polak and Ribiere's, which begins again at the gradient
where the factor would be negative; Nocedal and Wright, "Numerical Optimization", 2006, equation 5.45.
"""

from collections.abc import Generator

from .lbfgs import DIRECTION, Lbfgs, Measured, Taken
from .line_search import Point, Search, Trial
from .vector_ops import AT, AnyOperation, Batch, Combine, Dot, Drop, Largest

VELOCITY, BEFORE = "velocity", "before"

Directed = Generator[Batch, list[float], tuple[float, float]]
Asked = Generator[Batch, list[float], Measured]


class GradientDescent(Lbfgs):
    """Along the gradient, as far as a strong Wolfe search says."""

    def _directed(self, here: Measured) -> Directed:
        asks = [Combine(DIRECTION, [(-1.0, here.gradient)])]
        slope, largest = yield [*asks, Dot(here.gradient, DIRECTION), Largest(DIRECTION)]
        return slope, largest

    def _remembered(self, here: Measured, taken: Taken, number: int) -> Asked:
        before, self._sample = self._sample, self._samples(number + 1)
        yield [Drop([taken.name]), *self._dropped([here.gradient], before)]
        if self._sample == before:
            return taken.to
        measured = yield from self._measured(AT)
        yield self._dropped([taken.to.gradient], before)
        return measured


class Momentum(GradientDescent):
    """The velocity is `beta` times that before, less the gradient; each step is `rate` times it, without a search."""

    beta = 0.9

    def _directed(self, here: Measured) -> Directed:
        terms = [(-1.0, here.gradient)] + ([(self.beta, VELOCITY)] if self._moving else [])
        self._moving = True
        asks: list[AnyOperation] = [Combine(DIRECTION, terms), Combine(VELOCITY, [(1.0, DIRECTION)])]
        (largest,) = yield [*asks, Largest(DIRECTION)]
        return -largest, largest  # it may well go uphill

    _moving = False

    def _search(self, start: Point, length: float, largest: float, most: int) -> Search:
        return _at_once(self._rules.rate)


class ConjugateGradients(GradientDescent):
    """The gradient, and as much of the direction before as makes both conjugate."""

    _square = 0.0  # of the gradient before

    def _directed(self, here: Measured) -> Directed:
        terms = [(-1.0, here.gradient)]
        if self._square:
            square, mixed = yield [Dot(here.gradient, here.gradient), Dot(here.gradient, BEFORE)]
            beta = max(0.0, (square - mixed) / self._square)
            terms += [(beta, DIRECTION)] if beta else []
        else:
            (square,) = yield [Dot(here.gradient, here.gradient)]
        self._square = square
        keep: AnyOperation = Combine(BEFORE, [(1.0, here.gradient)])
        slope, largest = yield [Combine(DIRECTION, terms), keep, Dot(here.gradient, DIRECTION), Largest(DIRECTION)]
        if slope < 0:
            return slope, largest
        return (yield from super()._directed(here))


def _at_once(step: float) -> Search:
    loss, slope = yield Trial(step, frozenset())
    return Point(step, loss, slope, 1)
