"""Measured steps: of real processes."""

import time

import pytest

from cutset.partition.cluster.machines import alike
from cutset.partition.planner.planner import plan
from cutset.tools.bench.planner.measure_step import WARM_UP, Measured, measure_uncut, measured_step_s
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.plan_task import captured

SPEC = TaskSpec("cutset.models:digits")


def test_the_step_of_a_cut_model_is_timed():
    ready = captured(TaskSpec(SPEC.model, batch=10))
    placement = plan(ready.train, alike(2), model=SPEC.model, only="slices", micro_batches=2)
    begin = time.monotonic()
    seconds = measured_step_s(SPEC, placement, steps=5)
    assert 1e-4 < seconds < (time.monotonic() - begin) / (WARM_UP + 5)


def test_the_step_of_the_uncut_model_is_timed():
    measured = measure_uncut(SPEC, captured(SPEC), steps=5)
    assert len(measured.seconds) == 5
    assert 1e-5 < measured.least_s <= measured.median_s


def test_the_median_is_of_all_steps():
    assert Measured((3.0, 1.0, 9.0)).median_s == pytest.approx(3.0)
    assert Measured((3.0, 1.0, 9.0)).least_s == 1.0
