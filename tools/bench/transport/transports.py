"""Ways to send a tensor from one process of this host to another, with one face: ours, and what it is compared with."""

import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ....runtime.channel.channel import Channel
from ....runtime.channel.keys import Keys, make_keys
from ....runtime.channel.mailbox import Mailbox
from ....runtime.channel.message import Message
from ....runtime.channel.shared_memory import ARENA_BYTES
from ....runtime.channel.zmq_channel import ZmqChannel

HOST = "127.0.0.1"
PATIENCE_S = 60.0
SENT_MOST = 4  # tensors that gloo is given before the first of them has gone
MEMCPY, RAW, GLOO = "memcpy", "raw TCP", "gloo"
PLAIN, CURVE, SHARED = "our TCP", "our TCP, CURVE", "our shared memory"
TRANSPORTS = (MEMCPY, RAW, GLOO, PLAIN, CURVE, SHARED)


class Transport(Protocol):
    """One end of a way between two processes."""

    def send(self, tensor: Tensor) -> None:
        """Send bytes."""
        ...

    def receive(self, size: int) -> Tensor:
        """The next bytes, which are so many."""
        ...

    def close(self) -> None:
        """Release it."""
        ...


class Ask:
    """What one end must tell the other before a way is open, over the channel that both have."""

    def __init__(self, mailbox: Mailbox, peer: str) -> None:
        self._mailbox, self._peer, self._count = mailbox, peer, 0

    def both(self, value: Any) -> Any:
        """Tell, and hear what the other tells."""
        self._mailbox.send(self._peer, Message("told", self._count, body={"value": value}))
        message = self._mailbox.wait([(self._peer, "told", self._count, 0, 0)], timeout_s=PATIENCE_S)
        self._count += 1
        return message.body["value"]


class _Raw:
    """A socket, read into the same memory again and again."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._kept: dict[int, Tensor] = {}

    def send(self, tensor: Tensor) -> None:
        self._socket.sendall(tensor.numpy().data)

    def receive(self, size: int) -> Tensor:
        tensor = self._kept.setdefault(size, torch.zeros(size, dtype=torch.uint8))
        rest = memoryview(tensor.numpy().data)
        while rest:
            count = self._socket.recv_into(rest)
            if not count:
                raise ConnectionError("the other end has closed the socket")
            rest = rest[count:]
        return tensor

    def close(self) -> None:
        self._socket.close()


class _Gloo:
    """torch.distributed's isend and recv, into the same memory again and again.

    Its send returns when the other end receives, so that two that send at once would wait for each other.
    """

    def __init__(self, machine: int, store: Any) -> None:
        self._peer = 1 - machine
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", store=store, rank=machine, world_size=2)
        self._sent: deque[dist.Work] = deque()
        self._kept: dict[int, Tensor] = {}

    def send(self, tensor: Tensor) -> None:
        work = dist.isend(tensor, self._peer)
        assert work is not None
        self._sent.append(work)
        while len(self._sent) > SENT_MOST:
            self._sent.popleft().wait()

    def receive(self, size: int) -> Tensor:
        tensor = self._kept.setdefault(size, torch.zeros(size, dtype=torch.uint8))
        dist.recv(tensor, self._peer)
        return tensor

    def close(self) -> None:
        while self._sent:
            self._sent.popleft().wait()
        dist.destroy_process_group()


class _Ours:
    """A channel of ours."""

    def __init__(self, channel: ZmqChannel, peer: str) -> None:
        self._channel, self._peer = channel, peer

    def send(self, tensor: Tensor) -> None:
        self._channel.send(self._peer, Message("bytes", tensors=(tensor,)))

    def receive(self, size: int) -> Tensor:
        (tensor,) = self._channel.receive(PATIENCE_S).tensors
        assert tensor.numel() == size
        return tensor

    def close(self) -> None:
        self._channel.close()


class _Memcpy:
    """No other process: from one place in memory to another."""

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}

    def send(self, tensor: Tensor) -> None:
        self._kept.setdefault(tensor.numel(), torch.zeros_like(tensor)).copy_(tensor)

    def receive(self, size: int) -> Tensor:
        return self._kept[size]

    def close(self) -> None:
        self._kept.clear()


def opened(name: str, machine: int, ask: Ask) -> Transport:
    """This machine's end of a way; both machines open the same ones in the same order."""
    openers: dict[str, Callable[[int, Ask], Transport]] = {
        MEMCPY: lambda _machine, _ask: _Memcpy(),
        RAW: _open_raw,
        GLOO: _open_gloo,
    }
    return openers[name](machine, ask) if name in openers else _open_ours(name, machine, ask)


def _open_raw(machine: int, ask: Ask) -> Transport:
    if machine == 1:
        return _Raw(socket.create_connection((HOST, ask.both(None)), timeout=PATIENCE_S))
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(PATIENCE_S)
        ask.both(server.getsockname()[1])
        return _Raw(server.accept()[0])


def _open_gloo(machine: int, ask: Ask) -> Transport:
    if machine == 1:
        store = dist.TCPStore(HOST, ask.both(None), 2, is_master=False)  # type: ignore[attr-defined]
        return _Gloo(machine, store)
    store = dist.TCPStore(HOST, 0, 2, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    ask.both(store.port)
    return _Gloo(machine, store)


def _open_ours(name: str, machine: int, ask: Ask) -> Transport:
    """Keys are made by the first machine, and told over the encrypted channel."""
    ends = [f"{name} {i}" for i in range(2)]
    if machine == 0:
        pairs = make_keys(ends)
        ask.both([pairs[ends[1]].public, pairs[ends[1]].secret, pairs[ends[1]].allowed])
        keys = pairs[ends[0]]
    else:
        keys = Keys(*ask.both(None))
    shared = ARENA_BYTES if name == SHARED else 0
    channel = ZmqChannel(ends[machine], "bench", keys, shared_bytes=shared, encrypted=name != PLAIN)
    channel.introduce({ends[1 - machine]: ask.both(channel.endpoint)})
    return _Ours(channel, ends[1 - machine])


def mailbox_of(channel: Channel) -> Mailbox:
    """For what both ends tell each other."""
    return Mailbox(channel, timeout_s=PATIENCE_S)
