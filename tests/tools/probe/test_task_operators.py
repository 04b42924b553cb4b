"""The operators of a task, measured one by one, in a real process."""

from dataclasses import replace

import pytest

from cutset.partition.cluster.cost_model import CostModel
from cutset.partition.cluster.machines import Machine
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.memory_model import peak_memory
from cutset.tools.probe import task_operators
from cutset.tools.probe.operator_halves import list_halves
from cutset.tools.probe.operator_process import MIN_STEPS, OperatorTimes
from cutset.tools.probe.task_operators import has_unknown, measure_operators
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
    assert found is not None
    large = list_halves(capture.train, MACHINE)
    assert set(found.operators) == signatures | {name for one in large for name in one.names}
    assert large
    assert all(ahead > 0 and back > 0 for ahead, back in found.operators.values())
    assert found.memory is not None
    assert found.memory.ratio >= task_operators.MIN_MEMORY
    assert 50 << 20 < found.memory.process_bytes < 1 << 30
    assert found.contention is None
    assert has_unknown(capture, {})
    assert not has_unknown(capture, found.operators)


def test_a_model_that_takes_too_much_is_not_measured(monkeypatch):
    monkeypatch.setattr(task_operators, "_run", lambda *arguments: pytest.fail("measured"))
    capture = capture_task(SPEC)
    monkeypatch.setattr(task_operators, "MAX_BYTES", 1)
    assert measure_operators(capture, SPEC, MACHINE, {}, threads=1) is None
    monkeypatch.undo()
    monkeypatch.setattr(task_operators, "_run", lambda *arguments: pytest.fail("measured"))
    monkeypatch.setattr(task_operators, "MAX_STEP_S", 0.0)
    assert measure_operators(capture, SPEC, MACHINE, {}, threads=1) is None


def test_ratios_are_those_of_measured_and_modelled_seconds(monkeypatch):
    capture = capture_task(SPEC)
    costs = CostModel(capture.train.tensors)
    works = [costs.work(op, op.nest.box) for op in capture.train.ops]
    times = [(2 * work.modelled_seconds(MACHINE)[0], 3 * work.modelled_seconds(MACHINE)[1]) for work in works]
    (held,) = peak_memory(lower_cut(capture.train, one_machine_cut(capture.train)))
    machine = replace(MACHINE, process_bytes=1 << 20)
    timed = OperatorTimes(times, (3 << 20) + held.steady + 2 * held.working, (3 << 20) + held.steady)
    monkeypatch.setattr(task_operators, "_run", lambda *arguments: [timed])
    found = measure_operators(capture, SPEC, machine, {}, threads=1)
    assert found is not None
    assert found.memory == (3 << 20, pytest.approx(2.0, rel=1e-2))
    for work in works:
        assert found.operators[work.signature] == (pytest.approx(2.0, rel=1e-2), pytest.approx(3.0, rel=1e-2))


@pytest.mark.parametrize(("times", "scale"), [(1.5, 1.5), (0.75, 0.75), (9.0, task_operators.MAX_SCALE), (0.0, 1.0)])
def test_operators_add_up_to_a_step_of_the_whole_model(monkeypatch, times, scale):
    capture = capture_task(SPEC)
    costs = CostModel(capture.train.tensors)
    machine = replace(MACHINE, segment_s=1e-3, segment_back_s=2e-3, step_s=4e-3)
    works = [costs.work(op, op.nest.box) for op in capture.train.ops]
    modelled = [work.modelled_seconds(machine) for work in works]
    segments = [(1e-3 + 10 * ahead, 2e-3 + 10 * back) for ahead, back in modelled]
    whole_s = 7e-3 + times * 10 * sum(map(sum, modelled)) if times else 0.0
    timed = OperatorTimes(segments, 0, 0, [9e9, whole_s, 0.0])
    monkeypatch.setattr(task_operators, "_run", lambda *arguments: [timed])
    found = measure_operators(capture, SPEC, machine, {}, threads=1)
    assert found is not None
    for work in works:
        assert found.operators[work.signature][0] == pytest.approx(10 * scale, rel=1e-2)


def test_contention_is_that_of_the_same_round_with_waiting_for_the_slowest(monkeypatch):
    """In the second and third the machine is half as fast; in the first, now one process is slower, now the other."""
    capture = capture_task(SPEC)
    count = len(lower_cut(capture.train, one_machine_cut(capture.train)).instructions)
    alone = {"computed_alone_s": [3.0, 6.0, 6.0]}
    first = OperatorTimes(
        [(1.0, 2.0)] * count, 1 << 30, 1 << 29, **alone, crowded_segments_s=[[1.0, 2.5], [4.0, 4.0], [9.0, 9.0]]
    )
    other = OperatorTimes([], 0, 0, crowded_segments_s=[[2.0, 1.5], [4.5, 4.5], [4.0, 4.0]])
    monkeypatch.setattr(task_operators, "_run", lambda *arguments: [first, other])
    found = measure_operators(capture, SPEC, MACHINE, {}, threads=1, processes=2, cores=2)
    assert found is not None
    assert found.contention == pytest.approx(4.5 / 3.0)


def test_processes_that_would_take_too_much_together_are_not_started(monkeypatch):
    counts = list[int]()

    def run(capture, spec, flow, divided, halves, threads, processes, all_threads):
        counts.append(processes)
        segments = [(1.0, 1.0)] * len(flow.instructions)
        times = {"alone_s": [1.0], "crowded_s": [4.0], "computed_alone_s": [2.0], "crowded_segments_s": [[2.0]]}
        return processes * [OperatorTimes(segments, 0, 0, **times)]

    monkeypatch.setattr(task_operators, "_run", run)
    capture = capture_task(SPEC)
    (held,) = peak_memory(lower_cut(capture.train, one_machine_cut(capture.train)))
    memory = sum(held)
    for limit, contention in ((4 * memory, 2.0), (3 * memory, 1.0), (memory, None)):
        monkeypatch.setattr(task_operators, "MAX_BYTES", limit)
        found = measure_operators(capture, SPEC, MACHINE, {}, threads=1, processes=4, cores=2)
        assert found is not None
        assert found.contention == contention
    assert counts == [4, 2, 1]


@pytest.mark.parametrize(
    ("segments_s", "later"), [([[1.0, 1.0]] * 3, 1.0), ([[2.0, 1.8], [1.9, 2.0], [0.1, 0.1]], 4 / 3.9)]
)
def test_processes_that_take_turns_are_as_late_as_the_last_and_wait_for_the_slowest(monkeypatch, segments_s, later):
    capture = capture_task(SPEC)
    segments = [(1.0, 2.0)] * len(lower_cut(capture.train, one_machine_cut(capture.train)).instructions)
    timed = [
        OperatorTimes(
            segments, 0, 0, alone_s=[2.0, 4.0, 2.0], crowded_s=[3.0, 2 * last, 9.0], crowded_segments_s=[own] * 3
        )
        for last, own in zip((3.3, 3.0, 3.3), segments_s, strict=True)
    ]
    monkeypatch.setattr(task_operators, "_run", lambda *arguments: timed)
    found = measure_operators(capture, SPEC, MACHINE, {}, threads=1, processes=3, cores=2)
    assert found is not None
    assert found.contention == pytest.approx(later * 3.3 / 3.0, rel=1e-2)


@pytest.mark.parametrize(("undivided_s", "speedup"), [(0.0, None), (2.0, 1.5), (0.1, 2.0), (99.0, 0.5)])
def test_a_process_with_all_cores_is_as_fast_as_they_can_make_it(monkeypatch, undivided_s, speedup):
    capture = capture_task(SPEC)
    segments = [(1.0, 2.0)] * len(lower_cut(capture.train, one_machine_cut(capture.train)).instructions)
    undivided = [undivided_s, 2 * undivided_s, undivided_s] if undivided_s else []
    computed = {"computed_alone_s": [3.0], "crowded_segments_s": [[3.0]]}
    timed = OperatorTimes(segments, 0, 0, [3.0, 6.0, 9.0], undivided, **computed)
    monkeypatch.setattr(task_operators, "_run", lambda *arguments: [timed, timed])
    found = measure_operators(capture, SPEC, MACHINE, {}, threads=1, processes=2, cores=2)
    assert found is not None
    assert found.speedup == speedup


@pytest.mark.run
def test_a_round_has_a_step_of_every_kind():
    capture = capture_task(SPEC)
    flow = lower_cut(capture.train, one_machine_cut(capture.train))
    first, other = task_operators._run(capture, SPEC, flow, task_operators._divide(flow), [], 1, 2, 2)
    own = (first.whole_s, first.undivided_s, first.alone_s, first.computed_alone_s)
    segments = (*first.crowded_segments_s, *other.crowded_segments_s)
    together = (first.crowded_s, other.crowded_s, *segments)
    assert {len(seconds) for seconds in (*own, first.crowded_s, other.crowded_s)} == {len(first.whole_s)}
    assert len(first.crowded_segments_s) == len(other.crowded_segments_s) == len(first.whole_s)
    assert {len(seconds) for seconds in segments} == {2 * len(flow.instructions)}  # forward and backward
    assert len(first.whole_s) >= MIN_STEPS
    assert min(map(min, own + together)) > 0
    assert len(first.segments) == len(flow.instructions)
    assert (other.segments, other.whole_s, other.undivided_s, other.alone_s, other.computed_alone_s) == ([],) * 5


@pytest.mark.run
def test_processes_that_work_at_once_are_measured_together():
    found = measure_operators(capture_task(SPEC), SPEC, MACHINE, {}, threads=1, processes=2, cores=2)
    assert found is not None
    assert found.contention is not None
    assert 1.0 <= found.contention <= 2.0
    assert found.speedup is not None
    assert 0.5 <= found.speedup <= 2.0
