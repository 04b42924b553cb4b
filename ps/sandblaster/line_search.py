"""The strong Wolfe line search: it requests one point after the other and never sees a vector.

A search is a generator. It yields the next `TrialStep`, is sent the loss and the slope there, and returns the
`LinePoint` where it ends.

Nocedal and Wright, "Numerical Optimization", 2nd edition, 2006, algorithms 3.5 and 3.6. The points are those of
torch.optim.LBFGS, whose search is that of minFunc: cubic interpolation with the same safeguards.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass

MARGIN = 0.1  # fraction of a bracket that a trial step keeps from the ends
MAX_GROWTH = 10.0  # a trial step is at most so many times the last one


@dataclass(frozen=True)
class LinePoint:
    """A point on the line x + step * direction. number: of its evaluation, from 1; 0 is the point of departure."""

    step: float
    loss: float
    slope: float
    number: int


@dataclass(frozen=True)
class TrialStep:
    """The next step to evaluate. kept: numbers of the evaluations whose gradients may still be needed."""

    step: float
    kept: frozenset[int]


LineSearch = Generator[TrialStep, tuple[float, float], LinePoint]


@dataclass(frozen=True)
class _WolfeConditions:
    """The two conditions on a point, φ(α) being the loss after step α (equation 3.7)."""

    start: LinePoint
    c1: float
    c2: float

    def decreases_too_little(self, point: LinePoint) -> bool:
        """Return whether φ(α) > φ(0) + c1 α φ'(0), or the loss is not finite."""
        bound = self.start.loss + self.c1 * point.step * self.start.slope
        return point.loss > bound or not math.isfinite(point.loss)

    def is_flat_enough(self, point: LinePoint) -> bool:
        """Return whether |φ'(α)| ≤ -c2 φ'(0)."""
        return abs(point.slope) <= -self.c2 * self.start.slope


def strong_wolfe(
    start: LinePoint, step: float, rate: float, *, c1: float, c2: float, min_change: float, max_evaluations: int
) -> LineSearch:
    """Search for a step whose loss and slope meet the strong Wolfe conditions.

    rate: what changes at most for each unit of the step, as the loss or a parameter; a bracket in which it changes by
    less than `min_change` is not searched. max_evaluations: one more than `max_ls` of torch. A loss that is not finite
    counts as too high. Returns the best point seen if no step meets the conditions.
    """
    conditions = _WolfeConditions(start, c1, c2)
    bracket, count = yield from _find_bracket(conditions, step, max_evaluations)
    if len(bracket) == 1:
        return bracket[0]
    return (yield from _zoom(conditions, bracket, count, rate, min_change=min_change, max_evaluations=max_evaluations))


def _find_bracket(
    conditions: _WolfeConditions, step: float, max_evaluations: int
) -> Generator[TrialStep, tuple[float, float], tuple[list[LinePoint], int]]:
    """Algorithm 3.5. Return the point α* alone if it was found, else a bracket of two, and the evaluations so far."""
    before, count = conditions.start, 1
    now = yield from _evaluate(step, count, {0})
    while count < max_evaluations:
        # "if φ(α_i) > φ(0) + c1 α_i φ'(0) or [φ(α_i) ≥ φ(α_i-1) and i > 1]: α* ← zoom(α_i-1, α_i) and stop"
        # (with i > 2, as in torch)
        if conditions.decreases_too_little(now) or (count > 2 and now.loss >= before.loss):
            return [before, now], count
        # "if |φ'(α_i)| ≤ -c2 φ'(0): set α* ← α_i and stop"
        if conditions.is_flat_enough(now):
            return [now], count
        # "if φ'(α_i) ≥ 0: set α* ← zoom(α_i, α_i-1) and stop"
        if now.slope >= 0:
            return [before, now], count
        # "choose α_i+1 ∈ (α_i, α_max); i ← i + 1"
        low = now.step + 0.01 * (now.step - before.step)
        step = _interpolate(before, now, low, now.step * MAX_GROWTH)
        count += 1
        before, now = now, (yield from _evaluate(step, count, {0, before.number, now.number}))
    return [before, now], count


def _zoom(
    conditions: _WolfeConditions,
    bracket: list[LinePoint],
    count: int,
    rate: float,
    *,
    min_change: float,
    max_evaluations: int,
) -> LineSearch:
    """Algorithm 3.6: narrow a bracket until a trial step in it meets the conditions."""
    near_end_before = False
    lo = _lower_end(bracket)
    while count < max_evaluations:
        left, right = sorted(point.step for point in bracket)
        if (right - left) * rate < min_change:
            break
        # "interpolate to find a trial step length α_j between α_lo and α_hi"
        step = _interpolate(bracket[0], bracket[1], left, right)
        margin = MARGIN * (right - left)
        near_end = min(right - step, step - left) < margin
        if near_end and (near_end_before or step >= right or step <= left):
            step = right - margin if abs(step - right) < abs(step - left) else left + margin
            near_end = False
        near_end_before = near_end
        count += 1
        trial = yield from _evaluate(step, count, {0, *(point.number for point in bracket)})
        hi = 1 - lo
        # "if φ(α_j) > φ(0) + c1 α_j φ'(0) or φ(α_j) ≥ φ(α_lo): α_hi ← α_j"
        if conditions.decreases_too_little(trial) or trial.loss >= bracket[lo].loss:
            bracket[hi] = trial
            lo = _lower_end(bracket)
            continue
        # "else: if |φ'(α_j)| ≤ -c2 φ'(0): set α* ← α_j and stop"
        if conditions.is_flat_enough(trial):
            return trial
        # "if φ'(α_j)(α_hi - α_lo) ≥ 0: α_hi ← α_lo"
        if trial.slope * (bracket[hi].step - bracket[lo].step) >= 0:
            bracket[hi] = bracket[lo]
        # "α_lo ← α_j"
        bracket[lo] = trial
    return bracket[lo]


def _evaluate(step: float, number: int, kept: set[int]) -> Generator[TrialStep, tuple[float, float], LinePoint]:
    loss, slope = yield TrialStep(step, frozenset(kept))
    return LinePoint(step, loss, slope, number)


def _lower_end(bracket: list[LinePoint]) -> int:
    """Return which end of a bracket has the lower loss."""
    first, last = bracket[0].loss, bracket[-1].loss
    return 0 if first <= last or not math.isfinite(last) else 1


def _interpolate(a: LinePoint, b: LinePoint, low: float, high: float) -> float:
    """Return the minimiser of the cubic through two points with these slopes (equation 3.59), clamped to [low, high].

    Returns the middle of [low, high] if the cubic has no minimum.
    """
    middle = (low + high) / 2
    if a.step == b.step or not all(map(math.isfinite, (a.loss, a.slope, b.loss, b.slope))):
        return middle
    # Multiplied by the inverse, as torch divides by a tensor: where a loss is badly conditioned, the last bit grows.
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) * (1.0 / (a.step - b.step))
    square = d1**2 - a.slope * b.slope
    if square < 0:
        return middle
    d2 = math.sqrt(square)
    near, far = (a, b) if a.step <= b.step else (b, a)
    denominator = far.slope - near.slope + 2 * d2
    if denominator == 0:
        return middle
    step = far.step - (far.step - near.step) * ((far.slope + d2 - d1) / denominator)
    return min(max(step, low), high)
