"""Whatever a lost replica had pushed, and wherever: every slice gets every batch once."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.ps.slices.slicing import ParameterSlice
from cutset.runtime.channel.message import Message
from cutset.tools.leases.batch_leases import BatchLeases, Lease
from cutset.tools.leases.fences import Fences

SLICES = [ParameterSlice(number=n, machine=n // 2, start=0, stop=1, shard=n % 2) for n in range(4)]
WORKERS = {"worker-1.0": 0, "worker-1.1": 1}
SHARDS = {0: "shard-0", 1: "shard-1"}


def reply(client: str, **steps: int) -> Message:
    return Message("fenced", body={"client": client, "steps": {name[1:]: count for name, count in steps.items()}})


def test_what_the_slices_have_is_known_once_all_shards_have_replied_for_all_machines() -> None:
    fences = Fences(SLICES)
    fences.add((1, 0), WORKERS)
    told = fences.take_messages(SHARDS)
    assert [(name, message.body["client"]) for name, message in told] == [
        (n, w) for n in SHARDS.values() for w in WORKERS
    ]
    assert fences.take_messages(SHARDS) == []
    fences.handle(reply("worker-1.0", s0=3, s2=0))
    fences.handle(reply("worker-1.1", s0=0, s2=4))
    fences.handle(reply("worker-1.0", s1=5, s3=0))
    assert fences.take_complete() == []
    fences.handle(reply("worker-1.1", s1=0, s3=6))
    assert fences.take_complete() == [((1, 0), {0: 3, 1: 5, 2: 4, 3: 6})]
    assert fences.take_complete() == []


def test_a_shard_that_takes_the_place_of_another_is_told_too() -> None:
    fences = Fences(SLICES)
    fences.add((1, 0), WORKERS)
    fences.take_messages({0: "shard-0"})  # the other one is missing
    assert [name for name, _ in fences.take_messages({0: "shard-0", 1: "shard-1+1"})] == ["shard-1+1"] * 2


@dataclass
class Run:
    """Slices that count what is applied to them, and the replicas' pushes to each, in order."""

    leases: BatchLeases
    applied: list[list[int]] = field(default_factory=lambda: [[0] * 30 for _ in SLICES])
    held: dict[tuple[int, int], list[Lease]] = field(default_factory=dict)

    def take(self, start: tuple[int, int]) -> None:
        held = self.held.setdefault(start, [])
        lease = self.leases.lease(start, len(held), pace_s=0.05)
        assert lease is not None
        held.append(lease)

    def lose(self, start: tuple[int, int], counts: list[int]) -> None:
        """counts: how many batches it had pushed to each slice."""
        batches = [(lease.first + n, lease.skips) for lease in self.held.pop(start, []) for n in range(lease.count)]
        for number, count in enumerate(counts):
            for batch, skips in batches[:count]:
                self.applied[number][batch] += number not in skips
        self.leases.reclaim(start, {number: min(count, len(batches)) for number, count in enumerate(counts)})


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 12), min_size=4, max_size=4)), max_size=12))
def test_every_slice_gets_every_batch_once(losses: list[tuple[int, list[int]]]) -> None:
    run = Run(BatchLeases(30))
    for incarnation, (replica, counts) in enumerate(losses):
        for other in range(3):
            run.take((other, 0))
            run.take((replica, incarnation + 1))
        run.lose((replica, incarnation + 1), counts)
    for replica in range(3):
        run.lose((replica, 0), [30] * 4)
    last = (9, 0)
    while run.leases.free_batches:
        run.take(last)
    run.lose(last, [1000] * 4)
    assert run.applied == [[1] * 30 for _ in SLICES]
    assert run.leases.all_done


@pytest.mark.parametrize("done", [0, 2, 5])
def test_what_was_durable_once_is_complete(done: int) -> None:
    leases = BatchLeases(40)
    assert leases.lease((0, 0), 0, pace_s=0.05) == Lease(0, 5)
    leases.complete((0, 0), done)
    assert leases.reclaim((0, 0), {0: 4, 1: 2}) == 5 - max(2, done)
    rest = [one for one in ((2, (0,)), (4, ())) if done <= one[0]] or [(5, ())]
    found = [leases.lease((1, n), 0, pace_s=1e-9) for n in range(len(rest))]
    assert [(lease.first, lease.skips) for lease in found if lease] == rest
