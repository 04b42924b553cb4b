"""What a client puts, fetches and pushes, and how long it waits."""

import pytest
import torch
from client_bench import Bench, ramp

from cutset.errors import NetworkError
from cutset.ps.client.client import Client
from cutset.ps.slices.slicing import slice_parameters
from cutset.runtime.channel.channel import SilenceError
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.runtime.channel.message import Message


@pytest.mark.parametrize("copies", [False, True])
def test_put_then_fetch(copies):
    bench = Bench(replicas=2, copies=copies)
    first, second = bench.clients
    first.values.copy_(ramp())
    second.fetch()
    bench.pump()
    assert not second.install_arrived()
    first.put()
    first.values.zero_()
    bench.pump()
    second.wait()
    assert torch.equal(second.values, ramp())
    assert not second.is_fetching


def test_fetch_returns_at_once_and_slices_arrive_apart():
    bench = Bench()
    [client] = bench.clients
    client.values.fill_(1.0)
    client.put()
    client.values.zero_()
    client.fetch()
    assert not client.install_arrived()
    bench.pump(shard=1)
    assert not client.install_arrived()
    assert client.values.unique(return_counts=True)[1].tolist() == [16, 24]
    bench.pump(shard=0)
    assert client.install_arrived()
    assert (client.values == 1).all()
    client.wait()  # nothing is under way: returns


def test_a_second_fetch_while_one_is_under_way_is_a_bug():
    [client] = Bench().clients
    client.fetch()
    with pytest.raises(RuntimeError, match=r"worker-0\.0 fetches while a fetch is under way"):
        client.fetch()


def test_pushed_gradients_are_copies():
    bench = Bench()
    [client] = bench.clients
    gradient = ramp()
    client.put()
    client.push(gradient, 0)
    gradient.zero_()
    bench.pump()
    assert torch.equal(bench.values(), ramp(-0.5))


@pytest.mark.parametrize("wholes", [0, 1, 2])
def test_donated_gradients_are_kept_whole_up_to_a_limit(wholes):
    bench = Bench()
    [client] = bench.clients
    client._donated_bytes = (wholes + 1) * ramp().nbytes - 1
    gradient = ramp()
    client.put()
    client.push(gradient, 0, donate=True)
    client.exchange(gradient, 1, donate=True)
    kept = [
        [tensor.data_ptr() for _, message in line.replay_buffer for tensor in message.tensors]
        for line in client._sessions
    ]
    own = range(gradient.data_ptr(), gradient.data_ptr() + gradient.nbytes)
    assert [[address in own for address in addresses] for addresses in kept] == [[wholes > 0, wholes > 1]] * 2
    bench.pump()
    client.wait()
    client.drain()
    assert torch.equal(bench.values(), ramp(-1.0))


def test_drain_does_not_take_a_repeated_acknowledgement_for_another():
    bench = Bench(shards=1)
    [client] = bench.clients
    client.put()
    client.push(ramp(), 0)
    bench.pump()
    client.push(ramp(), 1)
    bench.channels[0].send("worker-0.0", Message("push_ack", body={"version": 1, "number": 1, "durable": 1}))
    with pytest.raises(SilenceError):
        client.drain()
    bench.pump()
    client.drain()


def test_drain_waits_again_for_a_shard_that_is_replaced_while_it_waits_for_another():
    bench = Bench(shards=2)
    bench.network.channel("shard-0b")
    [client] = bench.clients
    client.put()
    client.push(ramp(), 0)
    arrived = Message("push_ack", body={"version": 1, "number": 1, "durable": 0})
    for message in (Message("put_ack"), arrived):
        bench.channels[0].send("worker-0.0", message)
    client.collect_acknowledgements()
    replaced = Message("shard_replaced", body={"shard": 0, "name": "shard-0b"})
    bench.network.channel("launcher").send("worker-0.0", replaced)
    bench.pump(shard=1)
    with pytest.raises(SilenceError, match="push_ack of shard-0b"):
        client.drain()


def test_an_acknowledgement_of_what_was_not_pushed_is_named():
    bench = Bench(shards=1)
    [client] = bench.clients
    client.put()
    client.push(ramp(), 0)
    bench.channels[0].send("worker-0.0", Message("push_ack", body={"version": 2, "number": 2, "durable": 2}))
    with pytest.raises(NetworkError, match=r"worker-0\.0: shard-0 acknowledges push 2; the last was 1"):
        client.drain()


def test_an_exchange_requests_each_slice_with_its_push():
    bench = Bench(shards=1, most=8)
    [client] = bench.clients
    client.put()
    bench.pump()
    client.drain()
    client.exchange(ramp(), 0)
    gradient, messages = ramp(), list(iter(bench.channels[0].poll, None))
    assert [(m.kind, m.edge, m.body["fetch"]["step"]) for m in messages] == [("push", n, 1) for n in range(5)]
    for message in messages:
        for peer, reply in bench.shards[0].handle(message):
            bench.channels[0].send(peer, reply)
    client.wait()
    assert torch.equal(client.values, gradient * -0.5)
    assert all("fetch" not in message.body for line in client._sessions for _, message in line.replay_buffer)
    client.exchange(ramp(), 1)
    with pytest.raises(RuntimeError, match="under way"):
        client.exchange(ramp(), 2)


def test_a_fetch_that_waits_for_peers_has_a_longer_timeout():
    ticks = iter(range(100))
    bench = Bench(peer_timeout_s=5.0, clock=lambda: float(next(ticks)))
    [client] = bench.clients
    client.put()
    client.fetch(min_version=1)
    with pytest.raises(SilenceError, match=r"waited 5 s .*waits for other replicas"):
        client.wait()
    assert next(ticks) == 7  # it looked at the clock at the start and after each silence


def test_statistics():
    now = 0.0
    bench = Bench(clock=lambda: now)
    [client] = bench.clients
    mailbox = client._sessions.mailbox
    wait_next = mailbox.wait_next

    def wait(*, timeout_s):
        nonlocal now
        now += 2.0
        bench.pump()
        wait_next(timeout_s=timeout_s)

    mailbox.wait_next = wait
    client.put()
    client.fetch()
    client.wait()
    client.push(ramp(), 0)
    client.drain()
    shards = {f"shard-{s}": {"bytes_in": 8 * n, "bytes_out": 16 * n} for s, n in enumerate([16, 24])}
    blocked = {"fetch_blocked_s": 2.0, "push_blocked_s": 4.0}  # two acknowledgements, one after the other
    counts = {"fetches": 1, "pushes": 1, "repeats": 0, "unsaved": 0}
    skew = {"fetches": 1, "mean": 0.0, "max": 0}
    assert client.statistics() == {**counts, **blocked, "skew": skew, "shards": shards}


def test_slices_must_cover_the_values():
    mailbox = Mailbox(MemoryNetwork().channel("worker-0.0"))
    with pytest.raises(ValueError, match="slices of 8 elements for 9 values"):
        Client(mailbox, slice_parameters([8], 1), torch.zeros(9), local_rate=0.0)


def test_a_machine_without_parameters_waits_for_nothing():
    client = Client(Mailbox(MemoryNetwork().channel("worker-0.0")), [], torch.zeros(0), local_rate=0.1)
    client.put()
    client.fetch()
    client.wait()
    client.push(torch.zeros(0), 0)
    client.drain()


def test_a_step_is_durable_once_its_pushes_are_on_all_shards():
    bench = Bench(shards=2)
    (client,) = bench.clients
    client.put()
    bench.pump()
    for step in (4, 5):
        client.push(ramp(), step)
    bench.pump(0)
    client.push(ramp(), 6)
    assert client.durable_step == 0
    bench.pump(1, 1)
    client.push(ramp(), 7)
    assert client.durable_step == 5
    bench.pump()
    client.drain()
    assert client.durable_step == 8


def test_a_join_returns_a_step_that_suits_all_slices():
    bench = Bench(shards=2)
    (client,) = bench.clients
    with pytest.raises(SilenceError):
        client.join(2)  # nobody answers it yet
    bench.shards[1].handle(Message("join", step=7, edge=1, body={"replica": 0}))
    bench.pump()
    assert client.join(2) == 7


def test_a_durable_push_counts_as_acknowledged():
    bench = Bench(shards=1)
    [client] = bench.clients
    client.put()
    bench.pump()
    client.push(ramp(), 0)
    body = {"numbers": {"0": 1}, "failing": False}
    bench.channels[0].send("worker-0.0", Message("durable", body=body))
    client.drain()  # nothing is kept that could be said again
    assert (client.in_flight, client.durable_step) == (0, 1)


def test_fetched_values_acknowledge_the_put():
    bench = Bench(shards=1)
    [client] = bench.clients
    client.put()
    client.fetch()
    body = {"version": 0, "applied": 0, "durable": 0}
    bench.channels[0].send("worker-0.0", Message("values", step=1, edge=0, body=body, tensors=(ramp(),)))
    client.wait()
    client.drain()


def test_values_acknowledge_the_pushes_that_they_contain():
    bench = Bench(shards=1, most=8)
    [client] = bench.clients
    client.put()
    bench.pump()
    client.drain()
    client.exchange(ramp(), 0)
    kinds = [
        reply.kind
        for message in iter(bench.channels[0].poll, None)
        for peer, reply in bench.shards[0].handle(message)
        for _ in [bench.channels[0].send(peer, reply)]
    ]
    assert kinds == ["values"] * 5
    client.wait()
    client.drain()
    assert (client.in_flight, client.durable_step) == (0, 1)


def test_values_of_an_earlier_fetch_or_another_role_are_not_installed():
    bench = Bench(shards=1)
    [client] = bench.clients
    client.put()
    bench.pump()
    client.fetch()
    body = {"version": 9, "applied": 0, "durable": 0}
    stale = Message("values", step=0, body=body, tensors=(ramp(9.0),))
    bench.channels[0].send("worker-0.0", stale)
    bench.network.channel("shard-7").send("worker-0.0", Message("values", 1, body=body, tensors=(ramp(7.0),)))
    bench.pump()
    client.wait()
    assert torch.equal(client.values, ramp(0.0))


def test_values_that_a_replaced_shard_sent_are_asked_for_again():
    bench = Bench(shards=1)
    [client] = bench.clients
    client.put()
    bench.pump()
    client.fetch()
    bench.pump()
    launcher, replacing = bench.network.channel("launcher"), bench.network.channel("shard-0b")
    launcher.send("worker-0.0", Message("shard_replaced", body={"shard": 0, "name": "shard-0b"}))
    with pytest.raises(SilenceError, match="values of shard-0b"):
        client.wait()
    assert "fetch" in [message.kind for message in iter(replacing.poll, None)]
