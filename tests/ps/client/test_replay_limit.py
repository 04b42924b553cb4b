"""How many pushes a client keeps, and how often it asks for a journal that has them."""

import pytest
from client_bench import Bench, ramp

from cutset.ps.client.client import Client
from cutset.ps.client.replay_limit import REPLAY_BYTES, choose_replay_bytes

GIB, MIB = 1 << 30, 1 << 20


@pytest.mark.parametrize(
    ("memory_bytes", "limit"), [(GIB, REPLAY_BYTES), (4 * GIB, 128 * MIB), (8 * GIB, 256 * MIB), (64 * GIB, 512 * MIB)]
)
def test_the_limit_is_a_part_of_the_memory_within_bounds(memory_bytes: int, limit: int) -> None:
    assert choose_replay_bytes(memory_bytes) == limit


def client_that_keeps(pushes: int) -> tuple[Bench, Client]:
    """A client of one slice whose replay buffer is full with more than so many pushes; none of them is durable."""
    bench = Bench(shards=1, replay_bytes=pushes * ramp().nbytes, unacknowledged=100)
    [client] = bench.clients
    client.put()
    return bench, client


def test_it_asks_for_half_of_what_it_keeps_then_for_all_before_it_waits() -> None:
    bench, client = client_that_keeps(8)
    asked = []
    for step in range(9):
        client.push(ramp(), step)
        asked.append(client._sessions.first.replay_buffer[-1][1].body["flush"])
    assert asked == [0, 0, 0, 0, 3, 3, 4, 4, 9]
    assert client._sessions.is_full
    bench.pump()


def test_it_asks_for_one_journal_for_each_half_of_what_it_keeps() -> None:
    _, client = client_that_keeps(8)
    [session], journals, begun = list(client._sessions), 0, 0
    for step in range(100):
        client.push(ramp(), step)
        number, message = session.replay_buffer[-1]
        if message.body["flush"] > begun:  # the journal before was written while the last push was made
            client._sessions._release_durable(session, begun)
            begun, journals = number, journals + 1
    assert journals <= 100 / 4
