"""Measured steps: of real processes."""

import time

import pytest

from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.placement.from_plan import plan_placement
from cutset.tools.probe.measure_step import WARM_UP, StepTimes, measure_placement, measure_uncut
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec

SPEC = TaskSpec("cutset.models:digits")


@pytest.mark.slow
def test_the_step_of_a_cut_model_is_timed():
    ready = capture_task(TaskSpec(SPEC.model, batch=10))
    placement = plan_placement(ready.train, uniform_cluster(2), model=SPEC.model, candidates="slices", micro_batches=2)
    begin = time.monotonic()
    seconds = measure_placement(SPEC, placement, steps=5)
    assert 1e-4 < seconds < (time.monotonic() - begin) / (WARM_UP + 5)


@pytest.mark.slow
def test_the_step_of_the_uncut_model_is_timed():
    measured = measure_uncut(SPEC, capture_task(SPEC), steps=5)
    assert len(measured.seconds) == 5
    assert 1e-5 < measured.min_s <= measured.median_s


def test_the_median_is_of_all_steps():
    assert StepTimes((3.0, 1.0, 9.0)).median_s == pytest.approx(3.0)
    assert StepTimes((3.0, 1.0, 9.0)).min_s == 1.0
