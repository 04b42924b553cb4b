"""Gradient descent, momentum and conjugate gradients, on the same operations as L-BFGS.

They differ from L-BFGS in the direction, and in the first step of a search (equation 3.60). Conjugate gradients is
Polak and Ribiere's, which restarts along the gradient where the factor would be negative (PR+): Nocedal and Wright,
"Numerical Optimization", 2nd edition, 2006, equations 5.44 and 5.45.
"""

from .lbfgs import DIRECTION, DirectionChoice, EvaluationSteps, Lbfgs
from .line_search import LinePoint, LineSearch, TrialStep
from .solver import AcceptedStep, EvaluatedPoint
from .vector_ops import ITERATE, AnyOperation, Combine, Dot, Drop, MaxNorm

VELOCITY, GRADIENT_BEFORE = "velocity", "gradient-before"


class GradientDescent(Lbfgs):
    """Gradient descent: each step is along the negative gradient, as long as a strong Wolfe search says."""

    _before = (0.0, 0.0)  # length of the step before, and the slope where it began

    def _choose_direction(self, point: EvaluatedPoint) -> DirectionChoice:
        make = Combine(DIRECTION, [(-1.0, point.gradient)])
        slope, largest = yield [make, Dot(point.gradient, DIRECTION), MaxNorm(DIRECTION)]
        return slope, largest

    def _choose_length(self, point: EvaluatedPoint, slope: float) -> float:
        length, slope_before = self._before
        self._before = 0.0, slope
        # "α_0 = α_k-1 ∇f_k-1ᵀ p_k-1 / ∇f_kᵀ p_k": the first-order change is that of the step before (equation 3.60)
        return length * slope_before / slope if length and slope else super()._choose_length(point, slope)

    def _update_history(self, point: EvaluatedPoint, step: AcceptedStep, number: int) -> EvaluationSteps:
        self._before = step.length, self._before[1]
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
        return -largest * largest, largest  # below 0 even where the step goes uphill, which momentum may

    def _start_search(self, start: LinePoint, length: float, largest: float, max_evaluations: int) -> LineSearch:
        return _accept_at_once(length)

    def _choose_length(self, point: EvaluatedPoint, slope: float) -> float:
        return self._options.initial_step


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
