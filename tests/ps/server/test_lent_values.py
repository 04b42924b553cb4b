"""A shard's values lie where peers on its host read them, whatever became of the values and of the shard."""

from contextlib import ExitStack

import pytest
import torch

from cutset.ps.optimizers.standard import SGD
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.slices.slicing import slice_parameters
from cutset.runtime.channel.curve import make_keys
from cutset.runtime.channel.message import Message
from cutset.runtime.channel.zmq_channel import ZmqChannel

COUNT = 1 << 16
[PIECE] = slice_parameters([COUNT], 1)
NAMES = ("shard-0", "worker-0.0", "worker-1.0")


class Host:
    """A shard and two workers with channels of their own."""

    def __init__(self, stack: ExitStack) -> None:
        keys = make_keys(NAMES)
        self.channels = {name: stack.enter_context(ZmqChannel(name, "job", keys[name])) for name in NAMES}
        for channel in self.channels.values():
            channel.introduce({name: other.endpoint for name, other in self.channels.items()})
        self.channel = self.channels["shard-0"]
        self.shard = self.made()

    def made(self, restored=()):
        return Shard(0, [PIECE], ServingConfig(SGD(1.0)), restored=restored, copy=self.channel.copy)

    @property
    def value(self):
        return self.shard.slice_states()[0].value

    @property
    def shown(self):
        """Whether the values lie where peers can read them."""
        pool = self.channel._same_host._pool
        return pool is not None and pool.offset(self.value) is not None

    def say(self, worker, message):
        """A worker says something; the answers, as it hears them."""
        self.channels[worker].send("shard-0", message)
        heard = []
        for peer, reply in self.shard.handle(self.channel.receive(10)):
            self.channel.send(peer, reply)
            heard.append(self.channels[peer].receive(10))
        for channel in self.channels.values():  # what the channels tell each other
            channel.wait(0.05)
            assert channel.poll() is None
        return heard

    def fetch(self, worker):
        body = {"min_version": 0, "min_step": 0, "replica": 0}
        [found] = self.say(worker, Message("fetch", body=body))
        return found.tensors[0]

    def push(self, worker, number):
        body = {"base": 0, "number": number, "replica": 0}
        self.say(worker, Message("push", body=body, tensors=(torch.ones(COUNT),)))


@pytest.fixture
def host():
    with ExitStack() as stack:
        found = Host(stack)
        found.say("worker-0.0", Message("put", tensors=(torch.zeros(COUNT),)))
        for worker in NAMES[1:]:
            found.fetch(worker)  # now both know where they lie
        yield found


def test_fetched_values_are_not_copied(host):
    assert host.shown
    seen = host.fetch("worker-0.0")
    host.value[5] = 7.0  # past the shard, which would copy first
    assert seen[5] == 7.0


def test_lent_values_do_not_change_while_they_are_read(host):
    one, other = host.fetch("worker-0.0"), host.fetch("worker-1.0")[3:]
    host.push("worker-1.0", 1)
    assert host.shown
    assert not one.any()
    assert not other.any()
    del one
    third, at = host.fetch("worker-0.0"), host.value.data_ptr()
    assert (third == -1).all()
    del third
    host.push("worker-1.0", 2)  # which nobody reads any more, but the first ones
    assert host.value.data_ptr() == at
    assert not other.any()


def test_values_that_were_read_are_not_copied_for_a_later_push(host):
    at = host.value.data_ptr()
    host.fetch("worker-0.0")
    host.push("worker-1.0", 1)
    assert host.value.data_ptr() == at


def test_a_shard_restored_from_a_file_lends_its_values_too(host):
    host.push("worker-0.0", 1)
    [held] = host.shard.slice_states()
    held.value = held.value.clone()
    host.shard = host.made([held])
    assert host.shown
    assert (host.fetch("worker-0.0") == -1).all()


def test_values_lent_to_a_lost_reader_may_be_written(host):
    at, seen = host.value.data_ptr(), host.fetch("worker-0.0")
    host.channel.forget("worker-0.0")
    host.push("worker-1.0", 1)
    assert host.value.data_ptr() == at
    assert (seen == -1).all()  # so it has to have ended
