"""Workers ask for batches, and are answered as their replica is worth; what a lost one had goes to others."""

from typing import Any

from cutset.runtime.channel.message import Message
from cutset.tools.leases.batch_leases import BatchLeases
from cutset.tools.leases.lease_server import LeaseServer, WorkerId


class Replicas:
    """Replicas of a number of machines, and what they are told."""

    def __init__(self, batches: int, *, machines: int = 1, replicas: int = 2) -> None:
        self.server = LeaseServer(BatchLeases(batches), machines)
        for replica in range(replicas):
            self.server.register(replica, 0)

    def join(self, replica: int, machine: int = 0, *, step: int = 0) -> int:
        self._take(replica, machine, Message("join", body={"step": step}))
        (reply,) = self.answers()
        assert reply[:2] == (f"{replica}.{machine}", "joined")
        return int(reply[2]["step"])

    def request(self, replica: int, number: int, machine: int = 0, *, acknowledged: int = 0, **body: Any) -> Any:
        """The first batch and how many, for one that need not wait."""
        self._take(
            replica,
            machine,
            Message(
                "lease_request", edge=number, body={"idle": False, "acknowledged": acknowledged, "pace_s": None} | body
            ),
        )
        replies = [body for name, kind, body in self.answers() if name == f"{replica}.{machine}"]
        return (replies[0]["first"], replies[0]["count"]) if replies else None

    def lose(self, replica: int, steps: dict[int, int] | None = None) -> int:
        """Return how many batches are leased again. steps: by slice, what it has of the replica."""
        start = self.server.lose(replica)
        return self.server.reclaim(start, steps or {0: 0}) if start is not None else 0

    def answers(self) -> list[tuple[str, str, dict[str, Any]]]:
        return [(name, message.kind, message.body) for name, message in self.server.take_replies()]

    def _take(self, replica: int, machine: int, message: Message) -> None:
        self.server.handle(f"{replica}.{machine}", WorkerId(replica, machine), message)


def test_the_machines_of_a_replica_get_the_same_answers() -> None:
    replicas = Replicas(100, machines=2)
    assert [replicas.join(0, m) for m in range(2)] == [0, 0]
    assert replicas.request(0, 0, 0, pace_s=1e-3) == (0, 12)
    assert replicas.request(1, 0, 0, pace_s=1e-3) == (12, 5)
    assert replicas.request(0, 0, 1, pace_s=1.0) == (0, 12)


def test_the_machines_of_a_replica_are_told_the_same_progress() -> None:
    """They evaluate by it, together."""
    replicas = Replicas(100, machines=2)
    replicas._take(0, 0, Message("lease_request", edge=0, body={"idle": False, "acknowledged": 0}))
    [(_, _, first)] = replicas.answers()
    replicas.request(1, 0)
    replicas._take(0, 1, Message("lease_request", edge=0, body={"idle": False, "acknowledged": 0}))
    [(_, _, second)] = replicas.answers()
    assert first == second


def test_an_invalid_pace_is_ignored() -> None:
    replicas = Replicas(1000)
    for number, pace in enumerate([float("nan"), -1.0, "soon", float("inf"), None]):
        assert replicas.request(0, number, pace_s=pace) == (number, 1)


def test_batches_are_complete_when_all_machines_have_acknowledged_them() -> None:
    replicas = Replicas(50, machines=2)
    for machine in range(2):
        replicas.join(0, machine)
        replicas.request(0, 0, machine, pace_s=1e-3)
    replicas.server.acknowledge(WorkerId(0, 0), 5)
    assert replicas.server.statistics()["completed"] == {}
    replicas.server.acknowledge(WorkerId(0, 1), 3)
    assert replicas.server.statistics() == {"batches": 50, "completed": {"0": 3}, "recomputed": {}}


def test_batches_of_a_lost_replica_go_to_an_idle_one() -> None:
    replicas = Replicas(2)
    for replica in range(2):
        replicas.join(replica)
        assert replicas.request(replica, 0) == (replica, 1)
    assert [replicas.request(replica, 1) for replica in range(2)] == [(0, 0)] * 2
    assert replicas.request(0, 2, idle=True, acknowledged=1) is None
    assert replicas.lose(1) == 1
    assert replicas.answers() == [("0.0", "lease", {"first": 1, "count": 1, "skips": (), "begun": 1})]
    assert replicas.request(0, 3, acknowledged=2) == (0, 0)
    assert replicas.server.all_done
    assert replicas.request(0, 4, idle=True, acknowledged=2) == (0, 0)
    assert replicas.server.statistics() == {"batches": 2, "completed": {"0": 2}, "recomputed": {"1": 1}}


def test_nobody_gets_the_batches_of_a_lost_replica_until_it_is_known_what_the_slices_have() -> None:
    replicas = Replicas(1)
    replicas.join(0)
    assert replicas.request(0, 0) == (0, 1)
    start = replicas.server.lose(0)
    assert start == (0, 0)
    replicas.join(1)
    assert replicas.request(1, 0) == (0, 0)
    assert replicas.request(1, 1, idle=True) is None
    assert not replicas.server.all_done
    replicas.server.reclaim(start, {0: 1, 1: 0})
    assert replicas.answers() == [("1.0", "lease", {"first": 0, "count": 1, "skips": (0,), "begun": 0})]


def test_batches_that_all_slices_have_are_complete() -> None:
    replicas = Replicas(1)
    replicas.join(0, step=5)
    assert replicas.request(0, 0) == (0, 1)
    assert replicas.lose(0, {0: 6, 1: 6}) == 0
    assert replicas.server.all_done
    assert replicas.server.statistics() == {"batches": 1, "completed": {"0": 1}, "recomputed": {}}


def test_durable_steps_of_a_lost_replica_are_not_recomputed() -> None:
    replicas = Replicas(200)
    replicas.join(0)
    (first, count) = replicas.request(0, 0, pace_s=1e-3)
    replicas.server.acknowledge(WorkerId(0, 0), 7)
    assert replicas.lose(0) == count - 7
    replicas.server.register(0, 1)
    assert replicas.join(0, step=9) == 9
    assert replicas.request(0, 0, pace_s=1e-3)[0] == first + 7
    replicas.server.acknowledge(WorkerId(0, 0), 12)
    assert replicas.server.statistics()["completed"] == {"0": 10}


def test_all_machines_of_a_replica_start_with_the_step_of_the_first_to_join() -> None:
    replicas = Replicas(1000, machines=2)
    assert replicas.join(0, 1, step=40) == 40
    assert replicas.join(0, 0, step=60) == 40


def test_a_retired_replica_ends_while_others_continue() -> None:
    replicas = Replicas(10)
    replicas.join(1)
    assert replicas.request(1, 0) == (0, 1)
    replicas.server.retire(1)
    assert replicas.request(1, 1) == (0, 0)
    assert replicas.request(1, 2, idle=True, acknowledged=1) == (0, 0)
    assert not replicas.server.all_done


def test_the_requests_of_a_lost_replica_are_not_answered() -> None:
    replicas = Replicas(1)
    replicas.request(0, 0)
    replicas.join(1)
    assert replicas.request(1, 0) == (0, 0)
    assert replicas.request(1, 1, idle=True) is None
    replicas.lose(1)
    replicas.lose(0)
    assert replicas.answers() == []
