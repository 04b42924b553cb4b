"""`Post`: a `Channel` between forked processes over Unix sockets that loses and repeats messages as it is told to.

It has no sequence numbers and mends nothing: what is lost is lost, as with a process that is killed.
"""

import random
import selectors
import socket
import time
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from cutset.runtime.channel.channel import silence_error
from cutset.runtime.channel.message import Message, decode, encode

JOB = "post"


class Post:
    """loss, twice: shares of the messages to and from shards that are lost or come twice."""

    def __init__(self, name: str, folder: Path, *, loss: float = 0.0, twice: float = 0.0, seed: str = "") -> None:
        self.name, self._folder = name, folder
        self._loss, self._twice, self._chance = loss, twice, random.Random(seed)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / name))
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._ways: dict[str, socket.socket] = {}
        self._messages: list[Message] = []

    def send(self, peer: str, message: Message) -> Message:
        """Lost where the peer is gone."""
        message = message.to_owned()
        for _ in range(self._copies(peer)):
            frames = [bytes(frame) for frame in encode(message, job=JOB, sender=self.name, sequence=0)]
            blob = msgspec.msgpack.encode(frames)
            try:
                if peer not in self._ways:
                    self._ways[peer] = socket.socket(socket.AF_UNIX)
                    self._ways[peer].connect(str(self._folder / peer))
                self._ways[peer].sendall(len(blob).to_bytes(8, "little") + blob)
            except OSError:
                self._ways.pop(peer).close()
        return message

    def empty(self, peer: str, size: int, dtype: torch.dtype) -> Tensor:
        """Ordinary memory: everything travels."""
        return torch.empty(size, dtype=dtype)

    def receive(self, timeout_s: float) -> Message:
        """The next message."""
        deadline = time.monotonic() + timeout_s
        while not self._messages:
            left = deadline - time.monotonic()
            if left <= 0 or not self._look(left):
                raise silence_error(self.name, timeout_s)
        return self._messages.pop(0)

    def poll(self) -> Message | None:
        """The next message if one is there."""
        self._look(0)
        return self._messages.pop(0) if self._messages else None

    def statistics(self) -> dict[str, dict[str, int]]:
        """Nothing is counted."""
        return {}

    def close(self) -> None:
        """Release the end point."""
        for way in [*self._ways.values(), *(key.fileobj for key in list(self._selector.get_map().values()))]:
            way.close()  # type: ignore[union-attr]
        self._selector.close()
        (self._folder / self.name).unlink()

    def _copies(self, peer: str) -> int:
        if not peer.startswith("shard"):
            return 1
        chance = self._chance.random()
        return 0 if chance < self._loss else 2 if chance < self._loss + self._twice else 1

    def _look(self, timeout_s: float) -> bool:
        found = self._selector.select(timeout_s)
        for key, _ in found:
            if key.data is None:
                way, _ = self._listener.accept()
                self._selector.register(way, selectors.EVENT_READ, bytearray())
            else:
                self._read(key)
        return bool(found)

    def _read(self, key: selectors.SelectorKey) -> None:
        way, buffer = key.fileobj, key.data
        assert isinstance(way, socket.socket)
        try:
            got = way.recv(1 << 20)
        except OSError:
            got = b""
        if not got:
            self._selector.unregister(way)
            way.close()
            return
        buffer += got
        while len(buffer) >= 8 and len(buffer) - 8 >= (size := int.from_bytes(buffer[:8], "little")):
            frames = msgspec.msgpack.decode(bytes(buffer[8 : 8 + size]), type=list[bytes])
            del buffer[: 8 + size]
            _, message = decode([bytearray(frame) for frame in frames], job=JOB)
            self._messages += [message] * self._copies(message.sender)
