"""How long steps take."""

import math
import statistics

import pytest

from cutset.errors import UsageError
from cutset.tools.virtual_time.machines import SimulatedMachines, StepDurations


def draw(machines: SimulatedMachines, replica: int, count: int = 4000, seed: int = 0) -> list[float]:
    times = StepDurations(machines, replica, seed)
    return [times.draw() for _ in range(count)]


def test_steps_without_a_spread_take_what_they_take() -> None:
    assert draw(SimulatedMachines(step_s=0.25), 0, 3) == [0.25] * 3


def test_the_mean_is_that_which_was_asked_for_and_the_logarithm_has_the_spread() -> None:
    times = draw(SimulatedMachines(step_s=2.0, spread=0.5), 3)
    assert statistics.mean(times) == pytest.approx(2.0, rel=0.05)
    assert statistics.stdev(map(math.log, times)) == pytest.approx(0.5, rel=0.05)


def test_the_first_replicas_are_the_stragglers() -> None:
    machines = SimulatedMachines(step_s=1.0, stragglers=1, slowdown=5.0)
    assert [draw(machines, replica, 1) for replica in range(2)] == [[5.0], [1.0]]


def test_a_machine_keeps_its_pace() -> None:
    machines = SimulatedMachines(step_s=1.0, machine_spread=0.5)
    first, second = (set(draw(machines, replica, 5)) for replica in range(2))
    assert len(first) == len(second) == 1
    assert first != second


def test_what_a_replica_draws_depends_on_the_seed_and_its_number() -> None:
    machines = SimulatedMachines(spread=0.3)
    assert draw(machines, 1, 5) == draw(machines, 1, 5)
    assert draw(machines, 1, 5) != draw(machines, 2, 5)
    assert draw(machines, 1, 5) != draw(machines, 1, 5, seed=1)


@pytest.mark.parametrize("field", ["step_s", "bandwidth", "spread", "latency_s"])
def test_machines_that_cannot_be_are_refused(field: str) -> None:
    with pytest.raises(UsageError, match=field):
        SimulatedMachines(**{field: -1.0})


def test_steps_may_be_those_of_another_run() -> None:
    machines = SimulatedMachines(recorded_s=((1.5, 2.5), (7.0,)))
    assert draw(machines, 0, 2) == [1.5, 2.5]
    assert draw(machines, 1, 2) == [7.0, 1.0]  # then they are drawn again
