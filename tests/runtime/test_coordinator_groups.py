"""What becomes of a run whose roles are in groups: one that is lost is started again, the others go on."""

import pytest
from coordinator_events import BUG, LIMITS, NAN, SILENT, Event, alive, breaks, exits, fails, passes, play

from cutset.runtime.launcher.liveness import Coordinator


def grouped() -> Coordinator:
    """Two replicas of two workers, and a shard; only the replicas may be started again."""
    groups = {f"{r}.{m}": f"replica {r}" for r in range(2) for m in range(2)}
    names = [*groups, "shard"]
    coordinator = Coordinator(names, now=0.0, limits=LIMITS, groups=groups)
    for name in names:
        coordinator.hello(name, f"tcp://{name}")
    coordinator.started(0.0)
    return coordinator


ALL = ("0.0", "0.1", "1.0", "1.1", "shard")
LOSSES: dict[str, tuple[list[tuple[float, Event]], str, str]] = {
    "killed": ([(3.0, exits("1.0", -9))], "replica 1", "E602"),
    "an exit without a word": ([(3.0, exits("0.1", 3)), (3.1, alive(*ALL)), (4.0, passes)], "replica 0", "E603"),
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
    coordinator = grouped()
    coordinator.beacon("0.0", 0.0, 17)
    assert play(coordinator, events)[1] is None
    (loss,) = coordinator.take_losses()
    assert (loss.group, loss.error.code) == (group, code)
    lost = [name for name in ALL if name.startswith(group[-1])]
    assert list(loss.progress) == lost
    assert [name for name in ALL if coordinator.replaced(name)] == lost
    assert coordinator.take_losses() == []
    assert set(coordinator.directory) == set(ALL) - set(lost)


@pytest.mark.parametrize(
    ("event", "code"), [(exits("shard", -9), "E602"), (fails("1.0", NAN), "E701"), (fails("1.0", BUG), "E605")]
)
def test_what_would_happen_again_and_the_loss_of_a_shard_end_the_run(event: Event, code: str) -> None:
    coordinator = grouped()
    verdict = play(coordinator, [(3.0, event)])[1]
    assert verdict is not None
    assert verdict.code == code
    assert coordinator.take_losses() == []


def test_a_group_that_is_started_again_is_waited_for_and_watched() -> None:
    coordinator = grouped()
    coordinator.beacon("1.1", 2.0, "step 6")
    coordinator.exited("1.0", 3.0, -9)
    assert coordinator.take_losses()[0].progress == {"1.0": None, "1.1": "step 6"}
    coordinator.join(["1.0+1", "1.1+1"], now=3.0, groups={"1.0+1": "replica 1", "1.1+1": "replica 1"})
    assert not coordinator.ready
    coordinator.hello("1.0+1", "tcp://new")
    assert (coordinator.ready, coordinator.newcomers) == (False, ["1.0+1"])
    coordinator.hello("1.1+1", "tcp://new too")
    assert (coordinator.ready, coordinator.newcomers) == (True, ["1.0+1", "1.1+1"])
    coordinator.started(4.0)
    assert (coordinator.newcomers, coordinator.running) == ([], ["0.0", "0.1", "shard", "1.0+1", "1.1+1"])
    coordinator.exited("1.1+1", 5.0, -9)
    assert coordinator.take_losses()[0].error.facts.startswith("1.1+1 was killed")


def test_a_group_that_does_not_come_back_in_time_ends_the_run() -> None:
    coordinator = grouped()
    coordinator.exited("1.0", 3.0, -9)
    coordinator.join(["1.0+1"], now=3.0, groups={"1.0+1": "replica 1"})
    for now in range(4, 64):
        play(coordinator, [(now, alive("0.0", "0.1", "shard"))])
    verdict = play(coordinator, [(64.0, alive("0.0", "0.1", "shard"))])[1]
    assert verdict is not None
    assert verdict.facts == "1.0+1 not ready after 60 s"


def test_the_run_has_ended_when_all_but_the_replaced_have() -> None:
    coordinator = grouped()
    coordinator.exited("1.0", 3.0, -9)
    for name in ("0.0", "0.1", "shard"):
        coordinator.finished(name, 4.0, None)
        coordinator.exited(name, 4.0, 0)
    assert coordinator.ended()


def test_a_role_that_was_dismissed_is_not_waited_for_nor_blamed() -> None:
    coordinator = grouped()
    coordinator.failed("1.0", 3.0, SILENT)  # which is suspect for a while
    coordinator.dismiss(["1.0", "1.1"])
    assert coordinator.replaced("1.0")
    coordinator.exited("1.0", 3.0, -9)
    for name in ("0.0", "0.1", "shard"):
        coordinator.finished(name, 4.0, None)
        coordinator.exited(name, 4.0, 0)
    coordinator.tick(9.0)
    assert (coordinator.verdict, coordinator.take_losses()) == (None, [])
    assert coordinator.ended()


def test_a_role_that_tells_nothing_for_a_while_is_not_stuck_and_its_steps_are_not_forgotten() -> None:
    """As in a test, which may take long."""
    coordinator = grouped()
    play(coordinator, [(0.5, alive("0.0", "0.1", "1.1", "shard")), (1.0, alive("1.0", progress=7))])
    for now in range(2, 202):
        verdict = play(coordinator, [(float(now), alive("0.0", "0.1", "1.0", "1.1", "shard"))])[1]
        assert verdict is None
    for now in range(202, 322):
        play(coordinator, [(float(now), alive("0.0", "0.1", "1.1", "shard")), (float(now), alive("1.0", progress=7))])
    assert coordinator.take_losses() == []
    play(coordinator, [(324.0, alive("0.0", "0.1", "1.1", "shard")), (324.0, alive("1.0", progress=7))])
    (loss,) = coordinator.take_losses()
    assert (loss.error.code, loss.progress["1.0"]) == ("E607", 7)
