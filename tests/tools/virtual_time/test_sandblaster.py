"""A batch method in virtual time: its numbers, and how long they take."""

from functools import lru_cache

import pytest
import torch
from small_simulations import make_model, make_samples

from cutset.ps.methods.sandblaster import Sandblaster
from cutset.tools.virtual_time.machines import SimulatedMachines, StepDurations
from cutset.tools.virtual_time.sandblaster import (
    BatchWork,
    IterationScore,
    run_sandblaster,
    time_evaluation,
    time_iterations,
)

WORK = BatchWork(samples=1024, step_samples=16, parameters=1000)


@lru_cache
def run() -> list[IterationScore]:
    return run_sandblaster(Sandblaster(iterations=8), make_model(), make_samples())


def test_each_iteration_has_a_score_and_the_loss_falls() -> None:
    scores = run()
    assert [score.number for score in scores] == list(range(9))
    losses = [score.train_loss or 0.0 for score in scores]
    assert losses == sorted(losses, reverse=True)
    assert (scores[-1].test_accuracy or 0) > 0.9


def test_the_numbers_are_those_of_torchs_lbfgs() -> None:
    """Up to rounding, for as long as the line searches agree."""
    model, data = make_model(), make_samples()
    values = torch.nn.Parameter(model.initial.clone())

    def evaluate() -> float:
        gradient = torch.zeros_like(values)
        loss = model.add_gradient(values.detach(), gradient, data.train.rows(torch.arange(384)), step=0, seed=0)
        values.grad = gradient
        return loss

    Sandblaster(iterations=3).make_torch_optimizer(values, 100).step(evaluate)  # type: ignore[arg-type]
    loss = model.score(values.detach(), data.train, 384).loss
    assert run()[3].train_loss == pytest.approx(loss, rel=0.05)


def test_more_replicas_take_less_time_until_the_exchange_takes_all_of_it() -> None:
    machines = SimulatedMachines(step_s=1.0, spread=0.3, bandwidth=1e5, shard_bandwidth=1e5)
    ends = [time_iterations(run(), WORK, machines, replicas)[-1].seconds for replicas in (1, 4, 16)]
    assert ends[0] > 3 * ends[1] > 6 * ends[2]
    slow = SimulatedMachines(step_s=1.0, bandwidth=1e5, shard_bandwidth=100.0)
    assert time_iterations(run(), WORK, slow, 16)[-1].seconds > time_iterations(run(), WORK, slow, 4)[-1].seconds


def test_a_straggler_costs_little_as_portions_are_small_and_late_ones_are_done_twice() -> None:
    def time_with(slowdown: float) -> float:
        machines = SimulatedMachines(step_s=1.0, stragglers=1, slowdown=slowdown)
        return time_evaluation(WORK, machines, [StepDurations(machines, replica, 0) for replica in range(8)])

    assert time_with(1.0) == pytest.approx(1024 / 16 / 8, rel=0.01)
    assert time_with(10.0) < 1.25 * time_with(1.0)
