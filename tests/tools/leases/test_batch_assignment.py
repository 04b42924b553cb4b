"""Workers learn their batches step by step: in turn, or as they are leased, and none is left out or done twice."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.runtime.channel.message import LAUNCHER, Message
from cutset.tools.job.process_specs import TrainingSpec
from cutset.tools.leases.batch_assignment import LeasedBatches, RoundRobinBatches
from cutset.tools.leases.batch_leases import BatchLeases
from cutset.tools.leases.lease_server import LeaseServer, WorkerId
from cutset.tools.task.load_task import TaskSpec

COURSE = TrainingSpec(
    TaskSpec("none"), batch=8, micro_batch=8, seed=0, replicas=3, steps=4, evaluate_every=2, folder="nowhere"
)
Life = Callable[[LeasedBatches, Any], None]


def run(
    batches: int, lives: dict[str, Life], *, machines: int = 1, pace_s: float = 0.001
) -> tuple[LeaseServer, dict[str, Any]]:
    """Workers "replica.machine" live with what they are leased, until all have ended; what they return."""
    server, ended = LeaseServer(BatchLeases(batches), machines), 0
    workers = {name: WorkerId(*map(int, name.split("."))) for name in lives}
    for replica in {worker.replica for worker in workers.values()}:
        server.register(replica, 0)

    def launcher(channel: Any) -> None:
        nonlocal ended
        while ended < len(lives):
            message = channel.receive(30.0)
            if message.kind == "ended":
                ended += 1
            else:
                server.handle(message.sender, workers[message.sender], message)
            for name, answer in server.take_replies():
                channel.send(name, answer)

    def role(life: Life) -> Callable[[Any], Any]:
        def lives_on(channel: Any) -> Any:
            made = [0]  # steps
            try:
                return life(
                    LeasedBatches(Mailbox(channel, timeout_s=30.0), 0, lambda: made[0], clock=lambda: pace_s * made[0]),
                    made,
                )
            finally:
                channel.send(LAUNCHER, Message("ended"))

        return lives_on

    roles = {name: role(life) for name, life in lives.items()}
    return server, MemoryNetwork().run({**roles, LAUNCHER: launcher})


def takes_all(assignment: LeasedBatches, made: list[int]) -> list[int]:
    """Trains as methods do: the next batch is asked for before a step is made."""
    found, more = [], True
    while more:
        step = assignment.start_step
        number = assignment.batch_at(step)
        while number is not None:
            following = assignment.batch_at(step + 1)
            assert assignment.count_reached(step) == number + 1
            found.append(number)
            step, number = step + 1, following
            made[0] = step
        more = assignment.wait_for_more()
    return found


def test_round_robin_gives_replica_r_every_nth_batch_from_r() -> None:
    assignment = RoundRobinBatches(COURSE, replica=1, start_step=2)
    assert assignment.start_step == 2
    assert [assignment.batch_at(step) for step in range(5)] == [1, 4, 7, 10, None]
    assert [assignment.count_reached(step) for step in range(4)] == [3, 6, 9, 12]
    assert not assignment.wait_for_more()


@pytest.mark.parametrize("batches", [0, 1, 2, 500])
def test_a_lone_replica_takes_all_in_order(batches: int) -> None:
    server, found = run(batches, {"0.0": takes_all})
    assert found["0.0"] == list(range(batches))
    assert server.all_done


def test_several_replicas_together_compute_all_batches() -> None:
    server, found = run(600, {f"{replica}.0": takes_all for replica in range(3)})
    assert sorted(number for mine in found.values() if mine for number in mine) == list(range(600))
    assert server.statistics()["completed"] == {name[0]: len(mine) for name, mine in sorted(found.items()) if mine}
    assert server.all_done


def look_ahead(far: int, *, batches: int, patience_s: float) -> Life:
    """Return a life that returns, for each step from the third on, what it sees so far ahead if it waits a while."""

    def life(assignment: LeasedBatches, made: list[int]) -> list[int | None]:
        seen, step = list[int | None](), assignment.start_step
        while assignment.batch_at(step) is not None:
            end = time.monotonic() + (patience_s if step > 1 else 0)
            while (later := assignment.peek(step + far)) is None and step + far < batches and time.monotonic() < end:
                assignment.peek(step + 1)
            seen.append(later)
            step += 1
            made[0] = step
        return seen[2:]

    return life


def test_batches_to_be_read_ahead_are_leased_before_they_are_due() -> None:
    _, seen = run(40, {"0.0": look_ahead(6, batches=40, patience_s=30.0)})
    assert seen["0.0"] == [*range(8, 40), *[None] * 6]


def test_a_slow_replica_is_leased_no_more_than_two_processes_read() -> None:
    """Two batches ahead: with one, nothing is read beside it."""
    _, seen = run(10, {"0.0": look_ahead(3, batches=10, patience_s=0.02)}, pace_s=1.0)
    assert seen["0.0"] == [None] * 8
    _, seen = run(10, {"0.0": look_ahead(2, batches=10, patience_s=30.0)}, pace_s=1.0)
    assert seen["0.0"] == [*range(4, 10), None, None]


def test_the_machines_of_a_replica_take_the_same() -> None:
    _, found = run(300, {f"{r}.{m}": takes_all for r in range(2) for m in range(2)}, machines=2)
    for replica in range(2):
        assert found[f"{replica}.0"] == found[f"{replica}.1"]
    assert sorted(found["0.0"] + found["1.0"]) == list(range(300))


def test_a_worker_that_is_three_times_slower_takes_a_third() -> None:
    """Its clock is what its pace is known by, and it waits until the other has done three steps for one of its own."""
    ahead, done = threading.Condition(), {"fast": 0, "slow": 0, "over": 0}

    def pace(name: str) -> Life:
        def life(assignment: LeasedBatches, made: list[int]) -> list[int]:
            found, step = [], assignment.start_step
            number = assignment.batch_at(step)
            while number is not None:
                following = assignment.batch_at(step + 1)
                with ahead:
                    if name == "slow":
                        assert ahead.wait_for(lambda: done["over"] or done["fast"] >= 3 * done["slow"] + 3, timeout=30)
                    else:
                        assert ahead.wait_for(lambda: done["over"] or done["slow"] * 3 + 6 > done["fast"], timeout=30)
                    done[name] += 1
                    ahead.notify_all()
                found.append(number)
                step, number = step + 1, following
                made[0] = step
            with ahead:
                done["over"] = 1
                ahead.notify_all()
            assert not assignment.wait_for_more()
            return found

        return life

    server, found = run(400, {"0.0": pace("fast"), "1.0": pace("slow")})
    assert sorted(found["0.0"] + found["1.0"]) == list(range(400))
    assert len(found["1.0"]) == pytest.approx(100, abs=8)
    assert server.statistics()["completed"] == {"0": len(found["0.0"]), "1": len(found["1.0"])}
