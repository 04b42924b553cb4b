"""How far to go along a direction: searches that ask for one point after the other and never see a vector.

A search is a generator. It yields the next `Trial`, is sent the loss and the slope there, and returns the `Point` where
it ends.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass

APART = 0.1  # of a bracket: how near to its ends a trial may be
FURTHER = 10.0  # times the last step, at most


@dataclass(frozen=True)
class Point:
    """A place on the line. number: of its evaluation, from 1; 0 is where the search begins."""

    step: float
    loss: float
    slope: float
    number: int


@dataclass(frozen=True)
class Trial:
    """The next place to evaluate. kept: numbers of evaluations whose gradients may still be wanted."""

    step: float
    kept: frozenset[int]


Search = Generator[Trial, tuple[float, float], Point]


def strong_wolfe(start: Point, step: float, length: float, *, c1: float, c2: float, least: float, most: int) -> Search:
    """A step whose loss and slope meet the strong Wolfe conditions, by cubic interpolation.

    Nocedal and Wright, "Numerical Optimization", 2006, algorithms 3.5 and 3.6; it takes the same steps as that of
    torch.optim.LBFGS. length: the largest absolute element of the direction; brackets that move nothing by more than
    `least` are not searched. most: evaluations, one more than `max_ls` there. A loss that is not finite counts as too
    high. Where no step is found, the best place that it came to.
    """
    bracket: list[Point]
    before, count = start, 1
    now = yield from _at(step, count, {0})
    done = False
    while count < most:
        high = now.loss > start.loss + c1 * now.step * start.slope or (count > 2 and now.loss >= before.loss)
        if high or not math.isfinite(now.loss):
            bracket = [before, now]
            break
        if abs(now.slope) <= -c2 * start.slope:
            bracket, done = [now], True
            break
        if now.slope >= 0:
            bracket = [before, now]
            break
        low = now.step + 0.01 * (now.step - before.step)
        step = _cubic(before, now, low, now.step * FURTHER)
        count += 1
        before, now = now, (yield from _at(step, count, {0, before.number, now.number}))
    else:
        bracket = [before, now]
    stuck = False  # whether the last trial was too near to an end
    low_end = _lower(bracket)
    while not done and count < most:
        left, right = sorted(point.step for point in bracket)
        if (right - left) * length < least:
            break
        step = _cubic(bracket[0], bracket[1], left, right)
        near = APART * (right - left)
        if min(right - step, step - left) < near:
            if stuck or step >= right or step <= left:
                step = right - near if abs(step - right) < abs(step - left) else left + near
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        count += 1
        now = yield from _at(step, count, {0, *(point.number for point in bracket)})
        other = 1 - low_end
        too_high = now.loss > start.loss + c1 * now.step * start.slope or now.loss >= bracket[low_end].loss
        if too_high or not math.isfinite(now.loss):
            bracket[other] = now
            low_end = _lower(bracket)
            continue
        if abs(now.slope) <= -c2 * start.slope:
            done = True
        elif now.slope * (bracket[other].step - bracket[low_end].step) >= 0:
            bracket[other] = bracket[low_end]
        bracket[low_end] = now
    return bracket[low_end]


def _at(step: float, number: int, kept: set[int]) -> Generator[Trial, tuple[float, float], Point]:
    loss, slope = yield Trial(step, frozenset(kept))
    return Point(step, loss, slope, number)


def _lower(bracket: list[Point]) -> int:
    first, last = bracket[0].loss, bracket[-1].loss
    return 0 if first <= last or not math.isfinite(last) else 1


def _cubic(a: Point, b: Point, low: float, high: float) -> float:
    """The least of the cubic through two points with these slopes, within bounds; their middle where there is none."""
    middle = (low + high) / 2
    if a.step == b.step or not all(map(math.isfinite, (a.loss, a.slope, b.loss, b.slope))):
        return middle
    # By the inverse, as torch divides by a tensor: where a loss is badly conditioned, the last bit grows.
    rise = a.slope + b.slope - 3 * (a.loss - b.loss) * (1.0 / (a.step - b.step))
    square = rise**2 - a.slope * b.slope
    if square < 0:
        return middle
    root = math.sqrt(square)
    near, far = (a, b) if a.step <= b.step else (b, a)
    below = far.slope - near.slope + 2 * root
    if below == 0:
        return middle
    found = far.step - (far.step - near.step) * ((far.slope + root - rise) / below)
    return min(max(found, low), high)
