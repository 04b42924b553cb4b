"""Measured steps: of real processes."""

import time
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest

from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.placement.from_plan import plan_placement
from cutset.runtime.hosts.host import Role
from cutset.runtime.worker.program import programs
from cutset.tools.probe import measure_step
from cutset.tools.probe.measure_step import (
    MAX_TURN,
    WARM_UP,
    ProcessPlacement,
    StepTimes,
    _summarise,
    measure_in_turn,
    measure_placement,
    measure_uncut,
)
from cutset.tools.probe.timed_worker import StepSetup, WorkerRecord
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.plan_task import compile_programs, load_cut

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


@pytest.mark.run
def test_ways_to_make_the_same_step_are_timed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    run, records = measure_step._run, list[WorkerRecord]()
    monkeypatch.setattr(measure_step, "_run", lambda *arguments: records.extend(run(*arguments)) or records)
    whole = capture_task(TaskSpec(SPEC.model, batch=10))
    alone = programs(lower_cut(whole.train, one_machine_cut(whole.train)), training=True)
    placement = plan_placement(whole.train, uniform_cluster(2), model=SPEC.model, candidates="slices")
    cut, _ = compile_programs(whole, load_cut(whole, placement))
    first, second = measure_in_turn(SPEC, [(whole, cut), (whole, alone)], steps=MAX_TURN, warm_up=4, step_s=1e-3)
    assert len(first.seconds) == len(second.seconds) >= MAX_TURN
    assert first.bytes_sent > second.bytes_sent == 0
    assert [len(way.peak_bytes) for way in (first, second)] == [2, 1]
    spans = sorted((begin, end, number) for number, one in enumerate(records) for begin, end, _ in one.times)
    of_one = [number == 2 for _, _, number in spans]
    assert sum(before != after for before, after in pairwise(of_one)) == 3, "two turns each, one after the other"
    alone_s = [(begin, end) for begin, end, number in spans if number == 2]
    together_s = [(begin, end) for begin, end, number in spans if number < 2]
    assert all(end <= other or stop <= begin for begin, end in alone_s for other, stop in together_s)


@pytest.mark.parametrize(("step_s", "turn", "made", "counted"), [(0.1, 4, 12, 7), (0.4, 1, 8, 6)])
def test_long_steps_are_all_counted_and_made_one_by_one(
    monkeypatch: pytest.MonkeyPatch, step_s: float, turn: int, made: int, counted: int
) -> None:
    whole = capture_task(TaskSpec(SPEC.model, batch=10))
    alone = programs(lower_cut(whole.train, one_machine_cut(whole.train)), training=True)
    setups = list[StepSetup]()

    def run(roles: Sequence[Role], placement: ProcessPlacement) -> list[WorkerRecord]:
        setups.extend(msgspec.convert(role.setup, StepSetup) for role in roles)
        return [WorkerRecord([(step, step + 1, 0.5) for step in range(one.steps)], 0, 0, 0, 0) for one in setups]

    monkeypatch.setattr(measure_step, "_run", run)
    ways = measure_in_turn(SPEC, [(whole, alone)] * 2, steps=6, warm_up=2, step_s=step_s)
    assert [(one.turn, one.steps) for one in setups] == [(turn, made)] * 2
    assert [len(way.seconds) for way in ways] == [counted] * 2


def test_the_first_step_of_a_turn_is_not_counted() -> None:
    records = [WorkerRecord([(step, step + 1 + step / 10, 0.5) for step in range(9)], 0, 0, 0, 0)]
    assert _summarise(records, 1, turn=3).seconds == pytest.approx((1.2, 1.4, 1.5, 1.7, 1.8))
    assert len(_summarise(records, 1).seconds) == 8


def test_the_median_is_of_all_steps():
    assert StepTimes((3.0, 1.0, 9.0)).median_s == pytest.approx(3.0)
    assert StepTimes((3.0, 1.0, 9.0)).min_s == 1.0
