"""No more is on its way between a client and its shards than it may be."""

import pytest
import torch
from client_bench import SIZE, Bench, ramp

from cutset.runtime.channel.channel import SilenceError
from cutset.runtime.channel.message import Message


def test_a_push_waits_for_acknowledgements():
    bench = Bench(unacknowledged=3)
    [client] = bench.clients
    client.put()
    for step in range(3):
        client.push(ramp(), step)
    with pytest.raises(SilenceError, match="push_ack of shard-0"):
        client.push(ramp(), 3)
    bench.pump(messages=2)  # the put and one push
    client.push(ramp(), 3)
    with pytest.raises(SilenceError):
        client.drain()
    bench.pump()
    client.drain()
    assert torch.equal(bench.values(), ramp(-2.0))


def test_an_exchange_larger_than_the_window_installs_slices_meanwhile():
    bench = Bench(shards=1, most=8, window_bytes=2 * 8 * 8)
    [client] = bench.clients
    channel, shard = bench.channels[0], bench.shards[0]
    for piece in (served.piece for served in shard._slice_servers.values()):
        shard.handle(Message("put", edge=piece.number, tensors=(vector_of(piece),), sender="worker-9.0"))
    waiting, most = client._sessions.mailbox.wait_next, 0

    def wait(*, timeout_s):
        nonlocal most
        most = max(most, len(client._fetcher._requested))
        bench.pump()
        return waiting(timeout_s=timeout_s)

    client._sessions.mailbox.wait_next = wait
    client.exchange(torch.ones(SIZE, dtype=torch.float64), 0)
    assert len(client._fetcher._requested) < 5  # some are there already
    client.wait()
    client.drain()
    assert 1 <= most <= 2
    assert torch.equal(client.values, ramp() - 0.5)
    assert channel.poll() is None


def vector_of(piece):
    """Initial values of a slice."""
    return ramp()[piece.start : piece.stop]


def test_fetches_stay_within_the_window():
    bench = Bench(shards=1, most=8, window_bytes=2 * 8 * 8)
    [client] = bench.clients
    for piece in (served.piece for served in bench.shards[0]._slice_servers.values()):
        values = ramp()[piece.start : piece.stop]
        bench.shards[0].handle(Message("put", edge=piece.number, tensors=(values,), sender="worker-9.0"))
    client.fetch()
    turns = 0
    while not client.install_arrived():
        asked = len(client._fetcher._requested)
        assert asked <= 2
        bench.pump()
        turns += 1
    assert turns == 3
    assert torch.equal(client.values, ramp())


def test_puts_stay_within_the_window():
    bench = Bench(shards=1, most=8, window_bytes=2 * 8 * 8)
    [client] = bench.clients
    client.values.copy_(ramp())
    with pytest.raises(SilenceError, match="wanted: put_ack of shard-0"):
        client.put()
    assert len(list(iter(bench.channels[0].poll, None))) == 2


def test_a_push_through_a_small_window_arrives_whole():
    bench = Bench(shards=2, most=8, window_bytes=8 * 8, replicas=1)
    [client] = bench.clients
    receive = client._sessions.mailbox.channel.receive

    def pumped(timeout_s):
        bench.pump(messages=1)
        return receive(timeout_s)

    client._sessions.mailbox.channel.receive = pumped
    client.put()
    client.push(ramp(), 0)
    client.push(ramp(), 1)
    client.drain()
    assert torch.equal(bench.values(), ramp(-1.0))
    assert client.in_flight == 0
