"""Gradient descent, momentum and conjugate gradients, on the same operations as L-BFGS.

They differ from L-BFGS in the direction alone. Conjugate gradients is Polak and Ribiere's, which restarts along the
gradient where the factor would be negative (PR+): Nocedal and Wright, "Numerical Optimization", 2nd edition, 2006,
equations 5.44 and 5.45.
"""

from collections.abc import Generator

from .lbfgs import DIRECTION, AcceptedStep, EvaluatedPoint, EvaluationSteps, Lbfgs
from .line_search import LinePoint, LineSearch, TrialStep
from .vector_ops import ITERATE, AnyOperation, Batch, Combine, Dot, Drop, MaxNorm

VELOCITY, GRADIENT_BEFORE = "velocity", "gradient-before"

DirectionChoice = Generator[Batch, list[float], tuple[float, float]]


class GradientDescent(Lbfgs):
    """Gradient descent: each step is along the negative gradient, as long as a strong Wolfe search says."""

    def _choose_direction(self, point: EvaluatedPoint) -> DirectionChoice:
        make = Combine(DIRECTION, [(-1.0, point.gradient)])
        slope, largest = yield [make, Dot(point.gradient, DIRECTION), MaxNorm(DIRECTION)]
        return slope, largest

    def _update_history(self, point: EvaluatedPoint, step: AcceptedStep, number: int) -> EvaluationSteps:
        before, self._samples = self._samples, self._schedule(number + 1)
        yield [Drop([step.name]), *self._drop([point.gradient], before)]
        if self._samples == before:
            return step.end
        start = yield from self._evaluate(ITERATE)
        yield self._drop([step.end.gradient], before)
        return start


class Momentum(GradientDescent):
    """Gradient descent with momentum: v = beta v - gradient, and each step is `initial_step` times v, unsearched."""

    beta = 0.9
    _has_velocity = False

    def _choose_direction(self, point: EvaluatedPoint) -> DirectionChoice:
        terms = [(-1.0, point.gradient)] + ([(self.beta, VELOCITY)] if self._has_velocity else [])
        self._has_velocity = True
        make: list[AnyOperation] = [Combine(DIRECTION, terms), Combine(VELOCITY, [(1.0, DIRECTION)])]
        (largest,) = yield [*make, MaxNorm(DIRECTION)]
        return -largest, largest  # below 0 even where the step goes uphill, which momentum may

    def _start_search(self, start: LinePoint, length: float, largest: float, max_evaluations: int) -> LineSearch:
        return _accept_at_once(self._options.initial_step)


class ConjugateGradients(GradientDescent):
    """Nonlinear conjugate gradients: the negative gradient plus β times the direction before."""

    _square = 0.0  # ∇f_kᵀ ∇f_k of the iteration before

    def _choose_direction(self, point: EvaluatedPoint) -> DirectionChoice:
        terms = [(-1.0, point.gradient)]
        if self._square:
            square, mixed = yield [Dot(point.gradient, point.gradient), Dot(point.gradient, GRADIENT_BEFORE)]
            # "β_k+1 = max{∇f_k+1ᵀ (∇f_k+1 - ∇f_k) / ‖∇f_k‖², 0}"
            beta = max(0.0, (square - mixed) / self._square)
            # "p_k+1 ← -∇f_k+1 + β_k+1 p_k"
            terms += [(beta, DIRECTION)] if beta else []
        else:
            (square,) = yield [Dot(point.gradient, point.gradient)]
        self._square = square
        keep: AnyOperation = Combine(GRADIENT_BEFORE, [(1.0, point.gradient)])
        slope, largest = yield [Combine(DIRECTION, terms), keep, Dot(point.gradient, DIRECTION), MaxNorm(DIRECTION)]
        if slope < 0:
            return slope, largest
        return (yield from super()._choose_direction(point))


def _accept_at_once(step: float) -> LineSearch:
    loss, slope = yield TrialStep(step, frozenset())
    return LinePoint(step, loss, slope, 1)
