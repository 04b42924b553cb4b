import math
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from solver_runs import Loss, run_solver, run_torch_lbfgs
from torch import Tensor

from cutset.errors import Diverged
from cutset.models import digits_softmax
from cutset.ps.methods.sandblaster import Sandblaster
from cutset.ps.sandblaster.lbfgs import Lbfgs
from cutset.ps.sandblaster.solver import (
    AcceptedStep,
    EvaluatedPoint,
    Iteration,
    Objective,
    Portions,
    SolverOptions,
    TorchOptions,
)
from cutset.ps.sandblaster.vector_ops import Evaluate

ONE = Portions(1, 1)
FORMS = ("vector-free", "two-loop")


def rosenbrock(x: Tensor) -> Tensor:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def valley() -> Tensor:
    """Where the search for the least of `rosenbrock` begins, by custom; of 100 elements."""
    return torch.tensor([-1.2, 1.0] * 50, dtype=torch.float64)


def softmax(weights: Tensor) -> Tensor:
    """Of the digits that the package has, [650]."""
    images, labels = digits()
    return torch.nn.functional.cross_entropy(images @ weights[:640].view(64, 10) + weights[640:], labels)


def held_back(weights: Tensor) -> Tensor:
    """With a penalty, so that there is an end."""
    return softmax(weights) + 0.005 * (weights**2).sum()


def autoencoder(weights: Tensor) -> Tensor:
    """64-8-64 on some digits, [1024]."""
    images = digits()[0][:200]
    return ((torch.tanh(images @ weights[:512].view(64, 8)) @ weights[512:].view(8, 64) - images) ** 2).mean()


@lru_cache
def digits() -> tuple[Tensor, Tensor]:
    data = digits_softmax(double=True).data
    assert data is not None
    samples = data("train")
    return samples.inputs[0], samples.targets[0]


def small() -> Tensor:
    return torch.randn(1024, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.1


# Loss, start and iterations.
PROBLEMS = {
    "rosenbrock": (rosenbrock, valley, 30),
    "softmax": (softmax, lambda: torch.zeros(650, dtype=torch.float64), 30),
    "softmax to the end": (held_back, lambda: torch.zeros(650, dtype=torch.float64), 2000),
    "autoencoder": (autoencoder, small, 20),
}


@pytest.fixture(scope="module", params=sorted(PROBLEMS))
def problem(request: pytest.FixtureRequest):
    loss, start, iterations = PROBLEMS[request.param]
    return (
        loss,
        start(),
        iterations,
        run_torch_lbfgs(loss, start(), iterations),
        spread_of_torch(loss, start(), iterations),
    )


def spread_of_torch(loss: Loss, start: Tensor, iterations: int) -> float:
    """How far apart torch's own paths end if their starts differ by a rounding: other orders of sums do no better."""
    draw = torch.Generator().manual_seed(0)
    nudges = [1e-16 * torch.randn(start.shape, generator=draw, dtype=start.dtype) for _ in range(4)]
    ends = torch.stack([run_torch_lbfgs(loss, start + nudge, iterations)[0] for nudge in nudges])
    return float((ends.amax(0) - ends.amin(0)).max())


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_it_takes_the_steps_of_torch(problem, form: str, shards: int) -> None:
    loss, start, iterations, (values, evaluations, count), spread = problem
    objective = Objective(ONE)
    found = run_solver(
        Lbfgs(objective, TorchOptions(max_iterations=iterations, form=form)).run(), loss, start, shards=shards
    )
    assert (found.values - values).abs().max() <= max(1e-10, 4 * spread)
    assert objective.evaluations == evaluations
    assert len(found.iterations) == count


@pytest.mark.parametrize("loss", [softmax, rosenbrock])
def test_in_one_shard_and_by_the_loop_every_bit_is_that_of_torch(loss) -> None:
    start = valley() if loss is rosenbrock else torch.zeros(650, dtype=torch.float64)
    values, _, _ = run_torch_lbfgs(loss, start, 2000)
    found = run_solver(Lbfgs(Objective(ONE), TorchOptions(max_iterations=2000, form="two-loop")).run(), loss, start)
    assert torch.equal(found.values, values)


def test_the_free_form_takes_few_round_trips_and_the_loop_two_for_each_pair() -> None:
    trips = {}
    for form in FORMS:
        found = run_solver(
            Lbfgs(Objective(ONE), SolverOptions(max_iterations=30, form=form)).run(), rosenbrock, valley()
        )
        trips[form] = found.trips / len(found.iterations)
    assert trips["vector-free"] <= 8
    assert trips["two-loop"] > 20


def test_no_more_vectors_are_kept_than_the_history_needs() -> None:
    found = run_solver(
        Lbfgs(Objective(ONE), SolverOptions(max_iterations=40, history_size=3)).run(), rosenbrock, valley()
    )
    assert len(found.held) <= 2 * 4 + 5


def test_the_gradient_of_a_start_that_is_not_finite_is_refused() -> None:
    with pytest.raises(Diverged, match="the loss at the first point is nan") as caught:
        run_solver(Lbfgs(Objective(ONE), SolverOptions()).run(), lambda x: (x * math.nan).sum(), torch.ones(3))
    assert caught.value.code == "E705"


def test_at_the_least_it_ends_at_once() -> None:
    found = run_solver(Lbfgs(Objective(ONE), SolverOptions()).run(), lambda x: (x**2).sum(), torch.zeros(3))
    assert found.why.startswith("converged at once")
    assert found.iterations == []


@pytest.mark.parametrize("most", range(2, 30))
def test_with_few_evaluations_it_ends_where_torch_does(most: int) -> None:
    objective = Objective(ONE)
    found = run_solver(
        Lbfgs(objective, TorchOptions(max_evaluations=most, form="two-loop")).run(), rosenbrock, valley()
    )
    values, evaluations, _ = run_torch_lbfgs(rosenbrock, valley(), 20, most=most)
    assert torch.equal(found.values, values)
    assert objective.evaluations == evaluations <= most + 1


def test_it_stops_at_its_limits() -> None:
    found = run_solver(Lbfgs(Objective(ONE), SolverOptions(max_iterations=4)).run(), rosenbrock, valley())
    assert (found.why, len(found.iterations)) == ("reached the limit of 4 iterations", 4)


def test_a_direction_that_does_not_lead_down_is_left_for_the_gradient() -> None:
    """What is remembered is spoilt on purpose: the next direction leads up, and the memory is given up."""
    solver = Lbfgs(Objective(ONE), SolverOptions(max_iterations=12))
    found = run_solver(_spoiling(solver.run(), solver), rosenbrock, valley())
    assert len(found.iterations) == 12
    assert found.losses == sorted(found.losses, reverse=True)


def _spoiling(steps, solver: Lbfgs):
    """The same steps; once there are three pairs, their products change sign."""
    item, done = next(steps), False
    while True:
        if len(solver._history.pairs) == 3 and not done:
            done = True
            pairs = [pair._replace(product=-pair.product) for pair in solver._history.pairs]
            solver._history.pairs.clear()
            solver._history.pairs.extend(pairs)
            solver._history.scale = -solver._history.scale
        answers = yield item
        try:
            item = steps.send(answers)
        except StopIteration as stop:
            assert done
            return stop.value


def test_pairs_without_curvature_are_skipped_or_damped() -> None:
    """Along a loss that bends down there is none; either way every step goes down."""

    def bent(x: Tensor) -> Tensor:
        return (torch.cos(x) + 0.01 * x**2).sum()

    start = torch.linspace(0.1, 1.0, 10, dtype=torch.float64)
    for curvature in ("skip", "damp"):
        options = SolverOptions(max_iterations=50, curvature=curvature)
        found = run_solver(Lbfgs(Objective(ONE), options).run(), bent, start)
        assert found.losses == sorted(found.losses, reverse=True)
        assert found.losses[-1] < -9.0


def test_a_penalty_is_that_of_the_function_with_it() -> None:
    start = torch.zeros(650, dtype=torch.float64)
    values, _, _ = run_torch_lbfgs(lambda w: softmax(w) + 0.005 * (w**2).sum(), start, 25)
    found = run_solver(Lbfgs(Objective(ONE, l2=0.01), TorchOptions(max_iterations=25)).run(), softmax, start, shards=2)
    assert (found.values - values).abs().max() <= 1e-10


def test_a_loss_in_float32_ends_near_that_of_torch() -> None:
    start = valley().float()
    values, _, _ = run_torch_lbfgs(rosenbrock, start, 10)
    found = run_solver(Lbfgs(Objective(ONE), replace(TorchOptions(), max_iterations=10)).run(), rosenbrock, start)
    assert found.values.dtype == torch.float32
    assert rosenbrock(found.values) == pytest.approx(float(rosenbrock(values)), rel=0.05)


def test_on_samples_that_change_the_curvature_is_that_of_what_they_share_and_of_the_penalty() -> None:
    """All portions bend alike and lean differently, so every change of the gradient is the Hessian times the step."""
    bends = torch.linspace(1.0, 3.0, 6, dtype=torch.float64)
    leans = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss(x: Tensor, first: int, last: int) -> Tensor:
        return (0.5 * bends * x**2).sum() + (leans[first:last].mean(0) * x).sum()

    portions = Portions(20, 1)
    steps = Sandblaster(iterations=6, fraction=0.5, l2=0.5, tolerance_change=0.0).make_solver(portions)()
    found = run_solver(steps, loss, torch.zeros(6, dtype=torch.float64), shards=2, portions=True)
    pairs = [name.removeprefix("change-") for name in found.held if name.startswith("change-")]
    assert len(pairs) >= 4
    for pair in pairs:
        step, change = found.vectors[f"step-{pair}"], found.vectors[f"change-{pair}"]
        assert torch.allclose(change, (bends + 0.5) * step, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [SolverOptions(), TorchOptions()], ids=["relative", "torch"])
def test_only_torch_takes_a_short_step_for_one_without_curvature(options: SolverOptions) -> None:
    """A step of 1e-6 through a curvature of 1: the cosine is 1, the product 1e-12."""
    assert options.accepts_pair(1.0, 1.0, 1.0)
    assert not options.accepts_pair(-1.0, 1.0, 1.0)
    assert options.accepts_pair(1e-12, 1e-12, 1e-12) == (type(options) is SolverOptions)
    assert not options.accepts_pair(1e-12, 1.0, 1.0)


def test_a_loss_that_is_not_finite_is_not_taken_for_the_optimum() -> None:
    options, point = SolverOptions(), EvaluatedPoint(math.inf, "gradient-1", 1.0, 1.0, 1.0)
    assert options.find_flatness(point) == ""
    assert options.find_standstill(AcceptedStep("step-1", 1.0, 1.0, point), math.inf) == ""
    assert options.find_flat_direction(math.inf, -1.0, 1.0) == ""


def test_where_the_memory_misleads_the_search_the_gradient_is_tried() -> None:
    """The loss has a cliff behind a start from which the remembered direction leads up at once."""
    solver, start = Lbfgs(Objective(ONE), SolverOptions(max_iterations=40)), valley()
    run = _turning_away(solver.run(), solver)
    found = run_solver(run, rosenbrock, start)
    assert len(found.iterations) == 40
    assert found.losses == sorted(found.losses, reverse=True)


def _turning_away(steps, solver: Lbfgs):
    """The same steps; once there are three pairs, one search is told that every loss is infinite."""
    item, turned = next(steps), 0
    while True:
        answers = yield item
        evaluates = not isinstance(item, Iteration) and any(isinstance(one, Evaluate) for one in item)
        turned += evaluates and len(solver._history.pairs) == 3
        if evaluates and turned and solver._history.pairs and turned <= 25:
            answers = [math.inf, *answers[1:]]
        try:
            item = steps.send(answers)
        except StopIteration as stop:
            assert turned > 5
            return stop.value
