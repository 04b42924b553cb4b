"""The search finds a step that meets the strong Wolfe conditions, and takes torch's steps on its way there."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.optim.lbfgs import _strong_wolfe

from cutset.ps.sandblaster.line_search import LinePoint, strong_wolfe

C1, C2 = 1e-4, 0.9
LENGTH = 0.5  # of the direction; a power of two, so that no slope is rounded


@dataclass(frozen=True)
class Waves:
    """square t^2 / 2 + line t + the sum of height sin(width t + at): smooth, bounded below, with many dips.

    wall: from there on it is `beyond`.
    """

    square: float
    line: float
    waves: tuple[tuple[float, float, float], ...]
    wall: float = math.inf
    beyond: float = math.inf

    def __call__(self, t):
        """Loss and slope."""
        if t >= self.wall:
            return self.beyond, math.nan
        loss = self.square * t * t / 2 + self.line * t
        slope = self.square * t + self.line
        for height, width, at in self.waves:
            loss += height * math.sin(width * t + at)
            slope += height * width * math.cos(width * t + at)
        return loss, slope

    @property
    def start(self):
        return LinePoint(0.0, *self(0.0), 0)


def floats(low, high):
    return st.floats(low, high, allow_nan=False)


WAVE = st.tuples(floats(-3, 3), floats(0.1, 8), floats(0, 6))


def functions(least):
    """least: second derivative of the parabola."""
    made = st.builds(Waves, floats(least, 50), floats(-20, 0), st.lists(WAVE, max_size=4).map(tuple))
    return made.filter(lambda function: function.start.slope < -1e-3)


FUNCTIONS = functions(1e-3)
STEPS = st.sampled_from([1.0, 1e-3, 0.1, 5.0, 1e3]) | floats(1e-4, 50)
CURVED = functions(0.1)  # and so far that the loss bends by more than its rounding
FAR = st.sampled_from([1.0, 0.1, 5.0, 1e3]) | floats(0.05, 50)


class RecordedSearch:
    """Drives a search and keeps gradients as it says."""

    def __init__(self, function, step, *, c1=C1, c2=C2, least=1e-9, most=26, length=LENGTH, start=None):
        self.trials, self.losses = [], []
        self.alive = {0}
        search = strong_wolfe(
            start or function.start, step, length, c1=c1, c2=c2, min_change=least, max_evaluations=most
        )
        trial = next(search)
        while True:
            assert trial.kept <= self.alive
            loss, slope = function(trial.step)
            self.trials.append(trial.step)
            self.losses.append(loss)
            self.alive = set(trial.kept) | {len(self.trials)}
            try:
                trial = search.send((loss, slope))
            except StopIteration as stop:
                self.point: LinePoint = stop.value
                return


def meets(function, point, c1=C1, c2=C2):
    """The strong Wolfe conditions, equation 3.7 of Nocedal and Wright."""
    start = function.start
    enough = point.loss <= start.loss + c1 * point.step * start.slope
    return point.step > 0 and enough and abs(point.slope) <= c2 * abs(start.slope)


@pytest.mark.parametrize(("c1", "c2"), [(1e-4, 0.9), (1e-4, 0.1), (1e-6, 1e-3)])
@given(FUNCTIONS, STEPS)
def test_a_step_that_is_found_meets_the_strong_wolfe_conditions(c1, c2, function, step):
    made = RecordedSearch(function, step, c1=c1, c2=c2, least=0.0, most=200)
    assert len(made.trials) < 200
    assert meets(function, made.point, c1, c2)


@given(FUNCTIONS, STEPS, st.integers(1, 26))
def test_what_is_found_was_evaluated_and_its_gradient_kept(function, step, most):
    made = RecordedSearch(function, step, most=most)
    assert len(made.trials) <= most
    point = made.point
    assert (point.loss, point.slope) == function(point.step)
    assert point.step == ([0.0, *made.trials])[point.number]
    assert point.number in made.alive


@given(FUNCTIONS, STEPS, st.integers(1, 8))
def test_after_its_last_evaluation_it_ends_at_no_worse_place_than_it_began(function, step, most):
    made = RecordedSearch(function, step, most=most)
    assert made.point.loss <= min(made.losses[-1], function.start.loss)


def test_the_first_step_is_enough_where_it_is_good():
    made = RecordedSearch(Waves(1.0, -1.0, ()), 1.0)
    assert made.trials == [1.0]
    assert made.point == LinePoint(1.0, -0.5, 0.0, 1)


def test_on_a_parabola_the_second_step_is_the_best():
    """The cubic through two points with their slopes is the parabola itself."""
    function = Waves(2.0, -3.0, ())
    for step in (4.0, 0.3):
        assert RecordedSearch(function, step, c2=0.1).trials == [step, pytest.approx(1.5)]
    assert RecordedSearch(function, 0.01, c2=0.1).trials == pytest.approx([0.01, 0.1, 1.0, 1.5])


def test_it_goes_at_most_ten_times_as_far():
    made = RecordedSearch(Waves(1e-6, -1.0, ()), 1.0, most=4)
    assert made.trials == pytest.approx([1.0, 10.0, 100.0, 1000.0])
    assert made.point.step == made.trials[-1]


def torch_steps(function, step, *, c1, c2, least, max_ls):
    """What torch.optim.LBFGS does: all places it evaluates, where it ends, and the loss there."""
    trials = []
    direction, start = torch.tensor([LENGTH], dtype=torch.float64), function.start
    gradient = torch.tensor([start.slope / LENGTH], dtype=torch.float64)

    def evaluate(x, t, d):
        trials.append(float(t))
        loss, slope = function(float(t))
        return loss, torch.tensor([slope / LENGTH], dtype=torch.float64)

    loss, _, t, evaluations = _strong_wolfe(
        evaluate, None, step, direction, start.loss, gradient, gradient.dot(direction), c1, c2, least, max_ls
    )
    assert len(trials) == evaluations
    return trials, float(t), loss


@pytest.mark.parametrize(("c1", "c2", "least"), [(1e-4, 0.9, 1e-9), (1e-4, 0.01, 1e-9), (0.2, 0.3, 1e-3)])
@given(CURVED, FAR)
def test_it_takes_the_steps_of_torch(c1, c2, least, function, step):
    """But for rounding: torch's is that of tensors for some numbers and not for others."""
    made = RecordedSearch(function, step, c1=c1, c2=c2, least=least, most=26)
    trials, end, loss = torch_steps(function, step, c1=c1, c2=c2, least=least, max_ls=25)
    assert made.trials == pytest.approx(trials, rel=1e-8)
    assert made.point.step == pytest.approx(end, rel=1e-8)
    assert made.point.loss == pytest.approx(loss, rel=1e-8, abs=1e-12)


@given(CURVED, FAR, st.integers(0, 6))
def test_cut_short_it_has_taken_the_steps_of_torch_and_ends_no_higher(function, step, max_ls):
    made = RecordedSearch(function, step, c2=0.01, most=max_ls + 1)
    trials, _, loss = torch_steps(function, step, c1=C1, c2=0.01, least=1e-9, max_ls=max_ls)
    assert made.trials == pytest.approx(trials, rel=1e-8)
    assert made.point.loss <= loss + 1e-12 * abs(loss)


def test_cut_short_while_it_still_goes_further_it_keeps_the_best():
    function = Waves(1.0, -20.0, ())
    made = RecordedSearch(function, 5.0, c2=0.01, most=2)
    assert made.trials == [5.0, pytest.approx(20.0)]
    assert made.point == LinePoint(20.0, *function(20.0), 2)
    beyond = replace(function, wall=10.0)
    made = RecordedSearch(beyond, 5.0, c2=0.01, most=2)
    assert made.point == LinePoint(5.0, *function(5.0), 1)


@pytest.mark.parametrize("beyond", [math.inf, math.nan, -math.inf], ids=str)
@given(FUNCTIONS, STEPS, floats(1e-3, 3))
def test_losses_that_are_not_finite_are_searched_around(beyond, function, step, wall):
    """Where the function ends in a wall, a step in front of that is found, and it lowers the loss."""
    function = replace(function, wall=wall, beyond=beyond)
    made = RecordedSearch(function, step, least=0.0, most=200)
    assert len(made.trials) <= 200
    assert 0 < made.point.step < wall
    assert made.point.loss <= function.start.loss + C1 * made.point.step * function.start.slope
    assert (made.point.loss, made.point.slope) == function(made.point.step)
    assert made.point.number in made.alive


@pytest.mark.parametrize("beyond", [math.inf, math.nan], ids=str)
@given(FUNCTIONS, floats(1.05, 1e3))
def test_where_a_wall_lies_behind_a_good_step_that_is_found(beyond, function, step):
    """The first trial is beyond it; the wall is at twice the first minimum."""
    inside = RecordedSearch(function, 1e-3, c2=0.1, least=0.0, most=200).point
    assume(inside.step < 1e6)
    wall = 2 * inside.step
    function = replace(function, wall=wall, beyond=beyond)
    made = RecordedSearch(function, wall * step, least=0.0, most=200)
    assert meets(function, made.point) or made.point.step > wall / 2


@pytest.mark.parametrize("odd", [math.inf, math.nan], ids=str)
def test_where_there_is_no_finite_loss_it_ends_where_it_began(odd):
    start = LinePoint(0.0, 1.0, -1.0, 0)
    made = RecordedSearch(lambda t: (odd, math.nan), 1.0, start=start, most=26)
    assert made.point == start
    assert made.trials == [0.5**n for n in range(26)]


@pytest.mark.parametrize("most", [1, 2, 3, 7, 25])
def test_no_more_evaluations_than_allowed(most):
    start = LinePoint(0.0, 1.0, -1.0, 0)
    for function in (lambda t: (math.inf, 0.0), lambda t: (1.0 - t, -1.0), lambda t: (2.0 + t, 1.0)):
        made = RecordedSearch(function, 1.0, start=start, most=most, least=0.0)
        assert len(made.trials) == most


def test_a_bracket_that_moves_nothing_is_not_searched():
    """The loss is too high everywhere: each bracket is half that before, or less."""
    start = LinePoint(0.0, 1.0, -1.0, 0)
    for length in (1.0, 1e-6):
        made = RecordedSearch(lambda t: (math.inf, math.nan), 1.0, start=start, least=1e-3, length=length, most=100)
        assert len(made.trials) == (11 if length == 1.0 else 1)
        assert made.point == start


@given(st.integers(-1 << 20, 1 << 20))
def test_only_differences_of_the_loss_count(more):
    function = Waves(1.0, -4.0, ())
    start = replace(function.start, loss=function.start.loss + more)
    shifted = RecordedSearch(lambda t: (function(t)[0] + more, function(t)[1]), 0.5, start=start)
    assert shifted.trials == RecordedSearch(function, 0.5).trials
