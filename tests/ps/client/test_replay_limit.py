"""How many pushes a client keeps, and how often it asks for a journal that has them."""

import pytest
from client_bench import Bench, ramp

from cutset.ps.client import sessions
from cutset.ps.client.client import Client
from cutset.ps.client.replay_limit import REPLAY_BYTES, choose_replay_bytes

GIB, MIB = 1 << 30, 1 << 20


@pytest.mark.parametrize(
    ("memory_bytes", "clients", "limit"),
    [(GIB, 1, REPLAY_BYTES), (4 * GIB, 1, 256 * MIB), (4 * GIB, 2, 128 * MIB), (64 * GIB, 2, 512 * MIB)],
)
def test_the_limit_is_a_part_of_the_memory_within_bounds(memory_bytes: int, clients: int, limit: int) -> None:
    assert choose_replay_bytes(memory_bytes, clients) == limit


def client_that_keeps(pushes: int, *, shards: int = 1) -> Client:
    """A client whose replay buffer is full with more than so many pushes; no shard answers."""
    bench = Bench(shards=shards, replay_bytes=pushes * ramp().nbytes, unacknowledged=100)
    [client] = bench.clients
    client.put()
    return client


def push_asking(client: Client, step: int, *, shard: int = 0) -> int:
    """Push, and return the number of the push that a shard is asked to make durable."""
    client.push(ramp(), step)
    [session] = [session for session in client._sessions if session.piece.shard == shard]
    asked: int = session.replay_buffer[-1][1].body["flush"]
    return asked


def test_it_asks_for_the_older_half_of_what_it_keeps_then_for_all_before_it_waits() -> None:
    client = client_that_keeps(8)
    assert [push_asking(client, step) for step in range(9)] == [0, 0, 0, 0, 2, 3, 3, 4, 9]
    assert client._sessions.is_full


@pytest.mark.parametrize("takes", [0, 1, 3])
def test_it_asks_for_one_journal_for_each_half_of_what_it_keeps(takes: int) -> None:
    """takes: pushes that are made while a journal is written."""
    client = client_that_keeps(8)
    [session], ends, begun, journals = client._sessions, -1, 0, 0
    for step in range(100):
        asked = push_asking(client, step)
        if begun and step >= ends:
            client._sessions._release_durable(session, begun)
            begun = 0
        if asked > max(begun, session.durable):
            begun, ends, journals = session.sent, step + takes + 1, journals + 1
    assert journals <= 100 / 4


@pytest.mark.parametrize(("takes", "kept_before"), [(1, 2), (3, 4), (7, 8)])
def test_it_keeps_more_where_journals_take_longer(
    monkeypatch: pytest.MonkeyPatch, takes: int, kept_before: int
) -> None:
    """takes: pushes that are made while a journal is written. kept_before: those kept when one is asked for at last."""
    monkeypatch.setattr(sessions, "REPLAY_BYTES", 4 * ramp().nbytes)
    client = client_that_keeps(16)
    [session] = client._sessions
    for step in range(30):
        if push_asking(client, step):
            kept = session.sent - session.durable - 1
            for late in range(takes):
                push_asking(client, step + late + 1)
            client._sessions._acknowledge(session, session.sent, session.sent)
    assert kept == kept_before


def test_a_shard_is_not_asked_for_what_another_one_has_yet_to_write() -> None:
    client = client_that_keeps(8, shards=2)
    asked = []
    for step in range(7):
        asked.append(push_asking(client, step))
        first, _ = client._sessions
        client._sessions._release_durable(first, first.sent)
    assert asked == [0] * 7
    assert client._sessions.needs_flush
    assert push_asking(client, 7, shard=1) == 4
