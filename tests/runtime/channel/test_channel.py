"""Both channels keep the same promises: order, every size and dtype, counts, deadlines that name the role, an end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
import torch

from cutset.errors import NetworkError
from cutset.runtime.channel.channel import MAX_LINKS, Channel, SilenceError, count_link_bytes
from cutset.runtime.channel.curve import make_keys
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.runtime.channel.message import Message
from cutset.runtime.channel.zmq_channel import ZmqChannel

torch.set_num_threads(1)

NAMES = ("worker 1", "worker 2", "shard 0")
Maker = Callable[[], list[Channel]]


def in_memory() -> list[Channel]:
    network = MemoryNetwork()
    return [network.channel(name) for name in NAMES]


def through_bytes() -> list[Channel]:
    network = MemoryNetwork(copies=True)
    return [network.channel(name) for name in NAMES]


def over_zmq() -> list[Channel]:
    keys = make_keys(NAMES)
    channels = [ZmqChannel(name, "job", keys[name]) for name in NAMES]
    for channel in channels:
        channel.introduce({other.name: other.endpoint for other in channels})
    return list(channels)


@pytest.fixture(params=[in_memory, through_bytes, over_zmq])
def channels(request: pytest.FixtureRequest) -> Iterator[list[Channel]]:
    before = set(threading.enumerate())
    make: Maker = request.param
    with ExitStack() as stack:
        made = make()
        for channel in made:
            stack.enter_context(closing(channel))
        yield made
    assert not [t for t in set(threading.enumerate()) - before if t.name.startswith("cutset")]


class TestChannel:
    def test_borrowed_tensors_may_be_written_at_once(self, channels: list[Channel]) -> None:
        a, b, _ = channels
        tensor = torch.zeros(3 << 18)
        sent = []
        for number in range(20):
            sent.append(tensor.fill_(number).clone())
            a.send(b.name, Message("values", number, tensors=(tensor, tensor[:5]), borrowed=True))
        tensor.fill_(-1)
        for expected in sent:
            whole, few = b.receive(10).tensors
            assert torch.equal(whole, expected)
            assert torch.equal(few, expected[:5])

    def test_what_was_borrowed_comes_back_as_it_can_be_kept(self, channels: list[Channel]) -> None:
        a, b, _ = channels
        tensor, kept = torch.zeros(3 << 16), []
        for number in range(30):
            tensor.fill_(number)
            kept.append(a.send(b.name, Message("push", number, tensors=(tensor,), borrowed=number < 25)))
            if number >= 25:
                tensor = tensor.clone()
            b.receive(10)  # what arrived is dropped, so that its memory may be used again - but for the kept
        assert not any(message.borrowed for message in kept)
        assert [m.tensors[0].unique().tolist() for m in kept] == [[n] for n in range(30)]
        a.send(b.name, kept[3])
        assert b.receive(10).tensors[0].unique().tolist() == [3]

    def test_messages_of_one_sender_arrive_in_order(self, channels: list[Channel]) -> None:
        a, b, _ = channels
        for step in range(500):
            a.send(b.name, Message("forward", step, 1, 2, {"text": "é", "numbers": [1, 2.5, None, True]}))
        for step in range(500):
            got = b.receive(10)
            assert (got.sender, got.kind, got.step, got.micro, got.edge) == (a.name, "forward", step, 1, 2)
            assert got.body == {"text": "é", "numbers": [1, 2.5, None, True]}

    @pytest.mark.parametrize("size", [0, 1, 7, 33, 1000, 16_383, 16_384, 65_536, 5 << 18])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
    def test_tensors_of_every_size(self, channels: list[Channel], size: int, dtype: torch.dtype) -> None:
        a, b, _ = channels
        sent = (torch.arange(size) % 251).to(dtype)
        a.send(b.name, Message("forward", tensors=(sent, sent.view(-1, 1), torch.tensor(3.0))))
        got = b.receive(10)
        assert torch.equal(got.tensors[0], sent)
        assert torch.equal(got.tensors[1], sent.view(-1, 1))
        assert torch.equal(got.tensors[2], torch.tensor(3.0))
        assert got.tensors[0].dtype == dtype

    def test_a_sent_tensor_may_be_forgotten_at_once(self, channels: list[Channel]) -> None:
        a, b, _ = channels
        for value in range(20):
            a.send(b.name, Message("forward", tensors=(torch.full((1 << 16,), float(value)),)))
        assert [b.receive(10).tensors[0].unique().tolist() for _ in range(20)] == [[float(v)] for v in range(20)]

    def test_gradients_do_not_travel(self, channels: list[Channel]) -> None:
        a, b, _ = channels
        a.send(b.name, Message("forward", tensors=(torch.ones(4, 4, requires_grad=True).t() * 2,)))
        got = b.receive(10).tensors[0]
        assert not got.requires_grad
        assert got.is_contiguous()

    def test_one_inbox_takes_from_all(self, channels: list[Channel]) -> None:
        a, b, c = channels
        a.send(c.name, Message("push"))
        b.send(c.name, Message("push"))
        c.send(c.name, Message("note"))
        assert {c.receive(10).sender for _ in range(3)} == {a.name, b.name, c.name}
        assert c.poll() is None

    def test_both_ways(self, channels: list[Channel]) -> None:
        a, b, _ = channels
        for step in range(50):
            a.send(b.name, Message("ping", step))
            b.send(a.name, Message("pong", b.receive(10).step + 1))
            assert a.receive(10).step == step + 1

    def test_statistics(self, channels: list[Channel]) -> None:
        a, b, _ = channels
        message = Message("forward", tensors=(torch.zeros(10), torch.zeros(3, dtype=torch.bool)))
        for one, other in 2 * ((a, b), (b, a)):  # before the first tensor, two ends may agree on how to send them
            one.send(other.name, message)
            assert other.receive(10).kind == "forward"
        before = a.statistics()[b.name], b.statistics()[a.name]
        for _ in range(3):
            a.send(b.name, message)
            b.receive(10)
        after = a.statistics()[b.name], b.statistics()[a.name]
        nothing = dict.fromkeys(
            ["messages_out", "bytes_out", "messages_in", "bytes_in", "repeated", "malformed"], 0
        ) | {"undelivered": 0}
        pairs = zip(after, before, strict=True)
        there, back = ({name: one[name] - other[name] for name in one} for one, other in pairs)
        assert there == nothing | {"messages_out": 3, "bytes_out": 129}
        assert back == nothing | {"messages_in": 3, "bytes_in": 129}
        assert a.statistics().keys() == {b.name}

    def test_a_wait_in_vain_names_the_role_and_the_seconds(self, channels: list[Channel]) -> None:
        with pytest.raises(SilenceError, match=r"worker 2 waited 0.05 s and no message came") as caught:
            channels[1].receive(0.05)
        assert caught.value.code == "E501"
        assert "log" in caught.value.fix

    def test_a_mailbox_says_what_it_wanted(self, channels: list[Channel]) -> None:
        mailbox = Mailbox(channels[0], timeout_s=0.05)
        with pytest.raises(SilenceError, match=r"wanted: forward of worker 2 \(step 3, micro 1, edge 4\)"):
            mailbox.wait([("worker 2", "forward", 3, 1, 4)])

    def test_an_unknown_peer_is_named_and_harms_nothing(self, channels: list[Channel]) -> None:
        a, b, _ = channels
        with pytest.raises(NetworkError, match="worker 1 has no peer 'worker 7'; it knows shard 0, worker 1, worker 2"):
            a.send("worker 7", Message("forward"))
        a.send(b.name, Message("forward"))
        assert b.receive(10).kind == "forward"

    def test_a_tensor_that_cannot_be_sent_leaves_no_gap(self, channels: list[Channel]) -> None:
        a, b, _ = channels
        with pytest.raises(ValueError, match="dense CPU tensors only"):
            a.send(b.name, Message("forward", tensors=(torch.zeros(3, device="meta"),)))
        a.send(b.name, Message("forward", 1))
        assert b.receive(10).step == 1

    def test_close_is_final_and_may_be_repeated(self, channels: list[Channel]) -> None:
        a, b, _ = channels
        a.close()
        a.close()
        with pytest.raises(NetworkError, match="the channel of worker 1 is closed"):
            a.poll()
        with pytest.raises(NetworkError, match="the channel of worker 1 is closed"):
            a.send(b.name, Message("forward"))
        assert "closed" in repr(a)
        assert "open" in repr(b)

    def test_what_was_sent_before_close_arrives(self, channels: list[Channel]) -> None:
        a, b, _ = channels
        for step in range(20):
            a.send(b.name, Message("push", step, tensors=(torch.zeros(1 << 16),)))
        a.close()
        assert [b.receive(10).step for _ in range(20)] == list(range(20))


def test_bytes_are_counted_by_the_peer_that_they_were_sent_to() -> None:
    class Counting:
        def statistics(self) -> dict[str, dict[str, int]]:
            sent = {f"shard {n}": {"bytes_out": n, "bytes_in": 10**9} for n in range(MAX_LINKS + 4)}
            return {**sent, "silent": {"bytes_out": 0, "bytes_in": 10**9}}

    counted = count_link_bytes(Counting())  # type: ignore[arg-type]
    assert counted == {**{f"shard {n}": n for n in range(4, MAX_LINKS + 4)}, "others": 1 + 2 + 3}
