"""Workers ask for batches, and are answered as their replica is worth; what a lost one had goes to others."""

from typing import Any

from cutset.runtime.channel.message import Message
from cutset.tools.training.lease_server import HandingOut


class Asking:
    """Replicas of a number of machines, and what they are told."""

    def __init__(self, batches: int, *, machines: int = 1, replicas: int = 2) -> None:
        self.handing = HandingOut(batches, machines)
        for replica in range(replicas):
            self.handing.begin(replica, 0)

    def enter(self, replica: int, machine: int = 0, *, step: int = 0) -> int:
        self._take(replica, machine, Message("enter", body={"step": step}))
        (said,) = self.answers()
        assert said[:2] == (f"{replica}.{machine}", "entered")
        return int(said[2]["step"])

    def ask(self, replica: int, chunk: int, machine: int = 0, *, settled: int = 0, **body: Any) -> Any:
        """The first batch and how many, for one that need not wait."""
        self._take(
            replica,
            machine,
            Message("lease", edge=chunk, body={"idle": False, "settled": settled, "pace_s": None} | body),
        )
        said = [body for name, kind, body in self.answers() if name == f"{replica}.{machine}"]
        return (said[0]["first"], said[0]["count"]) if said else None

    def answers(self) -> list[tuple[str, str, dict[str, Any]]]:
        return [(name, message.kind, message.body) for name, message in self.handing.answers()]

    def _take(self, replica: int, machine: int, message: Message) -> None:
        self.handing.take(f"{replica}.{machine}", (replica, machine), message)


def test_the_machines_of_a_replica_get_the_same_answers() -> None:
    asking = Asking(100, machines=2)
    assert [asking.enter(0, m) for m in range(2)] == [0, 0]
    assert asking.ask(0, 0, 0, pace_s=1e-3) == (0, 12)
    assert asking.ask(1, 0, 0, pace_s=1e-3) == (12, 5)
    assert asking.ask(0, 0, 1, pace_s=1.0) == (0, 12)


def test_nonsense_for_a_pace_is_no_pace() -> None:
    asking = Asking(1000)
    for chunk, pace in enumerate([float("nan"), -1.0, "soon", float("inf"), None]):
        assert asking.ask(0, chunk, pace_s=pace) == (chunk, 1)


def test_done_is_what_all_machines_have_settled() -> None:
    asking = Asking(50, machines=2)
    for machine in range(2):
        asking.enter(0, machine)
        asking.ask(0, 0, machine, pace_s=1e-3)
    asking.handing.settled((0, 0), 5)
    assert asking.handing.statistics()["taken"] == {}
    asking.handing.settled((0, 1), 3)
    assert asking.handing.statistics() == {"batches": 50, "taken": {"0": 3}, "repeated": {}}


def test_what_a_lost_replica_had_goes_to_one_that_is_idle() -> None:
    asking = Asking(2)
    for replica in range(2):
        asking.enter(replica)
        assert asking.ask(replica, 0) == (replica, 1)
    assert [asking.ask(replica, 1) for replica in range(2)] == [(0, 0)] * 2
    assert asking.ask(0, 2, idle=True, settled=1) is None
    assert asking.handing.lost(1, [((1, 0), 0)]) == 1
    assert asking.answers() == [("0.0", "leased", {"first": 1, "count": 1})]
    assert asking.ask(0, 3, settled=2) == (0, 0)
    assert asking.handing.over
    assert asking.ask(0, 4, idle=True, settled=2) == (0, 0)
    assert asking.handing.statistics() == {"batches": 2, "taken": {"0": 2}, "repeated": {"1": 1}}


def test_steps_that_were_settled_when_it_was_lost_are_not_repeated() -> None:
    asking = Asking(200)
    asking.enter(0)
    (first, count) = asking.ask(0, 0, pace_s=1e-3)
    assert asking.handing.lost(0, [((0, 0), 7)]) == count - 7
    asking.handing.begin(0, 1)
    assert asking.enter(0, step=9) == 9
    assert asking.ask(0, 0, pace_s=1e-3)[0] == first + 7
    asking.handing.settled((0, 0), 12)
    assert asking.handing.statistics()["taken"] == {"0": 10}


def test_the_machines_of_a_replica_begin_with_the_step_that_the_first_has_named() -> None:
    asking = Asking(1000, machines=2)
    assert asking.enter(0, 1, step=40) == 40
    assert asking.enter(0, 0, step=60) == 40


def test_one_that_is_asked_to_leave_ends_though_others_go_on() -> None:
    asking = Asking(10)
    asking.enter(1)
    assert asking.ask(1, 0) == (0, 1)
    asking.handing.leave(1)
    assert asking.ask(1, 1) == (0, 0)
    assert asking.ask(1, 2, idle=True, settled=1) == (0, 0)
    assert not asking.handing.over


def test_the_questions_of_a_lost_replica_are_not_answered() -> None:
    asking = Asking(1)
    asking.ask(0, 0)
    asking.enter(1)
    assert asking.ask(1, 0) == (0, 0)
    assert asking.ask(1, 1, idle=True) is None
    asking.handing.lost(1)
    asking.handing.lost(0)
    assert asking.answers() == []
