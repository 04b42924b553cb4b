"""Who may talk to a ZeroMQ channel, what becomes of nonsense, and what the errors say."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgspec
import pytest
import torch
import zmq
from free_ports import find_free_ports
from zmq.utils.monitor import parse_monitor_message

from cutset.errors import NetworkError
from cutset.runtime.channel.channel import SilenceError
from cutset.runtime.channel.curve import Keys, make_keys
from cutset.runtime.channel.message import Message, encode
from cutset.runtime.channel.zmq_channel import ZmqChannel

torch.set_num_threads(1)

KEYS = make_keys(["a", "b"])
Opener = Callable[..., ZmqChannel]


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Opens channels that are closed in the end."""
    with ExitStack() as stack:
        yield lambda name, keys=None, **more: stack.enter_context(ZmqChannel(name, "job", keys or KEYS[name], **more))


def knows(channel: ZmqChannel, other: ZmqChannel) -> ZmqChannel:
    channel.introduce({other.name: other.endpoint})
    return channel


def raw(channel: ZmqChannel, *messages: list[bytes]) -> None:
    """Send frames to the channel of b with the keys of a, past everything that would make messages of them."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 5000
    dealer.curve_serverkey = KEYS["b"].public.encode()
    dealer.curve_publickey, dealer.curve_secretkey = KEYS["a"].public.encode(), KEYS["a"].secret.encode()
    dealer.connect(channel.endpoint)
    for frames in messages:
        dealer.send_multipart(frames)
    dealer.close()
    context.term()


def frames_of(sequence: int, *, sender: str = "a") -> list[bytes]:
    message = Message("forward", sequence, tensors=(torch.zeros(3),))
    frames = encode(message, job="job", sender=sender, sequence=sequence, inline_bytes=0)
    return [bytes(frame) for frame in frames]


def test_it_listens_on_loopback_only_and_on_any_free_port(opened: Opener) -> None:
    one, two = opened("a"), opened("b")
    assert one.endpoint.startswith("tcp://127.0.0.1:")
    assert one.endpoint != two.endpoint


@pytest.mark.parametrize(
    ("host", "said"), [("*", "every interface"), ("0.0.0.0", "every interface"), ("203.0.113.9", "cannot listen")]
)
def test_a_host_that_will_not_do_is_named(opened: Opener, host: str, said: str) -> None:
    with pytest.raises(NetworkError, match=said) as caught:
        opened("a", host=host)
    assert host in caught.value.facts


def test_a_peer_with_another_key_than_ours_is_named(opened: Opener) -> None:
    other = make_keys(["a", "b"])["b"]
    a, b = opened("a"), opened("b", other)
    knows(a, b).send("b", Message("forward"))
    with pytest.raises(NetworkError, match=r"b \(tcp://127.0.0.1:\d+\) does not hold the key that we have") as caught:
        a.receive(20)
    assert caught.value.code == "E508"


def test_a_peer_that_refuses_our_key_is_named(opened: Opener) -> None:
    stranger = make_keys(["a"])["a"]
    keys = Keys(stranger.public, stranger.secret, KEYS["a"].allowed)
    a, b = opened("a", keys), opened("b")

    def ask() -> None:  # the refusal may be there before the message is sent
        knows(a, b).send("b", Message("forward"))
        a.receive(20)

    with pytest.raises(NetworkError, match=r"b \(tcp://127.0.0.1:\d+\) refused our key"):
        ask()
    assert b.poll() is None
    assert b._authenticator.refused == 1


def test_a_plain_peer_cannot_reach_the_inbox(opened: Opener) -> None:
    b = opened("b")
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        # Which of the two ends gives up first is a matter of microseconds; that none goes on is not.
        failed = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        with dealer.get_monitor_socket(failed | zmq.EVENT_HANDSHAKE_SUCCEEDED) as monitor:
            dealer.connect(b.endpoint)
            dealer.send_multipart(frames_of(0))
            came = monitor.poll(10_000)
            dealer.disable_monitor()
            assert came
            assert parse_monitor_message(monitor.recv_multipart())["event"] & failed
    assert b.poll() is None
    with pytest.raises(SilenceError):
        b.receive(0.05)


def test_malformed_messages_are_counted_and_the_next_good_one_arrives(opened: Opener) -> None:
    a, b = opened("a"), opened("b")
    good = frames_of(0)
    nonsense = [[b""], [b"hello"], [b"\xc1" * 40, b"y" * 9000], good[:1], [*good, b""], [good[0], good[1][:-1]]]
    raw(b, *nonsense)
    knows(a, b).send("b", Message("forward"))
    assert b.receive(10).kind == "forward"
    with pytest.raises(SilenceError, match="malformed messages dropped: 6 of a"):
        b.receive(0.5)
    assert b.statistics()["a"]["malformed"] == len(nonsense)


def test_nobody_may_send_under_the_name_of_another(opened: Opener) -> None:
    b = opened("b")
    raw(b, frames_of(0, sender="b"))
    with pytest.raises(SilenceError, match="malformed messages dropped: 1 of a"):
        b.receive(0.5)


def test_a_side_line_has_numbers_of_its_own(opened: Opener) -> None:
    a, b = opened("a"), opened("b")
    link = knows(a, b).open_connection("b")
    for number in range(2):
        a.send("b", Message("forward"))
        link.send(encode(Message("heartbeat"), job="job", sender="a#heartbeat", sequence=number))
    link.close()
    assert sorted(b.receive(10).sender for _ in range(4)) == ["a", "a", "a#heartbeat", "a#heartbeat"]


def test_another_version_of_the_wire_is_an_error_and_not_dropped(opened: Opener) -> None:
    b = opened("b")
    raw(b, [msgspec.msgpack.encode([99, "job", "a"])])
    with pytest.raises(NetworkError, match="peer 'a' speaks wire version 99"):
        b.receive(10)


def test_a_gap_is_an_error_and_a_repetition_is_not(opened: Opener) -> None:
    b = opened("b")
    raw(b, frames_of(0), frames_of(0), frames_of(2))
    assert b.receive(10).step == 0
    with pytest.raises(NetworkError, match="b got message 2 of a and expected 1: 1 lost or overtaken"):
        b.receive(10)
    assert b.statistics()["a"]["repeated"] == 1


def test_a_peer_that_is_not_there_is_named_when_nothing_comes(opened: Opener) -> None:
    a, b = opened("a"), opened("b")
    knows(a, b)
    b.close()
    a.send("b", Message("forward"))
    with pytest.raises(SilenceError, match=r"connections that are not up: b at tcp://127.0.0.1:\d+: nobody listens"):
        a.receive(0.5)


def test_a_frame_over_the_limit_is_not_sent_and_leaves_no_gap(opened: Opener) -> None:
    a, b = opened("a", max_frame_bytes=1000), opened("b", max_frame_bytes=1000)
    knows(a, b)
    with pytest.raises(
        NetworkError, match=r"a has a frame of 10\d\d bytes for b in a message 'push'; 1000 are allowed"
    ):
        a.send("b", Message("push", body={"text": "x" * 1000}))
    a.send("b", Message("push", tensors=(torch.zeros(250),)))
    assert b.receive(10).bytes == 1000


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_tensor_over_the_limit_goes_in_several_frames(opened: Opener, encrypted: bool) -> None:
    a, b = (opened(name, max_frame_bytes=1000, encrypted=encrypted) for name in "ab")
    knows(a, b)
    tensor = torch.randn(5001)
    a.send("b", Message("push", tensors=(tensor, torch.ones(3))))
    got, ones = b.receive(10).tensors
    assert torch.equal(got, tensor)
    assert ones.tolist() == [1, 1, 1]


def test_a_channel_sleeps_at_once_while_large_tensors_travel(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = opened("a"), opened("b")
    knows(a, b)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr("cutset.runtime.channel.zmq_channel.os.sched_yield", look)
    monkeypatch.setattr("cutset.runtime.channel.zmq_channel.SPIN_S", 0.2)
    b.wait(0.2)
    assert looks > 0
    monkeypatch.setattr("cutset.runtime.channel.zmq_channel.BULK_S", 60.0)
    a.send("b", Message("forward", tensors=(torch.zeros(1 << 18),)))
    assert b.receive(10).bytes == 1 << 20
    looks = 0
    for channel in (a, b):
        channel.wait(0.01)
    assert looks == 0


def test_what_is_put_back_comes_first(opened: Opener) -> None:
    a, b = opened("a"), opened("b")
    knows(a, b).send("b", Message("late"))
    b.requeue([Message("early", 1), Message("early", 2)])
    assert [(b.receive(10).kind, n) for n in range(3)] == [("early", 0), ("early", 1), ("late", 2)]


def test_a_channel_belongs_to_one_thread(opened: Opener) -> None:
    a = opened("a")
    a.poll()
    raised: list[BaseException] = []

    def other() -> None:
        try:
            a.poll()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert "used by two threads" in str(raised[0])


def test_secrets_do_not_show(opened: Opener) -> None:
    a = opened("a")
    assert KEYS["a"].secret not in repr(KEYS["a"]) + repr(a)
    assert KEYS["a"].public in repr(KEYS["a"])


@pytest.mark.run
def test_roles_of_a_host_share_its_key_and_nobody_else_may_have_their_names(opened: Opener) -> None:
    keys = make_keys(["here", "there", "launcher"])
    reader = opened("reader", keys["here"])
    reader.introduce({}, key_owners={"reader": "here", "known": "there"})
    senders = [("known", "there"), ("new", "there"), ("launcher", "launcher"), ("reader", "there"), ("known", "here")]
    senders += [("launcher", "there"), ("here", "there"), ("other", "launcher")]
    for number, (name, owner) in enumerate(senders):
        sender = opened(name, keys[owner])
        sender.introduce({"reader": reader.endpoint}, key_owners={"reader": "here"})
        sender.send("reader", Message("forward", number))
    came = [reader.receive(20) for _ in range(3)]
    assert sorted(message.sender for message in came) == ["known", "launcher", "new"]
    with pytest.raises(SilenceError, match="malformed messages dropped: 1 of here, 1 of launcher, 3 of there"):
        reader.receive(2)


def test_a_channel_listens_within_a_range_of_ports(opened: Opener) -> None:
    first, second = find_free_ports(2)
    ports = f"{first}-{second}"
    with socket.create_server(("127.0.0.1", first)):
        one = opened("a", host=f"127.0.0.1:{ports}")
        assert one.endpoint == f"tcp://127.0.0.1:{second}"
        with pytest.raises(NetworkError, match=f"E512: b cannot listen .*: every port of {ports} is in use"):
            opened("b", host=f"127.0.0.1:{ports}")
