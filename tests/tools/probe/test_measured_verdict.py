"""Where a cut and one process are predicted to be about as fast, both are measured, and the verdict says which is."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import msgspec
import pytest

from cutset.errors import ProcessLost
from cutset.partition.cluster.machines import SharedCores, uniform_cluster
from cutset.partition.placement.placement_file import MeasuredSteps, to_json
from cutset.tools.measured.saved_probe import make_key, make_saved_probe, read_saved_probe, save_probe
from cutset.tools.probe import measure_step, measured_verdict
from cutset.tools.probe.measure_step import StepTimes, Way
from cutset.tools.probe.measured_verdict import CLOSE, MAX_ROUNDS, ROUNDS, measure_close
from cutset.tools.task.capture_task import CapturedTask, capture_task
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.plan_request import DESKTOP, HERE, PlanRequest
from cutset.tools.task.plan_task import PlannedTask, plan_task

SPEC = TaskSpec("cutset.models:digits")
REQUEST = PlanRequest(machines=2, cluster=HERE)
HERE_TWO = replace(uniform_cluster(2), shared=(SharedCores((0, 1), 2, whole_speedup=1.5),))


@pytest.fixture(scope="module")
def whole() -> CapturedTask:
    return capture_task(SPEC)


@pytest.fixture
def planned(whole: CapturedTask) -> PlannedTask:
    """A plan whose step is predicted to be a tenth longer than that of one process."""
    plan = plan_task(whole, SPEC, REQUEST, HERE_TWO)
    predicted = msgspec.structs.replace(plan.placement.predicted, step_s=0.0011, one_machine_s=0.001)
    return replace(plan, placement=msgspec.structs.replace(plan.placement, predicted=predicted))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """How many programs were measured each time: steps take no time, and are said to take 2 ms, cut, and 3 ms."""
    made = list[int]()

    def measure_in_turn(spec: object, ways: Sequence[Way], **more: object) -> list[StepTimes]:
        made.extend(len(programs) for _, programs in ways)
        return [StepTimes((0.002 if len(programs) > 1 else 0.003,)) for _, programs in ways]

    monkeypatch.setattr(measure_step, "measure_in_turn", measure_in_turn)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return made


def test_both_are_measured_by_turns_and_the_verdict_says_which_is_faster(
    planned: PlannedTask, whole: CapturedTask, measured: list[int]
) -> None:
    said = list[str]()
    placement = measure_close(planned, whole, SPEC, REQUEST, HERE_TWO, said.append).placement
    assert measured == [2, 1] * ROUNDS
    assert placement.measured == MeasuredSteps(0.002, 0.003)
    assert placement.verdict.startswith(
        "Worth distributing, as measured: 2 machines 2 ms/step, 1 machine with all the cores 3 ms. "
        f"Predicted: {planned.placement.verdict}"
    )
    assert said == ["2 processes and one are predicted to be about as fast: measuring both"]
    assert msgspec.json.decode(to_json(placement))["measured"] == {"step_s": 0.002, "one_machine_s": 0.003}


@pytest.mark.parametrize(
    ("rounds", "count", "expected"),
    [
        ([(2.0, 3.0), (20.0, 24.0)], ROUNDS, (11.0, 14.85)),  # of a machine that changes its speed
        ([(2.0, 2.5), (2.0, 1.0)], MAX_ROUNDS, (2.0, 1.75)),
        ([(2.0, 1.0), (2.0, 1.2)], ROUNDS, (2.0, 1.1)),
        ([(2.0, 2.05), (2.0, 1.8)], ROUNDS, (2.0, 1.925)),
    ],
    ids=["the cut is faster", "they disagree", "one is faster", "ties agree with all"],
)
def test_rounds_are_compared_each_by_itself_and_more_are_run_where_they_disagree(
    planned: PlannedTask,
    whole: CapturedTask,
    monkeypatch: pytest.MonkeyPatch,
    rounds: list[tuple[float, float]],
    count: int,
    expected: tuple[float, float],
) -> None:
    left = list(islice(cycle(rounds), count))
    monkeypatch.setattr(
        measure_step, "measure_in_turn", lambda *_, **more: [StepTimes((second,)) for second in left.pop(0)]
    )
    placement = measure_close(planned, whole, SPEC, REQUEST, HERE_TWO, lambda words: None, again=True).placement
    assert placement.measured is not None
    assert (placement.measured.step_s, placement.measured.one_machine_s) == pytest.approx(expected)
    assert left == []


def test_what_was_measured_is_kept_for_this_cut_and_not_where_it_is_measured_again(
    planned: PlannedTask, whole: CapturedTask, measured: list[int]
) -> None:
    assert save_probe(make_saved_probe(make_key(2), uniform_cluster(1), busy=0.0, seconds=1.0)) == ""
    measure_close(planned, whole, SPEC, REQUEST, HERE_TWO, lambda words: None, again=True)
    measure_close(planned, whole, SPEC, REQUEST, HERE_TWO, lambda words: None)
    assert len(measured) == 4 * ROUNDS, "one that is measured again is not kept"
    kept = measure_close(planned, whole, SPEC, REQUEST, HERE_TWO, pytest.fail)
    assert kept.placement.measured == MeasuredSteps(0.002, 0.003)
    other = replace(planned, placement=msgspec.structs.replace(planned.placement, parameters=[]))
    measure_close(other, whole, SPEC, REQUEST, HERE_TWO, lambda words: None)
    assert len(measured) == 6 * ROUNDS, "another cut has other steps"
    saved, _ = read_saved_probe(make_key(2))
    assert saved is not None
    assert list(saved.steps.values()) == [(0.002, 0.003)] * 2


def test_where_fewer_are_allowed_and_one_is_faster_the_plan_is_of_one(
    planned: PlannedTask, whole: CapturedTask, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {1: 0.002, 2: 0.003}
    monkeypatch.setattr(
        measure_step,
        "measure_in_turn",
        lambda spec, ways, **more: [StepTimes((seconds[len(programs)],)) for _, programs in ways],
    )
    assert save_probe(make_saved_probe(make_key(2), uniform_cluster(1), busy=0.0, seconds=1.0)) == ""
    request = PlanRequest(max_machines=2, cluster=HERE)
    one = measure_close(planned, whole, SPEC, request, HERE_TWO, lambda words: None).placement
    assert len(one.machines) == 1
    with_all_cores = plan_task(whole, SPEC, request, HERE_TWO.alone(0)).placement.predicted
    assert one.predicted.step_s == with_all_cores.step_s < planned.placement.predicted.step_s
    assert one.verdict.startswith("Not worth distributing, as measured: 2 machines 3 ms/step, ")
    seconds[1] = 0.004
    two = measure_close(planned, whole, SPEC, request, HERE_TWO, lambda words: None, again=True).placement
    assert len(two.machines) == 2


def test_a_model_that_one_process_has_no_memory_for_is_not_measured(
    planned: PlannedTask, whole: CapturedTask, measured: list[int]
) -> None:
    candidates = [msgspec.structs.replace(one, fits=one.machines > 1) for one in planned.placement.candidates]
    plan = replace(planned, placement=msgspec.structs.replace(planned.placement, candidates=candidates))
    assert measure_close(plan, whole, SPEC, REQUEST, HERE_TWO, pytest.fail) is plan


@pytest.mark.parametrize(("missing", "measures"), [(0, True), (2, False)])
def test_plans_are_not_measured_that_have_no_memory_beside_the_whole_model(
    planned: PlannedTask, whole: CapturedTask, measured: list[int], missing: int, measures: bool
) -> None:
    placement = planned.placement
    (alone,) = [one.peak_memory_bytes for one in placement.candidates if one.machines == 1]
    both = alone + sum(machine.memory_used_bytes for machine in placement.machines)
    machines = tuple(replace(one, memory_bytes=both // 2 + 1 - missing) for one in HERE_TWO.machines)
    measure_close(planned, whole, SPEC, REQUEST, replace(HERE_TWO, machines=machines), lambda words: None, again=True)
    assert bool(measured) is measures


@pytest.mark.parametrize(
    ("request_", "step_s", "one_s"),
    [
        (REQUEST, 0.001, 0.001 * CLOSE * 1.01),
        (REQUEST, 0.001 * CLOSE * 1.01, 0.001),
        (REQUEST, 60.0, 60.0),
        (PlanRequest(machines=2, cluster=DESKTOP), 0.001, 0.001),
        (PlanRequest(machines=2, cluster=HERE, replicas=2), 0.001, 0.001),
    ],
    ids=["the cut is faster", "one is faster", "too long to measure", "other machines", "other replicas beside it"],
)
def test_nothing_is_measured_where_the_prediction_tells_or_the_machines_are_others(
    planned: PlannedTask, whole: CapturedTask, measured: list[int], request_: PlanRequest, step_s: float, one_s: float
) -> None:
    predicted = msgspec.structs.replace(planned.placement.predicted, step_s=step_s, one_machine_s=one_s)
    plan = replace(planned, placement=msgspec.structs.replace(planned.placement, predicted=predicted))
    assert measure_close(plan, whole, SPEC, request_, HERE_TWO, pytest.fail) is plan
    assert measured == []


def test_a_step_that_cannot_be_measured_leaves_the_plan_as_it_is(
    planned: PlannedTask, whole: CapturedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_in_turn(*arguments: object, **more: object) -> list[StepTimes]:
        raise ProcessLost("E609", "a worker ran out of memory")

    monkeypatch.setattr(measure_step, "measure_in_turn", measure_in_turn)
    said = list[str]()
    assert measure_close(planned, whole, SPEC, REQUEST, HERE_TWO, said.append, again=True) is planned
    assert said[1:] == ["they could not be measured: a worker ran out of memory"]


@pytest.mark.run
def test_real_processes_are_measured(
    planned: PlannedTask, whole: CapturedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_verdict, "ROUNDS", 1)
    steps = measure_close(planned, whole, SPEC, REQUEST, HERE_TWO, lambda words: None, again=True).placement.measured
    assert steps is not None
    assert 1e-5 < steps.one_machine_s < 1
    assert 1e-5 < steps.step_s < 1


@pytest.mark.parametrize(
    ("step_s", "said"),
    [(0.9, "Worth distributing"), (1.1, "Not worth distributing"), (1.02, "As good as one machine")],
)
def test_the_verdict_of_measured_steps(step_s: float, said: str) -> None:
    words = measured_verdict.describe_measured(2, MeasuredSteps(step_s, 1.0))
    assert re.match(rf"{said}, as measured: 2 machines", words)
