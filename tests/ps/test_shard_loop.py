"""A shard's loop over a channel: it answers, beats while it is idle, and ends."""

import pytest
from shard_messages import SLICES, fetch, push, put

from cutset.errors import NetworkError
from cutset.ps.optimizers.standard import SGD
from cutset.ps.methods.method import Serving
from cutset.ps.server.shard import Shard
from cutset.ps.server.serve_loop import serve
from cutset.runtime.launcher.heartbeat import Beacon
from cutset.runtime.channel.channel import SilenceError
from cutset.runtime.channel.mailbox import Stopped
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.runtime.channel.message import Message


def channels(*names):
    network = MemoryNetwork()
    return [network.channel(name) for name in names]


def test_serve_answers_until_finish():
    server, worker, launcher = channels("shard-0", "worker-0.0", "launcher")
    for message in (put(0.0, 10.0, 20.0), push(1, 1.0, 1.0, 1.0), fetch()):
        worker.send("shard-0", message)
    launcher.send("shard-0", Message("finish"))
    beacon = Beacon()
    statistics = serve(Shard(0, SLICES, Serving(SGD(1.0))), server, beacon=beacon)
    assert statistics["slices"][0]["pushes"] == 1
    assert beacon.progress == "3 messages"
    assert [worker.receive(0).kind for _ in range(3)] == ["held", "pushed", "values"]


def test_serve_ends_at_stop():
    server, launcher = channels("shard-0", "launcher")
    launcher.send("shard-0", Message("stop", body={"why": "worker-1.0 died"}))
    with pytest.raises(Stopped, match=r"worker-1\.0 died"):
        serve(Shard(0, SLICES, Serving(SGD(1.0))), server)


def test_only_the_launcher_finishes_a_shard():
    server, worker = channels("shard-0", "worker-0.0")
    worker.send("shard-0", Message("finish"))
    with pytest.raises(NetworkError, match="unknown kind"):
        serve(Shard(0, SLICES, Serving(SGD(1.0))), server)


class Quiet:
    """A channel on which nothing comes, at once."""

    def __init__(self, channel):
        self.name = channel.name
        self._channel = channel

    def receive(self, timeout_s):
        assert timeout_s == 1.0
        return self._channel.receive(0)


def test_serve_beats_while_it_is_idle_and_gives_up_in_the_end():
    [server] = channels("shard-0")
    beacon = Beacon()
    with pytest.raises(SilenceError, match=r"shard-0 waited 3 s"):
        serve(Shard(0, SLICES, Serving(SGD(1.0))), Quiet(server), beacon=beacon, interval_s=1.0, timeout_s=3.0)
    assert beacon.progress == "0 messages, then idle for 2 s"
