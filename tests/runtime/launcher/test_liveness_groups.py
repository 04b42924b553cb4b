"""What becomes of a run whose roles are in groups: one that is lost is started again, the others go on."""

import pytest
from liveness_events import BUG, LIMITS, NAN, SILENT, Event, alive, breaks, exits, fails, passes, play

from cutset.runtime.launcher.liveness import LivenessMonitor


def grouped() -> LivenessMonitor:
    """Two replicas of two workers, and a shard; only the replicas may be started again."""
    groups = {f"{r}.{m}": f"replica {r}" for r in range(2) for m in range(2)}
    names = [*groups, "shard"]
    monitor = LivenessMonitor(names, now=0.0, limits=LIMITS, groups=groups)
    for name in names:
        monitor.on_hello(name, f"tcp://{name}")
    monitor.on_started(0.0)
    return monitor


ALL = ("0.0", "0.1", "1.0", "1.1", "shard")
LOSSES: dict[str, tuple[list[tuple[float, Event]], str, str]] = {
    "killed": ([(3.0, exits("1.0", -9))], "replica 1", "E602"),
    "an exit without a report": ([(3.0, exits("0.1", 3)), (3.1, alive(*ALL)), (4.0, passes)], "replica 0", "E603"),
    "silent": ([(0.0, alive("1.1")), (5.0, alive("0.0", "0.1", "1.0", "shard")), (5.1, passes)], "replica 1", "E606"),
    "a link within": ([(3.0, breaks("1.0", "1.1")), (3.1, alive(*ALL)), (4.0, passes)], "replica 1", "E514"),
    "a link to the shard": ([(3.0, breaks("shard", "0.1")), (3.1, alive(*ALL)), (4.0, passes)], "replica 0", "E514"),
    "a link to the launcher": (
        [(3.0, breaks("launcher", "0.1")), (3.1, alive(*ALL)), (4.0, passes)],
        "replica 0",
        "E514",
    ),
    "one waits in vain": ([(3.0, fails("1.1", SILENT)), (3.1, alive(*ALL)), (4.0, passes)], "replica 1", "E501"),
}


@pytest.mark.parametrize("story", LOSSES)
def test_a_group_is_lost_and_the_others_go_on(story: str) -> None:
    events, group, code = LOSSES[story]
    monitor = grouped()
    monitor.on_heartbeat("0.0", 0.0, 17)
    assert play(monitor, events)[1] is None
    (loss,) = monitor.take_losses()
    assert (loss.group, loss.error.code) == (group, code)
    lost = [name for name in ALL if name.startswith(group[-1])]
    assert list(loss.progress) == lost
    assert [name for name in ALL if monitor.is_replaced(name)] == lost
    assert monitor.take_losses() == []
    assert set(monitor.directory) == set(ALL) - set(lost)


@pytest.mark.parametrize(
    ("event", "code"), [(exits("shard", -9), "E602"), (fails("1.0", NAN), "E701"), (fails("1.0", BUG), "E605")]
)
def test_what_would_happen_again_and_the_loss_of_a_shard_end_the_run(event: Event, code: str) -> None:
    monitor = grouped()
    verdict = play(monitor, [(3.0, event)])[1]
    assert verdict is not None
    assert verdict.code == code
    assert monitor.take_losses() == []


def test_a_group_that_is_started_again_is_waited_for_and_watched() -> None:
    monitor = grouped()
    monitor.on_heartbeat("1.1", 2.0, "step 6")
    monitor.on_exited("1.0", 3.0, -9)
    assert monitor.take_losses()[0].progress == {"1.0": None, "1.1": "step 6"}
    monitor.join(["1.0+1", "1.1+1"], now=3.0, groups={"1.0+1": "replica 1", "1.1+1": "replica 1"})
    assert not monitor.all_ready
    monitor.on_hello("1.0+1", "tcp://new")
    assert (monitor.all_ready, monitor.newcomers) == (False, ["1.0+1"])
    monitor.on_hello("1.1+1", "tcp://new too")
    assert (monitor.all_ready, monitor.newcomers) == (True, ["1.0+1", "1.1+1"])
    monitor.on_started(4.0)
    assert (monitor.newcomers, monitor.running) == ([], ["0.0", "0.1", "shard", "1.0+1", "1.1+1"])
    monitor.on_exited("1.1+1", 5.0, -9)
    assert monitor.take_losses()[0].error.facts.startswith("1.1+1 was killed")


def test_a_group_that_does_not_come_back_in_time_ends_the_run() -> None:
    monitor = grouped()
    monitor.on_exited("1.0", 3.0, -9)
    monitor.join(["1.0+1"], now=3.0, groups={"1.0+1": "replica 1"})
    for now in range(4, 64):
        play(monitor, [(now, alive("0.0", "0.1", "shard"))])
    verdict = play(monitor, [(64.0, alive("0.0", "0.1", "shard"))])[1]
    assert verdict is not None
    assert verdict.facts == "1.0+1 not ready after 60 s"


def test_the_run_has_ended_when_all_but_the_replaced_have() -> None:
    monitor = grouped()
    monitor.on_exited("1.0", 3.0, -9)
    for name in ("0.0", "0.1", "shard"):
        monitor.on_finished(name, 4.0, None)
        monitor.on_exited(name, 4.0, 0)
    assert monitor.have_ended()


def test_a_role_that_was_dismissed_is_not_waited_for_nor_blamed() -> None:
    monitor = grouped()
    monitor.on_failed("1.0", 3.0, SILENT)  # which is suspect for a while
    monitor.retire(["1.0", "1.1"])
    assert monitor.is_replaced("1.0")
    monitor.on_exited("1.0", 3.0, -9)
    for name in ("0.0", "0.1", "shard"):
        monitor.on_finished(name, 4.0, None)
        monitor.on_exited(name, 4.0, 0)
    monitor.tick(9.0)
    assert (monitor.verdict, monitor.take_losses()) == (None, [])
    assert monitor.have_ended()


def test_a_role_that_tells_nothing_for_a_while_is_not_stuck_and_its_steps_are_not_forgotten() -> None:
    """As in a test, which may take long."""
    monitor = grouped()
    play(monitor, [(0.5, alive("0.0", "0.1", "1.1", "shard")), (1.0, alive("1.0", progress=7))])
    for now in range(2, 202):
        verdict = play(monitor, [(float(now), alive("0.0", "0.1", "1.0", "1.1", "shard"))])[1]
        assert verdict is None
    for now in range(202, 322):
        play(monitor, [(float(now), alive("0.0", "0.1", "1.1", "shard")), (float(now), alive("1.0", progress=7))])
    assert monitor.take_losses() == []
    play(monitor, [(324.0, alive("0.0", "0.1", "1.1", "shard")), (324.0, alive("1.0", progress=7))])
    (loss,) = monitor.take_losses()
    assert (loss.error.code, loss.progress["1.0"]) == ("E607", 7)
