"""Clocks of replicas that train, join and leave."""

from cutset.ps.server.step_clocks import StepClocks


def test_a_replica_that_joins_begins_at_the_slowest() -> None:
    clocks = StepClocks(2)
    for replica, step in ((0, 6), (1, 4)):
        clocks.record_push(replica, step)
    assert clocks.assign_step(2, 0) == 5
    assert (clocks.slowest, clocks.replicas) == (5, 3)
    assert clocks.assign_step(3, 9) == 9


def test_a_restarted_replica_continues_after_its_last_push() -> None:
    clocks = StepClocks(2)
    clocks.record_push(0, 6)
    clocks.record_push(1, 8)
    assert clocks.assign_step(0, 3) == 7
    assert clocks.assign_step(1, 9) == 9


def test_a_replica_that_left_and_rejoins_begins_at_the_slowest() -> None:
    clocks = StepClocks(2)
    clocks.record_push(0, 6)
    clocks.remove(1)
    assert clocks.assign_step(1, 2) == 7
    clocks.remove(0)
    clocks.remove(1)
    assert clocks.assign_step(1, 2) == 2
