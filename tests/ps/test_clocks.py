"""Clocks of replicas that train, join and leave."""

from cutset.ps.server.step_clocks import Clocks


def test_one_that_joins_is_as_far_as_the_slowest() -> None:
    clocks = Clocks(2)
    for replica, step in ((0, 6), (1, 4)):
        clocks.pushed(replica, step)
    assert clocks.joins(2, 0) == 5
    assert (clocks.slowest, clocks.replicas) == (5, 3)
    assert clocks.joins(3, 9) == 9


def test_one_that_was_started_again_goes_on_after_what_it_has_pushed() -> None:
    clocks = Clocks(2)
    clocks.pushed(0, 6)
    clocks.pushed(1, 8)
    assert clocks.joins(0, 3) == 7
    assert clocks.joins(1, 9) == 9


def test_one_that_comes_back_after_it_left_waits_for_nobody_behind_it() -> None:
    clocks = Clocks(2)
    clocks.pushed(0, 6)
    clocks.left(1)
    assert clocks.joins(1, 2) == 7
    clocks.left(0)
    clocks.left(1)
    assert clocks.joins(1, 2) == 2
