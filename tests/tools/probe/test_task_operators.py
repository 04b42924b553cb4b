"""The operators of a task, measured one by one, in a real process."""

import pytest

from cutset.partition.cluster.cost_model import CostModel
from cutset.partition.cluster.machines import Machine
from cutset.tools.probe import task_operators
from cutset.tools.probe.task_operators import measure_operators
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec

SPEC = TaskSpec("cutset.models:digits")
MACHINE = Machine("here")


@pytest.mark.run
def test_every_operator_is_measured_once():
    capture = capture_task(SPEC)
    costs = CostModel(capture.train.tensors)
    signatures = {costs.work(op, op.nest.box).signature for op in capture.train.ops}
    found = measure_operators(capture, SPEC, MACHINE, {}, threads=1)
    assert set(found) == signatures
    assert all(ahead > 0 and back > 0 for ahead, back in found.values())
    assert measure_operators(capture, SPEC, MACHINE, found, threads=1) == {}


def test_a_model_that_takes_too_much_is_not_measured(monkeypatch):
    monkeypatch.setattr(task_operators, "_run", lambda *arguments: pytest.fail("measured"))
    capture = capture_task(SPEC)
    monkeypatch.setattr(task_operators, "MAX_BYTES", 1)
    assert measure_operators(capture, SPEC, MACHINE, {}, threads=1) == {}
    monkeypatch.undo()
    monkeypatch.setattr(task_operators, "_run", lambda *arguments: pytest.fail("measured"))
    monkeypatch.setattr(task_operators, "MAX_STEP_S", 0.0)
    assert measure_operators(capture, SPEC, MACHINE, {}, threads=1) == {}


def test_ratios_are_those_of_measured_and_modelled_seconds(monkeypatch):
    capture = capture_task(SPEC)
    costs = CostModel(capture.train.tensors)
    works = [costs.work(op, op.nest.box) for op in capture.train.ops]
    times = [(2 * work.modelled_seconds(MACHINE)[0], 3 * work.modelled_seconds(MACHINE)[1]) for work in works]
    monkeypatch.setattr(task_operators, "_run", lambda *arguments: times)
    found = measure_operators(capture, SPEC, MACHINE, {}, threads=1)
    for work in works:
        assert found[work.signature] == (pytest.approx(2.0, rel=1e-2), pytest.approx(3.0, rel=1e-2))
