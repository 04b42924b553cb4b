"""Transports: ways to send a tensor from one process of this host to another, ours and those it is compared with."""

import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ....runtime.channel.channel import Channel
from ....runtime.channel.curve import Keys, make_keys
from ....runtime.channel.mailbox import Mailbox
from ....runtime.channel.message import Message
from ....runtime.channel.shared_memory import ARENA_BYTES
from ....runtime.channel.zmq_channel import ZmqChannel

HOST = "127.0.0.1"
TIMEOUT_S = 60.0
MAX_SENDS = 4  # tensors that gloo is given before the first of them has gone
MEMCPY, RAW, GLOO = "memcpy", "raw TCP", "gloo"
PLAIN, CURVE, SHARED = "our TCP", "our TCP, CURVE", "our shared memory"
TRANSPORTS = (MEMCPY, RAW, GLOO, PLAIN, CURVE, SHARED)


class Transport(Protocol):
    """One end of a connection between two processes."""

    def send(self, tensor: Tensor) -> None:
        """Send bytes."""
        ...

    def receive(self, size: int) -> Tensor:
        """Return the next `size` bytes."""
        ...

    def close(self) -> None:
        """Release the transport."""
        ...


class Handshake:
    """What two ends tell each other before a transport is open, over the channel that both have."""

    def __init__(self, mailbox: Mailbox, peer: str) -> None:
        self._mailbox, self._peer, self._count = mailbox, peer, 0

    def exchange(self, value: Any) -> Any:
        """Send a value to the other end and return the one that it sends."""
        self._mailbox.send(self._peer, Message("handshake", self._count, body={"value": value}))
        message = self._mailbox.wait([(self._peer, "handshake", self._count, 0, 0)], timeout_s=TIMEOUT_S)
        self._count += 1
        return message.body["value"]


class _Buffers(dict[int, Tensor]):
    """Memory of so many bytes, made at its first use: to make it anew would take longer than to fill it."""

    def __missing__(self, size: int) -> Tensor:
        self[size] = tensor = torch.zeros(size, dtype=torch.uint8)
        return tensor


class _RawSocket:
    """A TCP socket, whose bytes are received into the same buffers again and again."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffers = _Buffers()

    def send(self, tensor: Tensor) -> None:
        self._socket.sendall(tensor.numpy().data)

    def receive(self, size: int) -> Tensor:
        tensor = self._buffers[size]
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
    """torch.distributed's isend and recv, into the same buffers again and again.

    Gloo's send returns when the other end receives, so two ends that send at once would wait for each other.
    """

    def __init__(self, machine: int, store: Any) -> None:
        self._peer = 1 - machine
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", store=store, rank=machine, world_size=2)
        self._sent: deque[dist.Work] = deque()
        self._buffers = _Buffers()

    def send(self, tensor: Tensor) -> None:
        work = dist.isend(tensor, self._peer)
        assert work is not None
        self._sent.append(work)
        while len(self._sent) > MAX_SENDS:
            self._sent.popleft().wait()

    def receive(self, size: int) -> Tensor:
        tensor = self._buffers[size]
        dist.recv(tensor, self._peer)
        return tensor

    def close(self) -> None:
        while self._sent:
            self._sent.popleft().wait()
        dist.destroy_process_group()


class _ChannelTransport:
    """One of our channels."""

    def __init__(self, channel: ZmqChannel, peer: str) -> None:
        self._channel, self._peer = channel, peer

    def send(self, tensor: Tensor) -> None:
        self._channel.send(self._peer, Message("bytes", tensors=(tensor,)))

    def receive(self, size: int) -> Tensor:
        (tensor,) = self._channel.receive(TIMEOUT_S).tensors
        assert tensor.numel() == size
        return tensor

    def close(self) -> None:
        self._channel.close()


class _Memcpy:
    """A copy within this process, from one place in memory to another."""

    def __init__(self) -> None:
        self._buffers = _Buffers()

    def send(self, tensor: Tensor) -> None:
        self._buffers[tensor.nbytes].copy_(tensor.view(torch.uint8))

    def receive(self, size: int) -> Tensor:
        return self._buffers[size]

    def close(self) -> None:
        self._buffers.clear()


def open_transport(name: str, machine: int, handshake: Handshake) -> Transport:
    """Open this machine's end of a transport; both machines open the same ones in the same order."""
    openers: dict[str, Callable[[int, Handshake], Transport]] = {
        MEMCPY: lambda _machine, _handshake: _Memcpy(),
        RAW: _open_raw,
        GLOO: _open_gloo,
    }
    if name in openers:
        return openers[name](machine, handshake)
    return _open_channel(name, machine, handshake)


def _open_raw(machine: int, handshake: Handshake) -> Transport:
    if machine == 1:
        return _RawSocket(socket.create_connection((HOST, handshake.exchange(None)), timeout=TIMEOUT_S))
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(TIMEOUT_S)
        handshake.exchange(server.getsockname()[1])
        return _RawSocket(server.accept()[0])


def _open_gloo(machine: int, handshake: Handshake) -> Transport:
    if machine == 1:
        store = dist.TCPStore(HOST, handshake.exchange(None), 2, is_master=False)  # type: ignore[attr-defined]
        return _Gloo(machine, store)
    store = dist.TCPStore(HOST, 0, 2, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    handshake.exchange(store.port)
    return _Gloo(machine, store)


def _open_channel(name: str, machine: int, handshake: Handshake) -> Transport:
    """Open a channel of ours. The first machine makes the keys, and tells them over the encrypted channel."""
    ends = [f"{name} {i}" for i in range(2)]
    if machine == 0:
        pairs = make_keys(ends)
        handshake.exchange([pairs[ends[1]].public, pairs[ends[1]].secret, pairs[ends[1]].allowed])
        keys = pairs[ends[0]]
    else:
        keys = Keys(*handshake.exchange(None))
    shared = ARENA_BYTES if name == SHARED else 0
    channel = ZmqChannel(ends[machine], "bench", keys, shared_bytes=shared, encrypted=name != PLAIN)
    channel.introduce({ends[1 - machine]: handshake.exchange(channel.endpoint)})
    return _ChannelTransport(channel, ends[1 - machine])


def make_mailbox(channel: Channel) -> Mailbox:
    """Return a mailbox for what both ends tell each other."""
    return Mailbox(channel, timeout_s=TIMEOUT_S)
