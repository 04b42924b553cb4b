"""OWL-QN: L-BFGS for a loss with a penalty l1 |x|, whose minimisers have elements that are exactly zero.

Andrew and Gao, "Scalable Training of L1-Regularized Log-Linear Models", ICML 2007, algorithm 1. A step stays in one
orthant, where the penalty is smooth; the line search halves its step until the loss falls enough.
"""

from .lbfgs import DIRECTION, EvaluatedPoint, Lbfgs
from .line_search import LinePoint, LineSearch, TrialStep
from .solver import TRIAL
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
BACKTRACKING = 0.5  # factor of a step that was too long


class OwlQn(Lbfgs):
    """One run of OWL-QN. The history is that of the smooth part of the loss."""

    factor = 1.0  # the base vector is minus the pseudo-gradient

    def _measure_descent(self, at: str, gradient: str) -> list[AnyOperation]:
        # "compute v^k = -⋄f(x^k)"
        return [SteepestDescent(STEEPEST, at, gradient, self._objective.l1), MaxNorm(STEEPEST), L1Norm(STEEPEST)]

    def _base(self, point: EvaluatedPoint) -> str:
        # "compute d^k ← H_k v^k using S and Y"
        return STEEPEST

    def _constrain_direction(self, operations: list[AnyOperation]) -> list[AnyOperation]:
        # "p^k ← π(d^k; v^k)"
        return [*operations, ProjectOntoOrthant(DIRECTION, STEEPEST), ChooseOrthant(ORTHANT, ITERATE, STEEPEST)]

    def _start_search(self, start: LinePoint, length: float, largest: float, max_evaluations: int) -> LineSearch:
        return backtracking(start, length, c1=self._options.c1, max_evaluations=max_evaluations)

    def _make_trial(self, length: float) -> list[AnyOperation]:
        # "x^k+1 = π(x^k + α p^k; ξ^k)"
        return [Combine(TRIAL, [(1.0, ITERATE), (length, DIRECTION)]), ProjectOntoOrthant(TRIAL, ORTHANT)]

    def _measure_slope(self, gradient: str) -> list[AnyOperation]:
        """Return the operations for -v · (x^k+1 - x^k): along a path that bends at orthants there is no slope."""
        return [Combine(MOVE_BACK, [(-1.0, TRIAL), (1.0, ITERATE)]), Dot(STEEPEST, MOVE_BACK)]

    def _take_step(self, name: str, length: float) -> list[AnyOperation]:
        # "s^k = x^k+1 - x^k"
        return [*self._make_trial(length), Combine(name, [(1.0, TRIAL), (-1.0, ITERATE)]), Copy(ITERATE, TRIAL)]


def backtracking(start: LinePoint, step: float, *, c1: float, max_evaluations: int) -> LineSearch:
    """Halve the step until the loss falls by c1 times what the pseudo-gradient predicts for the way to the trial.

    The slope that the search is sent is that prediction, which is negative. Returns `start` if no step is good enough.
    """
    for number in range(1, max_evaluations + 1):
        # "f(π(x^k + α p^k; ξ^k)) ≤ f(x^k) - γ v^k · (π(x^k + α p^k; ξ^k) - x^k)", for α = α0, α0 β, α0 β², ...
        loss, prediction = yield TrialStep(step, frozenset())
        if loss <= start.loss + c1 * prediction:
            return LinePoint(step, loss, prediction, number)
        step *= BACKTRACKING
    return start
