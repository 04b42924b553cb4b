"""Gradient descent, momentum and conjugate gradients reach the optimum, and give up no memory on the way."""

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import pytest
import torch
from minimised import minimised
from three_classes import PORTION, SAMPLES, softmax, start
from torch import Tensor

from cutset.errors import Diverged
from cutset.ps.sandblaster.gradient_descent import ConjugateGradients, GradientDescent, Momentum
from cutset.ps.sandblaster.lbfgs import Lbfgs, Rules
from cutset.ps.sandblaster.solver import Objective, Portions, Sample

L2 = 0.1
ONE, FOUR = Portions(1, 1), Portions(SAMPLES, PORTION)
RULES: dict[type[Lbfgs], Rules] = {
    GradientDescent: Rules(iterations=500, least_gradient=1e-8, least_change=0.0),
    ConjugateGradients: Rules(iterations=500, c2=0.1, least_gradient=1e-8, least_change=0.0),
    Momentum: Rules(iterations=1000, rate=0.3, least_gradient=1e-8, least_change=0.0),
}
KINDS = pytest.mark.parametrize("kind", list(RULES), ids=lambda kind: kind.__name__)


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


@KINDS
@pytest.mark.parametrize("shards", [1, 3])
def test_it_reaches_the_optimum(kind: type[Lbfgs], shards: int) -> None:
    objective = Objective(ONE, l2=L2)
    found = minimised(kind(objective, RULES[kind]).steps(), softmax, start(), shards=shards)
    assert found.why == "converged: no element of the gradient is above 1e-08"
    assert float((found.values - optimum()).abs().max()) <= 1e-6
    assert found.losses[-1] == pytest.approx(float(held_back(optimum())), abs=1e-12)
    assert found.iterations[-1].evaluations == objective.evaluations


@KINDS
def test_it_is_the_same_run_over_any_number_of_shards(kind: type[Lbfgs]) -> None:
    one, three = (
        minimised(kind(Objective(ONE, l2=L2), RULES[kind]).steps(), softmax, start(), shards=n) for n in (1, 3)
    )
    assert three.losses[:5] == pytest.approx(one.losses[:5], rel=1e-12)  # sums are rounded otherwise; that grows
    assert float((one.values - three.values).abs().max()) <= 1e-6


@pytest.mark.parametrize("kind", [GradientDescent, ConjugateGradients], ids=lambda kind: kind.__name__)
def test_with_a_search_no_step_leads_up(kind: type[Lbfgs]) -> None:
    found = minimised(kind(Objective(ONE, l2=L2), RULES[kind]).steps(), softmax, start())
    assert all(after <= before for before, after in pairwise(found.losses))


def test_the_first_step_of_gradient_descent_is_along_the_gradient() -> None:
    (gradient,) = torch.autograd.functional.jacobian(held_back, (start(),))
    found = minimised(GradientDescent(Objective(ONE, l2=L2), Rules(iterations=1)).steps(), softmax, start())
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
    rules = replace(RULES[Momentum], iterations=25)
    found = minimised(Momentum(Objective(ONE, l2=L2), rules).steps(), softmax, start(), shards=2)
    assert float((found.values - point.detach()).abs().max()) <= 1e-12
    assert found.losses == pytest.approx(losses, rel=1e-12)
    assert [one.step for one in found.iterations] == [0.3] * 25
    assert found.iterations[-1].evaluations == 26
    assert max(b - a for a, b in pairwise(losses)) > 1e-3  # it went uphill, and on


def test_conjugate_gradients_end_a_parabola_in_as_many_steps_as_it_has_directions() -> None:
    """Five different curvatures, and searches that are nearly exact; descent along the gradient alone takes longer."""
    curvatures = torch.tensor([1.0, 3.0, 10.0, 30.0, 100.0] * 4, dtype=torch.float64)
    begin = torch.randn(20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rules = Rules(iterations=300, c2=1e-9, c1=1e-10, least_gradient=1e-7, least_change=0.0)

    def parabola(x: Tensor) -> Tensor:
        return (curvatures * x.square()).sum() / 2

    found = minimised(ConjugateGradients(Objective(ONE), rules).steps(), parabola, begin)
    assert float(found.values.abs().max()) <= 1e-6
    assert len(found.iterations) <= 7
    found = minimised(GradientDescent(Objective(ONE), rules).steps(), parabola, begin)
    assert len(found.iterations) == 300
    assert float(found.values.abs().max()) > 1e-4


@KINDS
def test_vectors_that_are_not_needed_are_dropped(kind: type[Lbfgs]) -> None:
    for iterations in (3, 12):
        rules = replace(RULES[kind], iterations=iterations, least_gradient=0.0)
        found = minimised(kind(Objective(ONE, l2=L2), rules).steps(), softmax, start())
        assert len(found.held) <= 8


def windows(iteration: int) -> Sample:
    """Half of the samples: the first portion of each is the last of the one before."""
    first = (iteration - 1) % 3
    return Sample(((first, first + 1), (first + 1, first + 2)))


@KINDS
def test_samples_may_change(kind: type[Lbfgs]) -> None:
    """The loss falls, though each iteration looks at others; what belonged to those before is dropped."""
    rules = replace(RULES[kind], iterations=12)
    objective = Objective(FOUR, l2=L2)
    found = minimised(kind(objective, rules, windows).steps(), softmax, start(), shards=2, portions=True)
    assert len(found.iterations) == 12
    assert float(held_back(found.values)) < float(held_back(start())) - 0.15
    assert len(found.held) <= 14
    assert not any(name.startswith("step") and name != "step-12" for name in found.held)


@KINDS
def test_the_loss_of_a_sample_is_the_mean_of_its_portions(kind: type[Lbfgs]) -> None:
    rules = replace(RULES[kind], iterations=1)
    found = minimised(kind(Objective(FOUR, l2=L2), rules, windows).steps(), softmax, start(), portions=True)
    expected = softmax(found.values, 0, 2) + L2 / 2 * found.values.square().sum()
    assert found.losses == [pytest.approx(float(expected), rel=1e-14)]


@KINDS
def test_it_ends_where_it_is_told_to(kind: type[Lbfgs]) -> None:
    for rules in (Rules(iterations=2, rate=0.1), Rules(evaluations=6, rate=0.1)):
        objective = Objective(ONE, l2=L2)
        found = minimised(kind(objective, rules).steps(), softmax, start())
        assert ("iterations" if rules.iterations == 2 else "evaluations") in found.why
        assert (objective.evaluations in (6, 7)) if rules.evaluations else (len(found.iterations) == 2)


def test_a_run_that_diverges_says_so() -> None:
    rules = Rules(iterations=30, rate=5.0)
    start = torch.ones(3, dtype=torch.float64)
    with pytest.raises(Diverged, match="ceased to be finite") as caught:
        minimised(Momentum(Objective(Portions(1, 1)), rules).steps(), lambda x: (x**4).sum(), start)
    assert caught.value.code == "E706"
