"""The comparison of predicted and measured steps: its pairs, what it counts as held, and a pair that is really run."""

from dataclasses import replace
from itertools import cycle
from unittest.mock import Mock

import msgspec
import pytest

from cutset.partition.cluster.machines import Cluster, SharedCores, uniform_cluster
from cutset.partition.placement.placement_file import MeasuredSteps
from cutset.tools.bench.cluster import prediction
from cutset.tools.bench.cluster.link import LinkTimes
from cutset.tools.bench.cluster.prediction import (
    PlannedPair,
    PredictedRound,
    Tell,
    _link_machines,
    _measure_round,
    count_whole_bytes,
    measure_predictions,
    plan_pair,
    tabulate,
)
from cutset.tools.bench.cluster.standing_pairs import STANDING_PAIRS, StandingPair
from cutset.tools.probe.measure_step import StepTimes
from cutset.tools.task.capture_task import CapturedTask
from cutset.tools.task.load_task import TaskSpec, load_task

PAIR = StandingPair("cutset.models:digits", 2)


@pytest.fixture
def constants(monkeypatch) -> None:
    """Plan for constants, so that nothing is probed."""
    monkeypatch.setattr(
        prediction, "find_machines", lambda capture, spec, request, tell, *, again: uniform_cluster(request.machines)
    )


def test_there_are_twenty_pairs_of_tasks_that_exist():
    assert len(set(STANDING_PAIRS)) == len(STANDING_PAIRS) == 20
    assert {pair.machines for pair in STANDING_PAIRS} == {2, 3, 4}
    assert sum(bool(pair.rate) for pair in STANDING_PAIRS) >= 5
    for pair in STANDING_PAIRS:
        assert load_task(pair.spec).batch % pair.micro_batches == 0


@pytest.mark.usefixtures("constants")
def test_what_holds_is_counted():
    one, _ = plan_pair(PAIR, pytest.fail)
    said, memory = one.placement.predicted.step_s, one.placement.machines[0].memory_used_bytes
    planned_ratio = one.placement.predicted.one_machine_s / said
    memories = tuple(machine.memory_used_bytes for machine in one.placement.machines)

    def measured(cut_s: float, one_s: float, *, bytes_sent: int, factor: float) -> PlannedPair:
        taken = tuple(round(factor * size) for size in memories)
        rounds = [
            PredictedRound(
                said * pace,
                StepTimes((cut_s * pace * extra,), bytes_sent=bytes_sent, peak_bytes=taken),
                StepTimes((one_s * pace,)),
                planned_ratio,
            )
            for pace, extra in ((1.0, 1.0), (2.0, 1.0), (1.5, 4.0))
        ]
        return replace(one, rounds=rounds)

    right = measured(said, said / 3, bytes_sent=one.bytes_predicted, factor=1.05)
    wrong = measured(said / 2, said, bytes_sent=one.bytes_predicted + 1, factor=1.5)
    assert memory > 0
    assert (right.ratio, right.step_holds, right.fewer_holds, right.says_fewer) == (
        pytest.approx(1.0),
        True,
        True,
        True,
    )
    assert (wrong.ratio, wrong.step_holds, wrong.fewer_holds) == (pytest.approx(2.0), False, False)
    table = tabulate([right, wrong])
    assert list(table.facts["held"].values()) == [1, 1, 1, 1]
    assert "step within 0.85 to 1.15: 1 of 2; bytes exact: 1 of 2" in table.notes[2]


@pytest.mark.run
@pytest.mark.usefixtures("constants")
def test_bytes_are_exact_with_the_rows_that_did_not_travel():
    (model,) = {pair.model for pair in STANDING_PAIRS if pair.model.endswith(":mixture")}
    one, _ = plan_pair(StandingPair(f"{model}(experts=8)", 4), pytest.fail)  # a quarter of the rows for each expert
    whole = count_whole_bytes(one.flow, 1)
    assert one.bytes_predicted < whole
    for sent, left_out, exact in [(whole, 0, True), (whole - 96, 96, True), (whole - 96, 95, False)]:
        measured = StepTimes((1.0,), bytes_sent=sent, bytes_left_out=left_out)
        assert replace(one, rounds=[PredictedRound(1.0, measured, measured, 1.0)]).bytes_exact is exact


def test_a_measured_link_is_no_faster_than_its_wire():
    link = LinkTimes(119e6, ((0, 1e-3), (1_000_000, 1e-3 + 0.01)), 1e-4, 1.4e-3, 3e8)
    cluster = replace(
        uniform_cluster(2), machines=tuple(replace(m, message_s=2e-4) for m in uniform_cluster(2).machines)
    )
    cluster = replace(cluster, shared=(SharedCores((0, 1), 2, 1.5, 4e9),))
    linked = _link_machines(cluster, link, 90e6)
    assert linked.shared == (SharedCores((0, 1), 2, 1.5, network_per_s=3e8),)
    assert isinstance(linked, Cluster)
    assert (linked.bandwidth, linked.latency_s) == (90e6, pytest.approx(1e-3)), "of a message after work"
    unknown = replace(link, handled_per_s=None)
    assert _link_machines(cluster, unknown, 110e6).bandwidth == pytest.approx(1e8)
    assert _link_machines(cluster, unknown, 110e6).shared == (SharedCores((0, 1), 2, 1.5),)


def test_the_wire_is_not_in_the_latency_of_the_smallest_message():
    link = LinkTimes(12e6, ((1000, 3e-4), (1_000_000, 0.1)), 1e-4, 6e-4)
    assert _link_machines(uniform_cluster(2), link, 1e7).latency_s == pytest.approx(5e-4)


@pytest.mark.usefixtures("constants")
def test_pairs_with_links_are_left_out_where_these_cannot_be_made(monkeypatch):
    monkeypatch.setattr(prediction.os, "geteuid", lambda: 1000, raising=False)
    said = list[str]()
    assert measure_predictions(said.append, [replace(PAIR, rate="1gbit")]) == []
    assert said[0].startswith("left out: cutset.models:digits on 2 at 1gbit: ")


def test_each_round_runs_right_after_the_machine_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes later a shared machine may be half as fast."""
    others, order = [PAIR, replace(PAIR, machines=3)], list[str]()

    def plan(pair: StandingPair, tell: Tell) -> tuple[Mock, int]:
        order.append(f"plan {pair.machines}")
        return Mock(pair=pair, rounds=[], has_doubt=False), 0

    def measure(pair: StandingPair, spec: TaskSpec, whole: CapturedTask, tell: Tell) -> int:
        order.append(f"measure {pair.machines}")
        return len(order)

    def run(one: Mock, cluster: int) -> None:
        order.append(f"run {one.pair.machines}")
        assert cluster in (0, len(order) - 1)
        one.rounds.append(PredictedRound(1.0, StepTimes((0.25,)), StepTimes((0.5,)), 2.0))

    monkeypatch.setattr(prediction, "plan_pair", plan)
    monkeypatch.setattr(prediction, "_measure_machines", measure)
    monkeypatch.setattr(prediction, "_measure_round", run)
    said = list[str]()
    measure_predictions(said.append, others)
    more = prediction.ROUNDS - 1
    assert order == [f"{what} {n}" for n in (2, 3) for what in ["plan", "run", *["measure", "run"] * more]]
    assert "predicted and measured 1 s and 250 ms, 1 s and 250 ms, 1 s and 250 ms" in said[0]


@pytest.mark.parametrize(
    ("cut_s", "alone_s", "rounds"),
    [
        ([1.0, 1.1, 0.9], [0.5, 0.6, 0.5], 3),
        ([1.0, 1.0, 1.0], [1.02, 0.98, 1.1], 3),  # ties agree with all
        ([1.0, 1.0, 1.0], [1.1, 1.1, 0.9], 7),
        ([1.0, 1.3, 1.0], [0.5, 0.5, 0.5], 7),
        ([1.3, 1.4, 1.3], [0.5, 0.5, 0.5], 3),
        ([1.3, 0.7, 1.3], [0.5, 0.5, 0.5], 7),  # all far off, to either side
    ],
)
def test_a_pair_whose_rounds_disagree_has_more(
    monkeypatch: pytest.MonkeyPatch, cut_s: list[float], alone_s: list[float], rounds: int
) -> None:
    times = zip(cut_s, alone_s, strict=True)
    found = cycle(PredictedRound(1.0, StepTimes((a,)), StepTimes((b,)), 1.0) for a, b in times)
    one = PlannedPair(PAIR, PAIR.spec, Mock(), Mock(), Mock(), Mock())
    monkeypatch.setattr(prediction, "plan_pair", lambda pair, tell: (one, 0))
    monkeypatch.setattr(prediction, "_measure_machines", lambda *ignored: 0)
    monkeypatch.setattr(prediction, "_measure_round", lambda pair, cluster: pair.rounds.append(next(found)))
    (measured,) = measure_predictions(lambda line: None, [PAIR])
    assert len(measured.rounds) == rounds


@pytest.mark.usefixtures("constants")
@pytest.mark.parametrize(("planned", "fewer"), [(MeasuredSteps(1.0, 1.2), True), (None, False)])
def test_what_the_plan_measures_for_its_verdict_is_measured_anew_in_each_round(
    monkeypatch: pytest.MonkeyPatch, planned: MeasuredSteps | None, fewer: bool
) -> None:
    one, cluster = plan_pair(PAIR, pytest.fail)
    predicted = msgspec.structs.replace(one.placement.predicted, step_s=1.0, one_machine_s=1.3)
    one.placement = msgspec.structs.replace(one.placement, measured=planned, predicted=predicted)
    anew = iter([(2.0, 1.8), (1.0, 0.9)])

    def measure_both(*arguments: object, **more: object) -> list[StepTimes]:
        return [StepTimes((seconds,)) for seconds in ((1.0, 1.0) if "min_steps" in more else next(anew))]

    monkeypatch.setattr(prediction, "measure_both", measure_both)
    for _ in range(3):
        _measure_round(one, cluster)
    assert [each.planned_ratio for each in one.rounds] == ([1.2, 0.9, 0.9] if planned else [1.3] * 3)
    assert one.says_fewer is fewer


@pytest.mark.run
@pytest.mark.usefixtures("constants")
def test_a_pair_is_run_and_sends_the_bytes_that_were_predicted():
    one, cluster = plan_pair(PAIR, pytest.fail)
    _measure_round(one, cluster)
    assert one.bytes_sent == one.bytes_predicted > 0
    assert one.predicted_s == pytest.approx(one.placement.predicted.step_s)
    assert one.measured_s > 0
    assert one.one_machine_s > 0
    assert all(size > 50 << 20 for size in one.rounds[0].cut.peak_bytes)
