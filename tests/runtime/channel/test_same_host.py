"""Channels of one host put large tensors in shared memory, and only there where both agree."""

import pytest
import torch
from host_channels import LARGE, Opener, pair, to_and_fro

from cutset.runtime.channel.curve import Keys, make_keys
from cutset.runtime.channel.message import Message
from cutset.runtime.channel.same_host import SHARED_MEMORY, SameHostPeers
from cutset.runtime.channel.shared_memory import MIN_SHARED_BYTES
from cutset.runtime.channel.zmq_channel import ZmqChannel


def test_large_tensors_go_through_shared_memory_once_both_have_agreed(opened: Opener) -> None:
    a, b = pair(opened)
    for step in range(5):
        to_and_fro(a, b, step)
    for one, other in ((a, "b"), (b, "a")):
        arena = one._same_host.arena(other)
        assert arena is not None
        assert 0 < arena.used_bytes <= 2 * 4 * MIN_SHARED_BYTES


def test_what_is_counted_does_not_depend_on_the_way(opened: Opener) -> None:
    a, b = pair(opened)
    c, d = opened("a", shared_bytes=0), opened("b", shared_bytes=0)
    for one, other in ((c, d), (d, c)):
        one.introduce({other.name: other.endpoint})
    for step in range(3):
        to_and_fro(a, b, step)
        to_and_fro(c, d, step)
    assert c._same_host.arena("b") is None
    assert a.statistics()["b"]["bytes_in"] == c.statistics()["b"]["bytes_in"]


@pytest.mark.run
def test_what_was_copied_to_be_sent_often_is_read_where_it_lies(opened: Opener) -> None:
    a, b = pair(opened)
    values, order = a.copy(LARGE), list[int]()
    for step in range(3):
        for tensor in (values, LARGE):
            a.send("b", Message("values", step, tensors=(tensor,)))
            a.poll()  # for the answer to the offer
        found = [b.receive(10).tensors[0] for _ in range(2)]
        a.wait(0.5)
        a.poll()
        values += 1  # which nobody should do: it shows what is no copy
        order.append(int((found[0] - found[1])[0]))
        del found
        values -= 1
        b.send("a", Message("fetch"))
        assert a.receive(10).kind == "fetch"
        assert a._same_host._arenas["b"]._lent == {}  # type: ignore[union-attr]
    assert order == [0, 1, 1]  # the first went before both had agreed


def test_a_peer_that_does_not_find_the_pool_gets_copies(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair(opened)
    values = a.copy(LARGE)
    monkeypatch.setattr("cutset.runtime.channel.shared_memory._map_if_found", lambda pool: None)
    for step in range(3):
        a.send("b", Message("values", step, tensors=(values,)))
        found = b.receive(10).tensors[0]
        a.wait(0.5)
        a.poll()
        values += 1
        assert torch.equal(found, LARGE)
        values -= 1
    assert a._same_host.arena("b") is not None


def test_what_one_has_read_is_let_go_when_another_says_something(opened: Opener) -> None:
    """A shard would else copy what nobody reads."""
    keys = make_keys(["shard", "one", "other"])
    shard, one, other = (opened_as(opened, name, keys) for name in ("shard", "one", "other"))
    for peer in (one, other):
        shard.introduce({peer.name: peer.endpoint})
        peer.introduce({"shard": shard.endpoint})
    values = shard.copy(LARGE)
    for _ in range(3):
        shard.send("one", Message("values", tensors=(values,)))
        one.receive(10)
        shard.wait(0.5)
        shard.poll()
    assert shard._same_host._arenas["one"]._lent  # type: ignore[union-attr]
    other.send("shard", Message("push"))
    assert shard.receive(10).kind == "push"
    assert not shard._same_host._arenas["one"]._lent  # type: ignore[union-attr]


def opened_as(opened: Opener, name: str, keys: dict[str, Keys]) -> ZmqChannel:
    return opened(name, keys=keys[name])


def test_borrowed_tensors_are_copied_wherever_they_lie(opened: Opener) -> None:
    a, b = pair(opened)
    values = a.copy(LARGE)
    for step in range(3):
        sent = a.send("b", Message("point", step, tensors=(values,), borrowed=True))
        found = b.receive(10)
        a.wait(0.5)
        a.poll()
        values.zero_()
        assert torch.equal(found.tensors[0], LARGE)
        assert torch.equal(sent.tensors[0], LARGE)
        values.copy_(LARGE)


def test_memory_to_be_sent_lies_where_the_peer_reads_it(opened: Opener) -> None:
    """Once both have agreed; and what is sent a second time, as nobody has answered, is a copy."""
    a, b = pair(opened)
    for step in range(4):
        memory = a.empty("b", len(LARGE), LARGE.dtype).copy_(LARGE + step)
        arena = a._same_host.arena("b")
        used = 0 if arena is None else arena.used_bytes
        kept = a.send("b", Message("push", step, tensors=(memory,)))
        assert kept.tensors[0].data_ptr() == memory.data_ptr()
        assert arena is None or arena.used_bytes == used, "it is there already"
        again = a.send("b", kept)
        for _ in range(2):
            assert torch.equal(b.receive(10).tensors[0], LARGE + step)
        assert torch.equal(again.tensors[0], LARGE + step)
        to_and_fro(a, b, step)
    assert arena is not None
    assert arena.used_bytes <= 4 * 4 * MIN_SHARED_BYTES
    assert a.empty("nobody", 3, torch.int64).shape == (3,)


def test_without_shared_memory_a_copy_is_an_ordinary_one(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    a = opened("a", shared_bytes=0)
    assert torch.equal(a.copy(LARGE), LARGE)
    assert a._same_host._pool is None

    def refuse() -> None:
        raise OSError("no addresses")

    monkeypatch.setattr("cutset.runtime.channel.same_host.TensorPool", refuse)
    a, b = pair(opened)
    assert torch.equal(a.copy(LARGE), LARGE)
    for step in range(3):
        to_and_fro(a, b, step)  # slots are there none the less
    assert a._same_host.arena("b") is not None


def test_small_messages_share_no_memory(opened: Opener) -> None:
    a, b = pair(opened)
    a.send("b", Message("forward", tensors=(torch.ones(100),)))
    assert b.receive(10).kind == "forward"
    assert a.statistics()["b"]["messages_out"] == 2, "the question where small messages go, and this one"
    assert not a._same_host._arenas


def test_a_peer_that_does_not_find_the_memory_gets_tensors_as_any_other_host() -> None:
    near, far = SameHostPeers("127.0.0.1"), SameHostPeers("127.0.0.1")
    offer = near.offer_memory("far", "tcp://127.0.0.1:1", Message("x", tensors=(LARGE,)))
    assert offer is not None
    changed = {**offer.body["offer"], "token": bytes(16)}
    answer = far.handle(Message(SHARED_MEMORY, body={"offer": changed}, sender="near"))
    assert answer is not None
    assert answer.body == {"mapped": False, "pooled": False}
    assert near.handle(from_peer(answer, sender="far")) is None
    assert near.arena("far") is None
    assert near.offer_memory("far", "tcp://127.0.0.1:1", Message("x", tensors=(LARGE,))) is None
    near.close()


def test_a_peer_is_answered_once() -> None:
    here = SameHostPeers("127.0.0.1")
    offers = [here.handle(Message(SHARED_MEMORY, body={"offer": {}}, sender=peer)) for peer in ("a", "a", "b", "a")]
    assert [offer is not None for offer in offers] == [True, False, True, False]


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_without_memory_to_share_nothing_is_shared(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def refuse(size: int) -> None:
        raise error("none")

    monkeypatch.setattr("cutset.runtime.channel.same_host.Arena", refuse)
    here = SameHostPeers("127.0.0.1")
    for _ in range(2):
        assert here.offer_memory("b", "tcp://127.0.0.1:1", Message("x", tensors=(LARGE,))) is None
    assert here.arena("b") is None


def test_another_host_is_not_asked() -> None:
    here = SameHostPeers("10.0.0.1")
    assert here.offer_memory("b", "tcp://10.0.0.2:1", Message("x", tensors=(LARGE,))) is None
    assert here.offer_memory("b", "tcp://10.0.0.1:1", Message("x", tensors=(LARGE,))) is not None
    here.close()


@pytest.mark.parametrize("offer", [None, 5, {}, {"pid": "x"}, {"pid": 1, "descriptor": 0, "size": -1, "token": b""}])
def test_nonsense_is_not_found(offer: object) -> None:
    answer = SameHostPeers("127.0.0.1").handle(Message(SHARED_MEMORY, body={"offer": offer}, sender="a"))
    assert answer is not None
    assert answer.body == {"mapped": False, "pooled": False}


def from_peer(message: Message, *, sender: str) -> Message:
    return Message(message.kind, body=message.body, sender=sender)


def test_what_was_shared_with_one_that_is_gone_is_let_go(opened: Opener) -> None:
    a, b = pair(opened)
    to_and_fro(a, b, 0)
    to_and_fro(a, b, 1)
    tensor = torch.zeros(1 << 20)
    a.send("b", Message("forward", 2, tensors=(tensor,)))
    kept = b.receive(10).tensors[0]
    assert b._same_host.readers
    a.forget("b")
    b.forget("a")
    assert (a._same_host._arenas, b._same_host.readers) == ({}, {})
    assert torch.equal(kept, tensor)
