"""The mailbox gives what is wanted next and keeps the rest; a stop is raised wherever the owner waits."""

import pytest

from cutset.errors import NetworkError
from cutset.runtime.channel import mailbox as mailboxes
from cutset.runtime.channel.mailbox import Mailbox, Stopped, message_key
from cutset.runtime.channel.memory_channel import MemoryChannel, MemoryNetwork
from cutset.runtime.channel.message import Message


def mailbox() -> tuple[MemoryChannel, Mailbox]:
    network = MemoryNetwork()
    return network.channel("a"), Mailbox(network.channel("b"), timeout_s=1.0)


def test_messages_are_taken_in_the_order_of_wishes() -> None:
    a, box = mailbox()
    for micro in range(3):
        a.send("b", Message("forward", 1, micro, 5))
    assert box.wait([("a", "forward", 1, 2, 5)]).micro == 2
    assert box.wait([("a", "forward", 1, 9, 5), ("a", "forward", 1, 0, 5)]).micro == 0
    assert box.take(("a", "forward", 1, 0, 5)) is None
    assert "('a', 'forward', 1, 1, 5): 1" in repr(box)


def test_messages_of_one_key_keep_their_order() -> None:
    a, box = mailbox()
    for number in range(3):
        a.send("b", Message("push", body={"number": number}))
    key = message_key(Message("push", sender="a"))
    assert [box.wait([key]).body["number"] for _ in range(3)] == [0, 1, 2]
    assert box.take(key) is None


def test_take_does_not_wait() -> None:
    a, box = mailbox()
    assert box.take(("a", "push", 0, 0, 0)) is None
    a.send("b", Message("push"))
    taken = box.take(("a", "push", 0, 0, 0))
    assert taken is not None
    assert taken.kind == "push"


def test_what_was_collected_is_taken_key_by_key_without_another_poll() -> None:
    a, box = mailbox()
    a.send("b", Message("push"))
    assert box.take_collected(("a", "push", 0, 0, 0)) is None
    box.collect()
    taken = box.take_collected(("a", "push", 0, 0, 0))
    assert taken is not None
    assert taken.kind == "push"


def test_what_is_diverted_is_queued_as_it_arrives() -> None:
    a, box = mailbox()
    queue = box.divert(["values", "ack"])
    for kind, step in (("values", 1), ("forward", 1), ("ack", 0), ("values", 0)):
        a.send("b", Message(kind, step))
    box.wait_next(timeout_s=1)
    assert [message.kind for message in queue] == ["values"]
    assert box.wait([("a", "forward", 1, 0, 0)]).kind == "forward"
    box.collect()
    assert [(message.kind, message.step) for message in queue] == [("values", 1), ("ack", 0), ("values", 0)]
    queue.clear()
    with pytest.raises(NetworkError, match="E501"):
        box.wait_next(timeout_s=0.05)


def test_what_was_kept_before_is_diverted_too() -> None:
    a, box = mailbox()
    for step in range(2):
        a.send("b", Message("values", step))
        a.send("b", Message("forward", step))
    box.collect()
    queue = box.divert(["values"])
    assert [(message.kind, message.step) for message in queue] == [("values", 0), ("values", 1)]
    assert box.take_collected(("a", "values", 0, 0, 0)) is None
    assert box.wait([("a", "forward", 1, 0, 0)]).step == 1


def test_sending_goes_through() -> None:
    a, box = mailbox()
    box.send("a", Message("hello"))
    assert a.receive(1).sender == "b"


@pytest.mark.parametrize("how", ["wait", "take"])
def test_a_stop_is_raised(how: str) -> None:
    a, box = mailbox()
    a.send("b", Message("stop", body={"why": "worker 3 is gone"}))
    key = ("a", "forward", 0, 0, 0)
    with pytest.raises(Stopped, match="b was told to stop: worker 3 is gone"):
        box.wait([key]) if how == "wait" else box.take(key)


def test_what_nobody_asks_for_is_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes, "MAX_UNCLAIMED", 3)
    a, box = mailbox()
    for round_ in range(4):  # what is taken makes room again
        for micro in range(3):
            a.send("b", Message("forward", round_, micro))
        for micro in range(3):
            assert box.wait([("a", "forward", round_, micro, 0)]).micro == micro
    for micro in range(4):
        a.send("b", Message("forward", 9, micro))
    with pytest.raises(NetworkError, match=r"E513: b has 3 messages that it did not ask for, now 'forward' of a"):
        box.wait([("a", "forward", 1, 0, 0)])
    box.divert(["push"])
    a.send("b", Message("push"))
    with pytest.raises(NetworkError, match=r"E513: b has 3 messages that it did not ask for, now 'push' of a"):
        box.wait_next(timeout_s=1)


def test_the_time_waited_for_others_is_counted() -> None:
    network = MemoryNetwork()
    mailbox = Mailbox(network.channel("a"), timeout_s=0.05)
    with pytest.raises(NetworkError):
        mailbox.wait([("b", "forward", 0, 0, 0)])
    assert 0.05 <= mailbox.waited_s < 5
