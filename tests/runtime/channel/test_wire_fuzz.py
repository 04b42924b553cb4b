"""Broken messages of a peer that holds a key: each is dropped and counted, or ends in one of the project's own errors.

A few thousand of them here; `make fuzz` sends a million to either inbox.
"""

import gc
import os
import resource
from collections.abc import Callable, Iterator

import pytest
import torch
import zmq
from wire_fuzz import JOB, SENDER, Breaker, attack

from cutset.errors import CutsetError
from cutset.ps.optimizers.standard import SGD
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.slices.slicing import ParameterSlice
from cutset.runtime.channel.curve import make_keys
from cutset.runtime.channel.mailbox import MAX_UNCLAIMED, Mailbox
from cutset.runtime.channel.message import Message
from cutset.runtime.channel.shared_memory import Arena
from cutset.runtime.channel.zmq_channel import ZmqChannel

COUNT = int(os.environ.get("CUTSET_FUZZ", "4000"))
GROWTH_BYTES = 300 << 20
KEYS = make_keys([SENDER, "b"])

pytestmark = pytest.mark.timeout(3600 if COUNT > 100_000 else 120)


@pytest.fixture
def channel() -> Iterator[ZmqChannel]:
    with ZmqChannel("b", JOB, KEYS["b"]) as found, ZmqChannel(SENDER, JOB, KEYS[SENDER]) as peer:
        found.introduce({SENDER: peer.endpoint})
        yield found


@pytest.fixture
def arena() -> Iterator[Arena]:
    found = Arena(64 << 20)
    yield found
    found.close()


def worker(channel: ZmqChannel) -> Callable[[Message], object]:
    """A mailbox as a worker has it; full, it would end the worker, and here it is emptied before that."""
    mailbox = Mailbox(channel)

    def handle(message: Message) -> None:
        if mailbox._count == MAX_UNCLAIMED // 8:
            mailbox._kept.clear()
            mailbox._count = 0
        mailbox._keep(message)

    return handle


def shard(_channel: ZmqChannel) -> Callable[[Message], object]:
    found = Shard(
        0, [ParameterSlice(0, 0, 0, 8, number=0), ParameterSlice(0, 2, 8, 16, number=2)], ServingConfig(SGD(lr=0.1))
    )
    found.handle(Message("put", edge=0, tensors=(torch.ones(8),), sender=SENDER))
    return found.handle


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("role", [worker, shard])
@pytest.mark.run
def test_nothing_but_our_own_errors_comes_of_broken_messages(
    role: Callable[[ZmqChannel], Callable[[Message], object]], channel: ZmqChannel, arena: Arena
) -> None:
    before = memory()
    tally = attack(channel, arena, role(channel), count=COUNT, seed=COUNT)
    gc.collect()
    assert memory() - before < GROWTH_BYTES
    assert tally.counts["taken"] > COUNT // 400, tally
    assert tally.counts["dropped"] > COUNT // 20, tally
    assert sum(tally.counts.values()) == COUNT
    assert channel.statistics()[SENDER]["malformed"] > COUNT // 20
    assert set(channel.statistics()) <= {SENDER, f"{SENDER}#heartbeat"}


def test_the_inbox_itself_outlives_broken_messages(channel: ZmqChannel, arena: Arena) -> None:
    """The same over a real connection, whose frames libzmq has cut out of a stream."""
    breaker, count = Breaker(1, arena), 400
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 5000
        dealer.curve_serverkey = KEYS["b"].public.encode()
        dealer.curve_publickey, dealer.curve_secretkey = KEYS[SENDER].public.encode(), KEYS[SENDER].secret.encode()
        dealer.connect(channel.endpoint)
        for _ in range(count):
            known = channel.statistics().get(SENDER, {"messages_in": 0})
            frames = breaker.broken(known["messages_in"])
            dealer.send_multipart(frames or [b""])
            channel.wait(10.0)
            try:
                while channel.poll() is not None:
                    pass
            except CutsetError:
                continue
    stats = channel.statistics()[SENDER]
    assert stats["malformed"] > count // 20
    assert stats["messages_in"] > count // 20
