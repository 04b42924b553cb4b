"""Schedules equal those of torch, and hold over restarts since they count the updates of the shards."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from cutset.errors import UsageError
from cutset.ps.optimizers.optimizer import Update
from cutset.ps.optimizers.rates import Scaled, Scheduled
from cutset.ps.optimizers.registry import scale_by_staleness
from cutset.ps.optimizers.schedule import (
    SCHEDULES,
    AnySchedule,
    Cosine,
    Linear,
    OneCycle,
    StepDecay,
    TabulatedSchedule,
    parse_schedule,
)
from cutset.ps.optimizers.standard import SGD, Adam

STEPS = 40

Made = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]
SAME: list[tuple[AnySchedule, Made]] = [
    (Cosine(), lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)),
    (Cosine(final=0.25), lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS, eta_min=0.025)),
    (Linear(final=0.5), lambda o: lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.5, total_iters=STEPS)),
    (StepDecay(0.25, 0.3), lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.3)),
    (TabulatedSchedule.of(lambda step: 0.9**step, STEPS), lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step)),
]


@pytest.mark.parametrize(("schedule", "make"), SAME, ids=lambda one: getattr(one, "name", ""))
def test_the_rate_is_that_of_torch_at_every_step(schedule: AnySchedule, make: Made) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    theirs, ours = make(optimizer), Scheduled(SGD(0.1), schedule)
    for step in range(STEPS):
        rate = ours.rate(Update(step + 1, progress=step / STEPS))
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-12), step
        optimizer.step()
        theirs.step()


def test_one_cycle_is_that_of_torch_which_ends_with_its_last_step() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    theirs = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=4001, cycle_momentum=False)
    for step in range(4000):
        expected = 0.1 * OneCycle().factor(step / 4000)
        assert expected == pytest.approx(optimizer.param_groups[0]["lr"], rel=2e-2, abs=1e-6), step
        optimizer.step()
        theirs.step()


def test_a_warm_up_rises_in_proportion_and_then_the_fall_begins() -> None:
    schedule = parse_schedule("cosine:warmup=0.1,final=0.2")
    assert schedule == Cosine(0.1, 0.2)
    assert [schedule.factor(x) for x in (0.0, 0.05, 0.1, 0.55)] == pytest.approx([0.0, 0.5, 1.0, 0.6])
    assert schedule.factor(1.0) == pytest.approx(0.2)


@given(st.sampled_from([*(kind() for kind in SCHEDULES.values()), TabulatedSchedule((1.0, 0.5, 2.0))]), st.floats(0, 1))
def test_a_factor_is_finite_and_an_optimizer_takes_it(schedule: AnySchedule, progress: float) -> None:
    factor = schedule.factor(progress)
    assert 0 <= factor <= 2
    value = torch.ones(3)
    Scheduled(Adam(0.1), schedule).apply(
        value, torch.ones(3), Adam(0.1).init_state(value), Update(1, progress=progress)
    )
    assert value.isfinite().all()


def test_staleness_and_schedule_multiply() -> None:
    both = scale_by_staleness(Scheduled(SGD(0.4), Linear()))
    assert both == Scheduled(Scaled(SGD(0.4)), Linear())
    assert both.rate(Update(3, tau=2, progress=0.5)) == pytest.approx(0.4 / 2 * 0.5)
    assert both.compensates_delay
    assert not Scheduled(SGD(0.4), Linear()).compensates_delay
    assert scale_by_staleness(both) == both


@pytest.mark.parametrize(
    "text", ["cosine:warmup=1.5", "linear:final=-1", "step:every=0", "step:gamma=2", "one-cycle:start=0.5"]
)
def test_an_option_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"E257: .* of schedule"):
        parse_schedule(text)


def test_what_is_no_schedule_is_refused() -> None:
    with pytest.raises(UsageError, match="E252: no schedule 'cosin'; there are cosine, linear, one-cycle, step"):
        parse_schedule("cosin")
    for steps in (0, -1, 2.5):
        with pytest.raises(UsageError, match="E257"):
            TabulatedSchedule.of(lambda step: 1.0, steps)  # type: ignore[arg-type]
    for factors in ((), (1.0, math.nan), (-1.0,)):
        with pytest.raises(UsageError, match="E257"):
            TabulatedSchedule(factors)
