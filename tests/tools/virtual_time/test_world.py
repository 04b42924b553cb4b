"""The clock, and the tasks that wait for it."""

import pytest

from cutset.tools.virtual_time.world import StandstillError, VirtualTask, World


def test_tasks_wait_in_virtual_time() -> None:
    world, seen = World(0), list[tuple[str, float]]()

    def run(name: str, pause_s: float) -> None:
        for _ in range(2):
            world.sleep(pause_s)
            seen.append((name, world.now))

    tasks = [
        VirtualTask(world, name, lambda name=name, s=s: run(name, s)) for name, s in (("slow", 5.0), ("fast", 2.0))
    ]
    for task in tasks:
        task.begin()
    world.run(lambda: all(task.has_ended for task in tasks))
    assert seen == [("fast", 2.0), ("fast", 4.0), ("slow", 5.0), ("slow", 10.0)]


def test_a_task_that_is_woken_early_sleeps_on() -> None:
    world = World(0)
    task = VirtualTask(world, "sleeper", lambda: world.sleep(3.0))
    task.begin()
    world.at(1.0, task.wake)
    world.run(lambda: task.has_ended)
    assert world.now == 3.0


def test_a_stopped_task_goes_on_when_it_may() -> None:
    world = World(0)
    task = VirtualTask(world, "sleeper", lambda: world.sleep(3.0))
    task.begin()

    def stop() -> None:
        task.stopped = True

    world.at(1.0, stop)
    world.at(7.0, task.proceed)
    world.run(lambda: task.has_ended)
    assert world.now == 7.0


def test_a_world_in_which_nothing_happens_any_more_stands_still() -> None:
    world = World(0)
    with pytest.raises(StandstillError, match="nothing happens"):
        world.run(lambda: False)


def test_a_run_has_a_limit() -> None:
    world = World(0, limit_s=10.0)
    world.at(11.0, lambda: None)
    with pytest.raises(StandstillError, match="no end after 11"):
        world.run(lambda: False)


def test_an_error_in_a_task_is_that_of_the_run() -> None:
    world = World(0)

    def fail() -> None:
        world.sleep(1.0)
        raise ValueError("what went wrong")

    VirtualTask(world, "failing", fail).begin()
    with pytest.raises(ValueError, match="what went wrong"):
        world.run(lambda: False)
