"""OWL-QN: L-BFGS where the loss has a penalty l1 |x|, whose solutions have zeros.

Andrew and Gao, "Scalable Training of L1-Regularized Log-Linear Models", 2007. A step stays in one orthant, where the
penalty is smooth; the search goes back from its first step until the loss falls enough.
"""

from .lbfgs import DIRECTION, Lbfgs, Measured
from .line_search import Point, Search, Trial
from .solver import TRIAL
from .vector_ops import AT, Absolute, AnyOperation, Combine, Copy, Dot, Largest, Orthant, Project, Steepest

STEEPEST, ORTHANT, MOVED = "steepest", "orthant", "moved"
BACK = 0.5  # of a step that was too long


class OwlQn(Lbfgs):
    """One run of it. What leads downhill is the pseudo-gradient; the curvature is that of the smooth part."""

    factor = 1.0

    def _downhill(self, at: str, gradient: str) -> list[AnyOperation]:
        return [Steepest(STEEPEST, at, gradient, self._objective.l1), Largest(STEEPEST), Absolute(STEEPEST)]

    def _base(self, here: Measured) -> str:
        return STEEPEST

    def _made(self, asks: list[AnyOperation]) -> list[AnyOperation]:
        return [*asks, Project(DIRECTION, STEEPEST), Orthant(ORTHANT, AT, STEEPEST)]

    def _search(self, start: Point, length: float, largest: float, most: int) -> Search:
        return backtracking(start, length, c1=self._rules.c1, most=most)

    def _tried(self, length: float) -> list[AnyOperation]:
        return [Combine(TRIAL, [(1.0, AT), (length, DIRECTION)]), Project(TRIAL, ORTHANT)]

    def _along(self, gradient: str) -> list[AnyOperation]:
        """What gives minus the loss that a step to TRIAL should cost: along a bent way there is no slope."""
        return [Combine(MOVED, [(-1.0, TRIAL), (1.0, AT)]), Dot(STEEPEST, MOVED)]

    def _goes(self, name: str, length: float) -> list[AnyOperation]:
        return [*self._tried(length), Combine(name, [(1.0, TRIAL), (-1.0, AT)]), Copy(AT, TRIAL)]


def backtracking(start: Point, step: float, *, c1: float, most: int) -> Search:
    """Half the step until the loss falls by c1 of what the pseudo-gradient promises for the way to the trial.

    What it is sent as a slope is that promise, below 0. most: evaluations; none of them good, it ends where it began.
    """
    for number in range(1, most + 1):
        loss, promised = yield Trial(step, frozenset())
        if loss <= start.loss + c1 * promised:
            return Point(step, loss, promised, number)
        step *= BACK
    return start
