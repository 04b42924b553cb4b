"""L-BFGS and OWL-QN end at scipy's optimum, in about as many evaluations, however the loss is scaled."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from logistic_losses import (
    NEAR,
    Logistic,
    Losses,
    count_until,
    draw_badly_scaled,
    draw_one_hot,
    draw_sparse,
    run_ours,
    run_published_owl_qn,
    run_scipy,
)
from marking import with_slow
from solver_runs import run_solver

from cutset.ps.sandblaster.gradient_descent import ConjugateGradients, GradientDescent
from cutset.ps.sandblaster.lbfgs import Lbfgs
from cutset.ps.sandblaster.solver import Objective, Portions, SolverOptions, TorchOptions

TO_THE_END = SolverOptions(max_iterations=5000)
MAX_RATIO = 1.3  # of evaluations, ours to scipy's
FIRST_SEARCH = 8  # evaluations of a search that does not know how near the optimum is: a decade each

DRAWS: dict[str, Callable[[], np.ndarray]] = {
    "one-hot": lambda: draw_one_hot(800, 8, 6, seed=0),
    "sparse": lambda: draw_sparse(1200, 100, 10, positive=0.03, seed=1),
    "badly scaled": lambda: draw_badly_scaled(300, 10, decades=1, seed=2),
}
PENALTIES = {"l2": {"l2": 1e-3}, "l1": {"l1": 1e-3}, "small l1": {"l1": 1e-4}, "l1 and l2": {"l1": 1e-3, "l2": 1e-4}}


@lru_cache
def problem(samples: str, penalty: str) -> Logistic:
    return Logistic(DRAWS[samples](), **PENALTIES[penalty])


@lru_cache
def scipy_losses(samples: str, penalty: str) -> Losses:
    return run_scipy(problem(samples, penalty))


@lru_cache
def optimum(samples: str, penalty: str) -> np.ndarray:
    return run_ours(problem(samples, penalty), replace(TO_THE_END, tolerance_change=0.0))[1].values.numpy()


def least(samples: str, penalty: str) -> float:
    return min(*scipy_losses(samples, penalty), problem(samples, penalty).loss(optimum(samples, penalty)))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("penalty", with_slow(["l2", "small l1"], ["l1", "l1 and l2"]))
@pytest.mark.parametrize("samples", with_slow(["one-hot", "badly scaled"], ["sparse"]))
@pytest.mark.parametrize(("form", "shards"), with_slow([("vector-free", 1)], [("two-loop", 3)]))
def test_it_ends_at_the_optimum_in_about_as_many_evaluations_as_scipy(
    samples: str, penalty: str, form: str, shards: int
) -> None:
    losses, found = run_ours(problem(samples, penalty), replace(TO_THE_END, form=form), shards=shards)
    lowest, expected = least(samples, penalty), scipy_losses(samples, penalty)
    assert found.why.startswith("converged")
    assert found.losses[-1] - lowest <= NEAR * lowest
    assert min(expected) - lowest <= NEAR * lowest
    ours, theirs = count_until(losses, lowest), count_until(expected, lowest)
    assert ours is not None
    assert theirs is not None
    assert ours <= MAX_RATIO * theirs
    assert len(losses) <= len(expected)


@pytest.mark.parametrize("scale", with_slow([2.0**-30], [2.0**40]))
@pytest.mark.parametrize("penalty", with_slow(list(PENALTIES)[:2], list(PENALTIES)[2:]))
@pytest.mark.parametrize("samples", with_slow(["one-hot"], ["sparse"]))
def test_a_multiple_of_the_loss_takes_the_same_path(samples: str, penalty: str, scale: float) -> None:
    """By a power of two, which rounds nothing, bit by bit."""
    plain, scaled = (
        run_ours(replace(problem(samples, penalty), scale=factor), TO_THE_END)[1] for factor in (1.0, scale)
    )
    assert torch.equal(scaled.values, plain.values)
    assert scaled.why == plain.why
    assert scaled.losses == [loss * scale for loss in plain.losses]
    assert [one.evaluations for one in scaled.iterations] == [one.evaluations for one in plain.iterations]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_tiny_gradients_are_no_optimum(penalty: str) -> None:
    tiny = replace(problem("one-hot", penalty), scale=1e-8)
    losses, _ = run_ours(tiny, TO_THE_END)
    assert losses[-1] / 1e-8 - least("one-hot", penalty) <= NEAR * least("one-hot", penalty)


@pytest.mark.parametrize("kind", [GradientDescent, ConjugateGradients], ids=lambda kind: kind.__name__)
def test_other_solvers_take_the_same_path_whatever_the_scale(kind: type[Lbfgs]) -> None:
    inputs, options = torch.from_numpy(DRAWS["sparse"]()), SolverOptions(max_iterations=40)
    ends = []
    for scale in (1.0, 2.0**-30):
        objective = Objective(Portions(1, 1), l2=1e-3 * scale)
        start = torch.zeros(inputs.shape[1], dtype=torch.float64)
        loss = lambda x, scale=scale: scale * torch.nn.functional.softplus(-(inputs @ x)).mean()  # noqa: E731
        ends.append((run_solver(kind(objective, options).run(), loss, start).values, objective.evaluations))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1] < 100


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("penalty", with_slow(["l2", "small l1"], ["l1", "l1 and l2"]))
@pytest.mark.parametrize("samples", with_slow(["one-hot", "badly scaled"], ["sparse"]))
@pytest.mark.parametrize("away", with_slow([1e-5], [1e-2, 1e-9]))
def test_a_start_near_the_optimum_needs_few_evaluations(samples: str, penalty: str, away: float) -> None:
    start = optimum(samples, penalty)
    noise = np.random.default_rng(0).normal(size=start.shape)
    start = start * (1 + away * noise)  # zeros stay
    lowest = least(samples, penalty)
    losses, found = run_ours(problem(samples, penalty), TO_THE_END, start=start)
    expected = run_scipy(problem(samples, penalty), start=start)
    ours, theirs = count_until(losses, lowest), count_until(expected, lowest)
    assert ours is not None
    assert theirs is not None
    assert ours <= MAX_RATIO * theirs + FIRST_SEARCH
    assert problem(samples, penalty).loss(found.values.numpy()) - lowest <= NEAR * lowest
    assert len(losses) <= len(expected) + FIRST_SEARCH


@pytest.mark.parametrize("penalty", ["l2", "small l1"])
def test_the_number_of_shards_does_not_change_the_path(penalty: str) -> None:
    options = replace(TO_THE_END, max_iterations=15)
    one, *others = (
        run_ours(problem("one-hot", penalty), replace(options, form=form), shards=shards)[1]
        for form, shards in (("vector-free", 1), ("vector-free", 3), ("two-loop", 1), ("two-loop", 5))
    )
    for other in others:
        assert other.losses == pytest.approx(one.losses, rel=1e-12)
        assert [it.evaluations for it in other.iterations] == [it.evaluations for it in one.iterations]
        assert other.values.numpy() == pytest.approx(one.values.numpy(), rel=1e-8, abs=1e-10)


@pytest.mark.slow
def test_features_that_depend_on_each_other_cost_the_published_owl_qn_many_evaluations_and_ours_few() -> None:
    published = run_published_owl_qn(problem("one-hot", "small l1"), 1000)
    losses, _ = run_ours(problem("one-hot", "small l1"), TO_THE_END)
    lowest = least("one-hot", "small l1")
    assert min(published) >= lowest * (1 - 1e-12)
    theirs, ours = count_until(published, lowest, 1e-6), count_until(losses, lowest, 1e-6)
    assert theirs is not None
    assert ours is not None
    assert 2 * ours < theirs


def test_at_the_optimum_of_an_l1_no_subgradient_is_left() -> None:
    at = optimum("one-hot", "l1")
    _, gradient = problem("one-hot", "l1").smooth(at)
    rest = np.where(at == 0, (np.abs(gradient) - 1e-3).clip(min=0), np.abs(gradient + 1e-3 * np.sign(at)))
    assert rest.max() <= 1e-8
    assert 0 < np.count_nonzero(at) < at.size


def test_the_path_of_torch_depends_on_the_scale_and_stops_early() -> None:
    """Which is why it is not the default."""
    tiny = replace(problem("one-hot", "l2"), scale=1e-8)
    _, found = run_ours(tiny, TorchOptions(max_iterations=5000))
    assert found.why == "converged at once: no element of the gradient is above 1e-07"
    assert run_ours(tiny, TO_THE_END)[1].why.startswith("converged: ")
