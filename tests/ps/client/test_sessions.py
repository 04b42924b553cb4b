"""A shard that answers nothing is noticed, whatever the others say meanwhile."""

import itertools
import math

import pytest
import torch
from client_bench import Bench, ramp

from cutset.runtime.channel.channel import SilenceError
from cutset.runtime.channel.message import Message


def bench_with_one_loss(**options):
    """A push that shard 1 has answered and shard 0 never got; from now on, shard 1 says something at every look."""
    seconds = itertools.count()
    bench = Bench(clock=lambda: float(next(seconds)), **options)
    [client] = bench.clients
    client.put()
    bench.pump()
    client.push(ramp(), 0)
    while bench.channels[0].poll() is not None:
        pass  # lost
    bench.pump(shard=1)
    mailbox = client._sessions.mailbox
    wait_next, mailbox.timeout_s = mailbox.wait_next, 20.0

    def wait(*, timeout_s):
        notice = Message("durable", body={"numbers": {}, "failing": False})
        bench.channels[1].send(client.name, notice)
        bench.pump(shard=0)
        wait_next(timeout_s=timeout_s)

    mailbox.wait_next = wait
    return bench, client


def test_what_one_shard_does_not_answer_is_sent_again_although_another_speaks():
    bench, client = bench_with_one_loss(retransmit_s=5.0)
    client.drain()
    assert torch.equal(bench.values(), ramp(-0.5))
    assert client.statistics()["repeats"] == 1  # shard 1 was not asked again


def test_the_shard_that_does_not_answer_is_named_although_another_speaks():
    _, client = bench_with_one_loss(retransmit_s=1000.0)
    with pytest.raises(SilenceError, match=r"waited 20 s and no answer of shard-0 came; wanted: push_ack of shard-0"):
        client.drain()


def test_a_shard_that_took_the_place_of_another_is_silent_only_since_then():
    bench, client = bench_with_one_loss(retransmit_s=1000.0)
    launcher = bench.network.channel("launcher")
    bench.shards[0].handle = lambda message: []  # it hangs
    clock, mailbox = client._sessions._clock, client._sessions.mailbox
    wait, began = mailbox.wait_next, clock()

    def replace_once(*, timeout_s):
        if clock() - began > 15 and not replaced:
            replaced.append(clock())
            launcher.send(client.name, Message("shard_replaced", body={"shard": 0, "name": "shard-0"}))
        wait(timeout_s=timeout_s)

    replaced = []
    mailbox.wait_next = replace_once
    with pytest.raises(SilenceError, match="no answer of shard-0 came"):
        client.drain()
    assert clock() - replaced[0] >= 20


def test_a_wait_that_ends_a_rounding_too_early_has_ended():
    now, waits = 0.1, 0
    bench = Bench(retransmit_s=5.0, clock=lambda: now)
    [client] = bench.clients
    client.put()
    mailbox = client._sessions.mailbox
    mailbox.timeout_s = 20.0

    def wait(*, timeout_s):
        nonlocal now, waits
        now, waits = math.nextafter(now + timeout_s, 0), waits + 1
        raise SilenceError("E501", "nothing came")

    mailbox.wait_next = wait
    with pytest.raises(SilenceError, match="waited 20 s and no answer of shard-0, shard-1 came"):
        client.drain()
    assert waits == 4
    assert client.statistics()["repeats"] == 2 * 3
