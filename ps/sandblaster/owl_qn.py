"""OWL-QN: L-BFGS for a loss with a penalty l1 |x|, whose minimisers have elements that are exactly zero.

Andrew and Gao, "Scalable Training of L1-Regularized Log-Linear Models", ICML 2007, algorithm 1. A step stays in one
orthant, where the penalty is smooth; the line search shortens its step until the loss falls enough.

The direction is not theirs. They set to 0 what leads elsewhere than the steepest descent, "p^k ← π(d^k; v^k)", and so
give up what the history knows of elements that depend on each other: a logistic regression may take ten times as many
evaluations. Here the direction is that of the Hessian's block of the free elements, which are not 0 or would leave 0
(as in Byrd, Chin, Nocedal and Oztoprak, "A Family of Second-Order Methods for Convex l1-Regularized Optimization",
Mathematical Programming 159, 2016). It leads down, since the block is positive definite, and what would leave the
orthant stays at 0 on the way.
"""

import math

from .lbfgs import DIRECTION, DirectionChoice, Lbfgs
from .line_search import LinePoint, LineSearch, TrialStep
from .solver import TRIAL, EvaluatedPoint
from .vector_ops import (
    ITERATE,
    AnyOperation,
    ChooseOrthant,
    Combine,
    Copy,
    Dot,
    L1Norm,
    MaxNorm,
    ProjectOntoOrthant,
    SteepestDescent,
)

STEEPEST, ORTHANT, MOVE_BACK = "steepest", "orthant", "move-back"
SHORTEST, BACKTRACKING = 0.1, 0.5  # factors of a step that was too long: at least, and at most


class OwlQn(Lbfgs):
    """One run of OWL-QN. The history is that of the smooth part of the loss."""

    def _measure_descent(self, at: str, gradient: str) -> list[AnyOperation]:
        # "compute v^k = -⋄f(x^k)"
        steepest = SteepestDescent(STEEPEST, at, gradient, self._objective.l1)
        return [steepest, ChooseOrthant(ORTHANT, at, STEEPEST), MaxNorm(STEEPEST), L1Norm(STEEPEST), MaxNorm(at)]

    def _choose_direction(self, point: EvaluatedPoint) -> DirectionChoice:
        # "compute d^k ← H_k v^k using S and Y", over the elements whose orthant is not 0
        operations = yield from self._history.make_direction(DIRECTION, 1.0, STEEPEST, ORTHANT)
        slope, largest = yield [*operations, Dot(STEEPEST, DIRECTION), MaxNorm(DIRECTION)]
        return -slope, largest

    def _start_search(self, start: LinePoint, length: float, largest: float, max_evaluations: int) -> LineSearch:
        _, min_change = self._options.limit_bracket(start.loss, start.slope, largest)
        c1 = self._options.c1
        return backtracking(start, length, c1=c1, min_change=min_change, max_evaluations=max_evaluations)

    def _make_trial(self, length: float) -> list[AnyOperation]:
        # "x^k+1 = π(x^k + α p^k; ξ^k)"
        return [Combine(TRIAL, [(1.0, ITERATE), (length, DIRECTION)]), ProjectOntoOrthant(TRIAL, ORTHANT)]

    def _measure_slope(self, gradient: str) -> list[AnyOperation]:
        """Return the operations for -v · (x^k+1 - x^k): along a path that bends at orthants there is no slope."""
        return [Combine(MOVE_BACK, [(-1.0, TRIAL), (1.0, ITERATE)]), Dot(STEEPEST, MOVE_BACK)]

    def _take_step(self, name: str, length: float) -> list[AnyOperation]:
        # "s^k = x^k+1 - x^k"
        return [*self._make_trial(length), Combine(name, [(1.0, TRIAL), (-1.0, ITERATE)]), Copy(ITERATE, TRIAL)]


def backtracking(start: LinePoint, step: float, *, c1: float, min_change: float, max_evaluations: int) -> LineSearch:
    """Shorten the step until the loss falls by c1 times what the pseudo-gradient predicts for the way to the trial.

    The slope that the search is sent is that prediction, which is negative. Returns `start` if no step is good enough
    for which a fall of more than `min_change` is predicted.
    """
    for number in range(1, max_evaluations + 1):
        # "f(π(x^k + α p^k; ξ^k)) ≤ f(x^k) - γ v^k · (π(x^k + α p^k; ξ^k) - x^k)", first for α = α0
        loss, prediction = yield TrialStep(step, frozenset())
        if loss <= start.loss + c1 * prediction:
            return LinePoint(step, loss, prediction, number)
        if -prediction <= min_change:
            break
        step *= _shorten(start, step, loss)
    return start


def _shorten(start: LinePoint, step: float, loss: float) -> float:
    """Return the factor to the minimiser of the parabola through both losses and the first slope, within limits.

    The paper halves. That takes long where the first step, of which nothing is known, is much too long.
    """
    rise = loss - start.loss - step * start.slope
    if not 0 < rise < math.inf:
        return BACKTRACKING
    return min(max(-step * start.slope / (2 * rise), SHORTEST), BACKTRACKING)
