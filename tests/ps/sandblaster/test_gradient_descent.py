"""Gradient descent, momentum and conjugate gradients reach the optimum, and give up no memory on the way."""

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import pytest
import torch
from solver_runs import run_solver
from three_classes import PORTION, SAMPLES, softmax, start
from torch import Tensor

from cutset.errors import Diverged
from cutset.ps.sandblaster.gradient_descent import ConjugateGradients, GradientDescent, Momentum
from cutset.ps.sandblaster.lbfgs import Lbfgs
from cutset.ps.sandblaster.solver import Objective, Portions, SampleSet, SolverOptions

L2 = 0.1
ONE, FOUR = Portions(1, 1), Portions(SAMPLES, PORTION)
OPTIONS: dict[type[Lbfgs], SolverOptions] = {
    GradientDescent: SolverOptions(max_iterations=500, tolerance_grad=1e-8, tolerance_change=0.0),
    ConjugateGradients: SolverOptions(max_iterations=500, c2=0.1, tolerance_grad=1e-8, tolerance_change=0.0),
    Momentum: SolverOptions(max_iterations=1000, initial_step=0.3, tolerance_grad=1e-8, tolerance_change=0.0),
}
KINDS = pytest.mark.parametrize("kind", list(OPTIONS), ids=lambda kind: kind.__name__)


def held_back(weights: Tensor) -> Tensor:
    return softmax(weights) + L2 / 2 * weights.square().sum()


@lru_cache
def optimum() -> Tensor:
    """By Newton's method."""
    at = start()
    for _ in range(20):
        hessian = torch.autograd.functional.hessian(held_back, at)
        gradient = torch.autograd.functional.jacobian(held_back, at)
        at = at - torch.linalg.solve(hessian, gradient)
    assert gradient.abs().max() < 1e-14
    return at


@pytest.mark.first_cases(1)
@KINDS
@pytest.mark.parametrize("shards", [1, 3])
def test_it_reaches_the_optimum(kind: type[Lbfgs], shards: int) -> None:
    objective = Objective(ONE, l2=L2)
    found = run_solver(kind(objective, OPTIONS[kind]).run(), softmax, start(), shards=shards)
    assert found.why.startswith("converged: ")
    assert float((found.values - optimum()).abs().max()) <= 1e-6
    assert found.losses[-1] == pytest.approx(float(held_back(optimum())), abs=1e-12)
    assert found.iterations[-1].evaluations == objective.evaluations


@KINDS
def test_it_is_the_same_run_over_any_number_of_shards(kind: type[Lbfgs]) -> None:
    one, three = (
        run_solver(kind(Objective(ONE, l2=L2), OPTIONS[kind]).run(), softmax, start(), shards=n) for n in (1, 3)
    )
    assert three.losses[:5] == pytest.approx(one.losses[:5], rel=1e-12)  # sums are rounded otherwise; that grows
    assert float((one.values - three.values).abs().max()) <= 1e-6


@pytest.mark.parametrize("kind", [GradientDescent, ConjugateGradients], ids=lambda kind: kind.__name__)
def test_with_a_search_no_step_leads_up(kind: type[Lbfgs]) -> None:
    found = run_solver(kind(Objective(ONE, l2=L2), OPTIONS[kind]).run(), softmax, start())
    assert all(after <= before for before, after in pairwise(found.losses))


def test_the_first_step_of_gradient_descent_is_along_the_gradient() -> None:
    (gradient,) = torch.autograd.functional.jacobian(held_back, (start(),))
    found = run_solver(GradientDescent(Objective(ONE, l2=L2), SolverOptions(max_iterations=1)).run(), softmax, start())
    assert torch.allclose(found.values, -found.iterations[0].step * gradient, rtol=1e-14, atol=0)


def test_momentum_is_that_of_torch() -> None:
    """torch.optim.SGD with momentum and without dampening: the same velocity."""
    point = start().requires_grad_()
    optimiser = torch.optim.SGD([point], lr=0.3, momentum=0.9)
    losses = []
    for _ in range(25):
        optimiser.zero_grad()
        held_back(point).backward()
        optimiser.step()
        losses.append(held_back(point).item())
    options = replace(OPTIONS[Momentum], max_iterations=25)
    found = run_solver(Momentum(Objective(ONE, l2=L2), options).run(), softmax, start(), shards=2)
    assert float((found.values - point.detach()).abs().max()) <= 1e-12
    assert found.losses == pytest.approx(losses, rel=1e-12)
    assert [one.step for one in found.iterations] == [0.3] * 25
    assert found.iterations[-1].evaluations == 26
    assert max(b - a for a, b in pairwise(losses)) > 1e-3  # it went uphill, and on


def test_conjugate_gradients_end_a_parabola_in_as_many_steps_as_it_has_directions() -> None:
    """Five different curvatures, and searches that are nearly exact; descent along the gradient alone takes longer."""
    curvatures = torch.tensor([1.0, 3.0, 10.0, 30.0, 100.0] * 4, dtype=torch.float64)
    begin = torch.randn(20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    options = SolverOptions(max_iterations=300, c2=1e-9, c1=1e-10, tolerance_grad=1e-7, tolerance_change=0.0)

    def parabola(x: Tensor) -> Tensor:
        return 1 + (curvatures * x.square()).sum() / 2

    found = run_solver(ConjugateGradients(Objective(ONE), options).run(), parabola, begin)
    assert float(found.values.abs().max()) <= 1e-6
    assert len(found.iterations) <= 7
    found = run_solver(GradientDescent(Objective(ONE), options).run(), parabola, begin)
    assert len(found.iterations) == 300
    assert float(found.values.abs().max()) > 1e-4


@KINDS
def test_vectors_that_are_not_needed_are_dropped(kind: type[Lbfgs]) -> None:
    for iterations in (3, 12):
        options = replace(OPTIONS[kind], max_iterations=iterations, tolerance_grad=0.0)
        found = run_solver(kind(Objective(ONE, l2=L2), options).run(), softmax, start())
        assert len(found.held) <= 8


def windows(iteration: int) -> SampleSet:
    """Half of the samples: the first portion of each is the last of the one before."""
    first = (iteration - 1) % 3
    return SampleSet(((first, first + 1), (first + 1, first + 2)))


@KINDS
def test_samples_may_change(kind: type[Lbfgs]) -> None:
    """The loss falls, though each iteration looks at others; what belonged to those before is dropped."""
    options = replace(OPTIONS[kind], max_iterations=12)
    objective = Objective(FOUR, l2=L2)
    found = run_solver(kind(objective, options, windows).run(), softmax, start(), shards=2, portions=True)
    assert len(found.iterations) == 12
    assert float(held_back(found.values)) < float(held_back(start())) - 0.15
    assert len(found.held) <= 14
    assert not any(name.startswith("step") and name != "step-12" for name in found.held)


@KINDS
def test_the_loss_of_a_sample_is_the_mean_of_its_portions(kind: type[Lbfgs]) -> None:
    options = replace(OPTIONS[kind], max_iterations=1)
    found = run_solver(kind(Objective(FOUR, l2=L2), options, windows).run(), softmax, start(), portions=True)
    expected = softmax(found.values, 0, 2) + L2 / 2 * found.values.square().sum()
    assert found.losses == [pytest.approx(float(expected), rel=1e-14)]


@KINDS
def test_it_stops_at_its_limits(kind: type[Lbfgs]) -> None:
    for options in (
        SolverOptions(max_iterations=2, initial_step=0.1),
        SolverOptions(max_evaluations=6, initial_step=0.1),
    ):
        objective = Objective(ONE, l2=L2)
        found = run_solver(kind(objective, options).run(), softmax, start())
        assert ("iterations" if options.max_iterations == 2 else "evaluations") in found.why
        assert (objective.evaluations in (6, 7)) if options.max_evaluations else (len(found.iterations) == 2)


@pytest.mark.parametrize("kind", [Lbfgs, *OPTIONS], ids=lambda kind: kind.__name__)
def test_samples_whose_gradient_is_zero_end_the_run(kind: type[Lbfgs]) -> None:
    """The next iteration looks at samples on which the loss is flat: there is no direction, and no length."""

    def flat_from_the_second_portion(x: Tensor, first: int, last: int) -> Tensor:
        return 1 + (x.square().sum() if first == 0 else 0 * x.sum())

    schedule = lambda iteration: SampleSet(((iteration - 1, iteration),))  # noqa: E731
    objective, options = Objective(Portions(4, 1)), SolverOptions(initial_step=0.01 if kind is Momentum else 1.0)
    start = torch.ones(3, dtype=torch.float64)
    found = run_solver(kind(objective, options, schedule).run(), flat_from_the_second_portion, start, portions=True)
    assert found.why.startswith("converged") or kind is Momentum


def test_a_run_that_diverges_says_so() -> None:
    options = SolverOptions(max_iterations=30, initial_step=5.0)
    start = torch.ones(3, dtype=torch.float64)
    with pytest.raises(Diverged, match="ceased to be finite") as caught:
        run_solver(Momentum(Objective(Portions(1, 1)), options).run(), lambda x: (x**4).sum(), start)
    assert caught.value.code == "E706"
