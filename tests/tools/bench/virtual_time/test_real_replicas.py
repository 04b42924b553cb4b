"""The tester of real replicas hears that they are over, whenever it is told."""

from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.runtime.channel.message import LAUNCHER, Message
from cutset.tools.bench.virtual_time.real_replicas import is_over


def test_an_end_that_comes_while_parameters_are_awaited_is_heard() -> None:
    network = MemoryNetwork()
    launcher, shard, tester = (network.channel(name) for name in (LAUNCHER, "shard-0", "tester"))
    mailbox = Mailbox(tester)
    assert not is_over(mailbox, 0.001)
    launcher.send("tester", Message("finish"))
    shard.send("tester", Message("values"))
    mailbox.wait([("shard-0", "values", 0, 0, 0)], timeout_s=1.0)
    assert is_over(mailbox, 0.001)
