"""A shard's loop over a channel: it answers, beats while it is idle, and ends."""

import pytest
from msgspec.structs import replace
from shard_messages import SLICES, fetch, push, put

from cutset.errors import NetworkError
from cutset.ps.optimizers.standard import SGD
from cutset.ps.server.serve_loop import serve
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.runtime.channel.channel import SilenceError
from cutset.runtime.channel.mailbox import Stopped
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.runtime.channel.message import Message
from cutset.runtime.hosts.heartbeat import RoleProgress


def channels(*names):
    network = MemoryNetwork()
    return [network.channel(name) for name in names]


def test_serve_answers_until_finish():
    server, worker, launcher = channels("shard-0", "worker-0.0", "launcher")
    for message in (put(0.0, 10.0, 20.0), push(1, 1.0, 1.0, 1.0), fetch()):
        worker.send("shard-0", message)
    launcher.send("shard-0", Message("finish"))
    progress = RoleProgress()
    statistics = serve(Shard(0, SLICES, ServingConfig(SGD(1.0))), server, progress=progress)
    assert statistics["slices"][0]["pushes"] == 1
    assert progress.value == "3 messages"
    nothing = {"updates": 0, "pushes": 0, "late": 0, "staleness": None, "unsaved_s": None, "links": {}}
    assert {name: value for name, value in progress.status.items() if name != "at_s"} == nothing, "of when it began"
    assert [worker.receive(0).kind for _ in range(3)] == ["put_ack", "push_ack", "values"]


def test_serve_ends_at_stop():
    server, launcher = channels("shard-0", "launcher")
    launcher.send("shard-0", Message("stop", body={"why": "worker-1.0 died"}))
    with pytest.raises(Stopped, match=r"worker-1\.0 died"):
        serve(Shard(0, SLICES, ServingConfig(SGD(1.0))), server)


def test_only_the_launcher_finishes_a_shard():
    server, worker = channels("shard-0", "worker-0.0")
    worker.send("shard-0", Message("finish"))
    with pytest.raises(NetworkError, match="unknown kind"):
        serve(Shard(0, SLICES, ServingConfig(SGD(1.0))), server)


class Quiet:
    """A channel on which nothing comes, at once."""

    def __init__(self, channel):
        self.name = channel.name
        self._channel = channel

    def receive(self, timeout_s):
        assert timeout_s == 1.0
        return self._channel.receive(0)

    def statistics(self):
        return {}


def test_serve_reports_progress_while_idle_and_times_out():
    [server] = channels("shard-0")
    progress = RoleProgress()
    with pytest.raises(SilenceError, match=r"shard-0 waited 3 s"):
        serve(
            Shard(0, SLICES, ServingConfig(SGD(1.0))), Quiet(server), progress=progress, interval_s=1.0, timeout_s=3.0
        )
    assert progress.value == "0 messages, then idle for 2 s"


def test_the_status_is_of_all_slices():
    shard = Shard(0, SLICES, ServingConfig(SGD(1.0)))
    for message in (put(0.0, 10.0, 20.0), push(1, 1.0, 1.0, 1.0), push(2, 1.0, 1.0, 1.0)):
        shard.handle(replace(message, sender="worker-0.0"))
    status = shard.status()
    assert (status["updates"], status["pushes"], status["unsaved_s"]) == (2, 2, None)
    assert status["staleness"]["max"] == shard.statistics()["slices"][0]["staleness"]["worker-0.0"]["max"]
