"""OWL-QN ends where proximal gradient descent does: at the same loss, with the same zeros."""

import math
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from solver_runs import run_solver
from three_classes import CLASSES, INPUTS, SAMPLES, data, softmax, start
from torch import Tensor

from cutset.ps.sandblaster.line_search import LinePoint
from cutset.ps.sandblaster.owl_qn import OwlQn, backtracking
from cutset.ps.sandblaster.solver import Objective, Portions, SolverOptions

ONE = Portions(1, 1)
TIGHT = SolverOptions(max_iterations=500, tolerance_grad=1e-9, tolerance_change=1e-15)
L1 = [0.003, 0.02, 0.1]


def whole(weights: Tensor, l1: float, l2: float) -> float:
    """What is minimised."""
    return float(softmax(weights) + l1 * weights.abs().sum() + l2 / 2 * weights.square().sum())


@lru_cache
def proximal(l1: float, l2: float) -> Tensor:
    """Gradient steps on the smooth part, each followed by the shrinking that minimises the penalty (with momentum)."""
    inputs, _ = data()
    rate = 1 / (float(torch.linalg.matrix_norm(inputs, 2)) ** 2 / (2 * SAMPLES) + l2)
    at = before = start()
    for step in range(20_000):
        ahead = (at + (step / (step + 3)) * (at - before)).requires_grad_()
        (gradient,) = torch.autograd.grad(softmax(ahead) + l2 / 2 * ahead.square().sum(), ahead)
        moved = ahead.detach() - rate * gradient
        before, at = at, moved.sign() * (moved.abs() - rate * l1).clamp(min=0)
        if (at - before) @ (moved - at) > 0 and step > 50:  # it overshoots: begin the momentum again
            before = at
        if step > 200 and step % 50 == 0 and optimality(at, l1, l2) < 1e-12:
            break
    assert optimality(at, l1, l2) < 1e-8
    return at


def optimality(at: Tensor, l1: float, l2: float) -> float:
    """The largest element of the smallest subgradient."""
    point = at.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(softmax(point) + l2 / 2 * point.square().sum(), point)
    at_zero = (gradient.abs() - l1).clamp(min=0)
    return float(torch.where(at == 0, at_zero, (gradient + l1 * at.sign()).abs()).max())


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("l2", [0.0, 0.01])
@pytest.mark.parametrize("l1", L1)
@pytest.mark.parametrize(("form", "shards"), [("vector-free", 1), ("two-loop", 3)])
def test_it_ends_at_the_optimum(l1: float, l2: float, form: str, shards: int) -> None:
    expected = proximal(l1, l2)
    options = replace(TIGHT, form=form)
    found = run_solver(OwlQn(Objective(ONE, l1, l2), options).run(), softmax, start(), shards=shards)
    assert found.why.startswith(("converged", "stopped"))
    assert optimality(found.values, l1, l2) < 1e-6
    assert abs(found.losses[-1] - whole(expected, l1, l2)) <= 1e-9
    assert abs(whole(found.values, l1, l2) - found.losses[-1]) <= 1e-14
    zeros = found.values == 0
    assert torch.equal(zeros, expected == 0)
    assert 0 < int(zeros.sum()) < INPUTS * CLASSES
    assert len(found.iterations) < 200


def test_no_step_leads_up_and_evaluations_are_counted() -> None:
    objective = Objective(ONE, 0.02)
    found = run_solver(OwlQn(objective, TIGHT).run(), softmax, start())
    assert found.losses == sorted(found.losses, reverse=True)
    assert found.iterations[-1].evaluations == objective.evaluations > len(found.iterations) + 1
    assert [one.number for one in found.iterations] == list(range(1, len(found.iterations) + 1))
    assert found.iterations[-1].gradient == pytest.approx(optimality(found.values, 0.02, 0.0), rel=1e-6)


def test_a_step_that_was_too_long_is_halved_and_the_run_goes_on() -> None:
    """The first is a thousand times too long."""
    found = run_solver(OwlQn(Objective(ONE, 0.02), replace(TIGHT, initial_step=1000.0)).run(), softmax, start())
    assert found.iterations[0].step < 1000 * 0.5**5
    assert found.iterations[0].evaluations > 5
    assert optimality(found.values, 0.02, 0.0) < 1e-6


def test_a_penalty_that_outweighs_everything_ends_at_zero() -> None:
    found = run_solver(OwlQn(Objective(ONE, 10.0), SolverOptions()).run(), softmax, start())
    assert found.why.startswith("converged at once")
    away = torch.full((INPUTS * CLASSES,), 0.5, dtype=torch.float64)
    found = run_solver(OwlQn(Objective(ONE, 10.0), TIGHT).run(), softmax, away)
    assert not found.values.any()
    assert found.losses[-1] == pytest.approx(math.log(CLASSES), rel=1e-15)


def test_no_step_crosses_zero() -> None:
    """Of 25 elements, whose least is on the other side for some: they stop at 0 first."""
    least = torch.linspace(-1, 1, 25, dtype=torch.float64)
    begin = torch.full((25,), 0.1, dtype=torch.float64)
    seen = [begin]

    def loss(x: Tensor) -> Tensor:
        seen.append(x.detach().clone())
        return (x - least).square().sum() / 2

    found = run_solver(OwlQn(Objective(ONE, 0.05), SolverOptions(max_iterations=1)).run(), loss, begin)
    assert all((one >= 0).all() for one in seen)
    found = run_solver(OwlQn(Objective(ONE, 0.05), TIGHT).run(), loss, begin)
    shrunk = least.sign() * (least.abs() - 0.05).clamp(min=0)
    assert float((found.values - shrunk).abs().max()) < 1e-8
    assert torch.equal(found.values == 0, shrunk == 0)


def test_limits() -> None:
    objective = Objective(ONE, 0.003)
    found = run_solver(OwlQn(objective, replace(TIGHT, max_evaluations=5)).run(), softmax, start())
    assert "evaluations" in found.why
    assert objective.evaluations == 5
    found = run_solver(OwlQn(Objective(ONE, 0.003), replace(TIGHT, max_iterations=3)).run(), softmax, start())
    assert "iterations" in found.why
    assert [one.number for one in found.iterations] == [1, 2, 3]


def test_no_more_vectors_are_kept_than_the_history_needs() -> None:
    options = replace(TIGHT, max_iterations=15, history_size=3, tolerance_grad=0.0, initial_step=4.0)
    found = run_solver(OwlQn(Objective(ONE, 0.003), options).run(), softmax, start())
    assert found.iterations[-1].evaluations > 16
    assert len([name for name in found.held if name.startswith(("step", "change"))]) <= 2 * 3 + 2
    assert len([name for name in found.held if name.startswith("gradient")]) <= 2


# The search


class RecordedSearch:
    """Drives a search over a function that gives the loss and what was promised for the way there."""

    def __init__(self, function, step: float, most: int, least: float = 0.0) -> None:
        self.trials: list[float] = []
        start = LinePoint(0.0, 1.0, -1.0, 0)
        search = backtracking(start, step, c1=0.1, min_change=least, max_evaluations=most)
        trial = next(search)
        while True:
            assert trial.kept == frozenset()
            self.trials.append(trial.step)
            try:
                trial = search.send(function(trial.step))
            except StopIteration as stop:
                self.point: LinePoint = stop.value
                return


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 30))
def test_it_shortens_the_step_until_the_loss_falls_enough(first: float, enough: float, most: int) -> None:
    made = RecordedSearch(lambda t: (1 - 0.2 * t if t <= enough else 1 - 0.05 * t, -t), first, most)
    assert made.trials[0] == first
    assert all(0.1 * a <= b * (1 + 1e-15) and b <= 0.5 * a for a, b in pairwise(made.trials))
    assert len(made.trials) <= most
    if made.trials[-1] <= enough:
        step = made.trials[-1]
        assert made.point == LinePoint(step, 1 - 0.2 * step, -step, len(made.trials))
        assert all(one > enough for one in made.trials[:-1])
    else:
        assert (made.point, len(made.trials)) == (LinePoint(0.0, 1.0, -1.0, 0), most)


@given(st.floats(1.9, 5.0))
def test_on_a_parabola_the_second_step_is_the_best(first: float) -> None:
    made = RecordedSearch(lambda t: (1 - t + t * t / 2, -t), first, 25)
    assert made.trials == [first, pytest.approx(min(1.0, first / 2))]


def test_no_step_is_tried_from_which_too_small_a_fall_is_predicted() -> None:
    made = RecordedSearch(lambda t: (2.0, -t), 1.0, 25, least=0.02)
    assert all(step > 0.02 for step in made.trials[:-1])
    assert made.trials[-1] <= 0.02
    assert made.point == LinePoint(0.0, 1.0, -1.0, 0)


@pytest.mark.parametrize("odd", [math.nan, math.inf], ids=str)
def test_losses_that_are_not_finite_are_too_high(odd: float) -> None:
    made = RecordedSearch(lambda t: (odd if t > 0.3 else 0.5, -t), 1.0, 25)
    assert (made.point, len(made.trials)) == (LinePoint(0.25, 0.5, -0.25, 3), 3)
    made = RecordedSearch(lambda t: (odd, -t), 1.0, 4)
    assert (made.point, len(made.trials)) == (LinePoint(0.0, 1.0, -1.0, 0), 4)
