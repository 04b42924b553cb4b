"""Workers whose steps are timed: how they take turns with others."""

import msgspec
import pytest

from cutset.errors import CutsetError
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.tools.probe.timed_worker import StepSetup, _end_turn
from cutset.tools.task.load_task import TaskSpec


def test_a_turn_ends_once_all_its_workers_have_made_their_last_step() -> None:
    config = StepSetup(
        TaskSpec("cutset.models:digits"), b"", "", [], [], ["a0", "a1"], steps=8, turn=4, leaders=["a0", "b0"]
    )
    network = MemoryNetwork()
    first, second, other = (network.channel(name) for name in ("a0", "a1", "b0"))
    with pytest.raises(CutsetError, match="a0"):
        _end_turn(config, Mailbox(first, timeout_s=0.05), 0, 3)
    assert other.poll() is None, "others do not begin while a worker of this turn still computes"
    _end_turn(config, Mailbox(second), 1, 3)
    _end_turn(config, Mailbox(first, timeout_s=5.0), 0, 3)
    message = other.receive(5.0)
    assert (message.kind, message.step) == ("turn", 0)
    config = msgspec.structs.replace(config, leader=1, leaders=["b0", "a0"])
    _end_turn(config, Mailbox(second), 1, 7)
    _end_turn(config, Mailbox(first, timeout_s=5.0), 0, 7)
    assert other.poll() is None, "after the last turn of the last ones nobody has another"
