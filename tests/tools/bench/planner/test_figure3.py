"""Speed-ups by the planner's own plans, on small nets."""

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest

from cutset.errors import CutsetError, UsageError
from cutset.tools.bench.planner.figure3 import AssumedMachines, Figure3, simulate_figure3, tabulate

SLOW_CORES = AssumedMachines(
    flops_per_s=1e6, memory_bandwidth=1e12, bandwidth=1e12, latency_s=0, message_s=0, straggling=0
)


def speedups(assumed: AssumedMachines, counts: tuple[int, ...] = (1, 2, 4)) -> list[float]:
    return [point.speedup for point in simulate_figure3(assumed, nets=("digits",), counts=counts).points]


@pytest.mark.run
def test_where_the_network_is_free_machines_are_worth_their_number() -> None:
    one, two, four = speedups(SLOW_CORES)
    assert one == 1
    assert 1.8 < two <= 2
    assert 3.2 < four <= 4


def test_where_messages_are_dear_two_machines_are_slower_than_one() -> None:
    assert speedups(replace(SLOW_CORES, message_s=5.0), counts=(2,))[0] < 0.5


@pytest.mark.slow
def test_stragglers_cost_more_the_more_machines_there_are() -> None:
    steady, straggling = (speedups(replace(SLOW_CORES, straggling=s), counts=(2, 5)) for s in (0, 0.5))
    lost = [a / b for a, b in zip(steady, straggling, strict=True)]
    assert 1.05 < lost[0] < lost[1]


def test_one_machine_takes_its_mean_slowdown_longer() -> None:
    assumed = replace(SLOW_CORES, straggling=0.5)
    (point,) = simulate_figure3(assumed, nets=("digits",), counts=(1,)).points
    assert point.step_s / point.quiet_s == pytest.approx(math.exp(0.125), rel=1e-3)
    assert (point.speedup, point.plan, point.bytes_forward) == (1, "one machine", 0)
    assert assumed.mean_slowdown == pytest.approx(statistics.mean(s for (s,) in assumed.slowdowns(1)), abs=0.1)


@pytest.mark.run
def test_without_stragglers_every_step_is_the_predicted_one() -> None:
    for point in simulate_figure3(
        replace(AssumedMachines(), straggling=0.0, draws=1), nets=("digits",), counts=(1, 2, 3)
    ).points:
        assert point.step_s == pytest.approx(point.quiet_s)


def test_a_machine_is_as_slow_in_a_step_whatever_the_number_of_machines() -> None:
    assumed = AssumedMachines(draws=3, seed=7)
    few, many = assumed.slowdowns(4), assumed.slowdowns(64)
    assert (len(few), len(many)) == (48, 3)
    assert [row[:4] for row in many] == few[:3]
    assert few == AssumedMachines(draws=3, seed=7).slowdowns(4) != AssumedMachines(draws=3, seed=8).slowdowns(4)


def test_slowdowns_are_lognormal_with_median_one() -> None:
    logs = [math.log(factor) for row in AssumedMachines(draws=60).slowdowns(64) for factor in row]
    assert statistics.mean(logs) == pytest.approx(0, abs=0.03)
    assert statistics.stdev(logs) == pytest.approx(0.5, abs=0.03)


def test_the_cluster_is_as_described() -> None:
    cluster = AssumedMachines(flops_per_s=1e9, bandwidth=2e6, latency_s=0.1, message_s=0.2).cluster(3)
    assert (len(cluster), cluster.bandwidth, cluster.latency_s) == (3, 2e6, 0.1)
    assert {(m.flops_per_s, m.message_s) for m in cluster.machines} == {(1e9, 0.2)}


@pytest.mark.slow
def test_each_point_is_told_when_it_is_there_and_all_are_kept() -> None:
    told: list[Any] = []
    found = simulate_figure3(SLOW_CORES, nets=("digits", "digits_local"), counts=(1, 2), batch=10, tell=told.append)
    assert tuple(told) == found.points
    assert [(p.task, p.machines) for p in found.points] == [(n, k) for n in ("digits", "digits_local") for k in (1, 2)]
    assert found.batch == 10
    assert [p.machines for p in found.select("digits_local")] == [1, 2]


def test_data_has_the_machines_and_what_the_paper_says() -> None:
    data = tabulate(Figure3(AssumedMachines(), 100, (), 1.0))[1].to_dict()
    assert data["assumed"]["flops_per_s"] == 60e9
    assert data["assumed"]["batch"] == 100
    assert {(s["task"], s["machines"], s["speedup"], s["at_least"]) for s in data["stated"]} == {
        ("speech", 8, 2.2, False),
        ("local_1700m", 81, 12.0, True),
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"flops_per_s": 0},
        {"bandwidth": -1},
        {"bandwidth": math.inf},
        {"draws": 0},
        {"latency_s": -1},
        {"straggling": math.nan},
    ],
)
def test_machines_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="E240") as caught:
        AssumedMachines(**wrong)
    assert next(iter(wrong)) in caught.value.facts


def test_a_net_that_is_not_there_is_refused() -> None:
    with pytest.raises(CutsetError, match="E302"):
        simulate_figure3(SLOW_CORES, nets=("local_900m",), counts=(1,))
