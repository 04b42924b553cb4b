"""Messages that nobody would send: valid ones, broken in their bytes, their frames or their fields."""

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import msgspec
import torch

from cutset.errors import CutsetError
from cutset.runtime.channel import zmq_channel
from cutset.runtime.channel.message import Message, encode
from cutset.runtime.channel.same_host import SHARED_MEMORY
from cutset.runtime.channel.sealed_peers import BEGUN, SEALED
from cutset.runtime.channel.shared_memory import Arena
from cutset.runtime.channel.zmq_channel import ZmqChannel

JOB, SENDER = "job", "a"
FRAMES = 9  # position in a header
FRAMES_MOST = 64  # of a message, about: thousands would take all the time
Frames = list[bytes]
Handler = Callable[[Message], object]  # what a role does with a message

VALUES: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0.0, -1.5, float("nan"), float("inf")),
    *("", "a", "forward", "\x00", "x" * 5000, b"", b"\xff" * 100, [], [[]], {}, {"a": {"b": [1]}}, [0] * 3000),
    *("float32", "float64", "bool", "complex128", "@shared_memory", "stop", "push", "put", "fetch", "checkpoint"),
    "@sealed",
)


def messages(arena: Arena) -> list[Message]:
    """Of every kind that a worker or a shard takes in."""
    x, y = torch.arange(6, dtype=torch.float32).view(2, 3), torch.ones(4, dtype=torch.bfloat16)
    offer = msgspec.to_builtins(arena.offer, builtin_types=(bytes,))
    return [
        Message("forward", 3, 1, 2, tensors=(x, y)),
        Message("backward", 3, 0, 7, tensors=(x.t(), torch.empty(0))),
        Message("share", 1, tensors=(torch.ones(1 << 15),)),
        Message("fetch", 2, body={"min_version": 1}),
        Message("push", 5, body={"number": 4, "fetch": {"min_version": 0, "step": 1}}, tensors=(torch.ones(8),)),
        Message("put", tensors=(torch.ones(8),)),
        Message("stop", body={"why": "the end"}),
        Message(SHARED_MEMORY, body={"offer": offer, "pool": offer}),
        Message(SHARED_MEMORY, body={"mapped": True}),
        Message(SHARED_MEMORY, body={"socket": {}}),
        Message(SHARED_MEMORY, body={"socket": ["cutset-0", "0" * 64]}),
        Message(SEALED, body={"key": bytes(32), "ciphers": ["aes-256-gcm"]}),
        Message(SEALED, body={"cipher": "aes-256-gcm", "port": 1, "token": "0" * 64}),
        BEGUN,
    ]


class Breaker:
    """Breaks messages, the same ones for a seed."""

    def __init__(self, seed: int, arena: Arena) -> None:
        self._random = random.Random(seed)
        self._messages = messages(arena)
        self._arena = arena

    def broken(self, sequence: int) -> Frames:
        """The frames of one message, which is often, but not always, nonsense."""
        one = self._random.choice(self._messages)
        shares = one.kind == "share" and self._random.random() < 0.8
        slots = [self._arena.put(t) for t in one.tensors] if shares else []
        size = self._random.choice([n for n in (sys.maxsize, 1 << 12, 8, 5) if one.bytes <= n * FRAMES_MOST])
        room = self._random.choice((0, 40, 1 << 14))
        made = encode(one, job=JOB, sender=SENDER, sequence=sequence, slots=slots, frame_bytes=size, inline_bytes=room)
        frames = [bytes(f) for f in made]
        for _ in range(self._random.choice((0, 1, 1, 1, 2, 5))):
            way = self._random.choice((self._fields, self._fields, self._bytes, self._cut, self._frames))
            frames = way(frames)
        return frames

    def _fields(self, frames: Frames) -> Frames:
        """Another value somewhere in the header."""
        try:
            header = msgspec.msgpack.decode(frames[0])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
            return frames
        if not isinstance(header, list) or not header:
            return frames
        where: Any = header
        at: Any = self._random.randrange(len(header))
        while isinstance(where[at], list | dict) and where[at] and self._random.random() < 0.8:
            where = where[at]
            at = self._random.choice(list(where)) if isinstance(where, dict) else self._random.randrange(len(where))
        old = where[at]
        where[at] = old + self._random.choice((1, -1, 4096)) if type(old) is int else self._random.choice(VALUES)
        if self._random.random() < 0.05 and len(header) > FRAMES and isinstance(header[FRAMES], list):
            slot = [self._random.choice((0, 1, 4031, 4032, -1)), self._random.choice((0, 4096, 8192, 2**40, -4096))]
            slot += self._random.choice(([], [False], [True]))
            header[FRAMES].append(["float32", [1 << 14], slot, self._random.choice((1, 1, 2, 0, -1, 2**40))])
        try:
            return [msgspec.msgpack.encode(header), *frames[1:]]
        except (OverflowError, TypeError):
            return frames

    def _bytes(self, frames: Frames) -> Frames:
        at = self._random.randrange(len(frames)) if frames else 0
        if not frames or not frames[at]:
            return [self._random.randbytes(self._random.choice((0, 1, 17, 300)))]
        changed = bytearray(frames[at])
        for _ in range(self._random.choice((1, 1, 3, 20))):
            changed[self._random.randrange(len(changed))] = self._random.randrange(256)
        return [*frames[:at], bytes(changed), *frames[at + 1 :]]

    def _cut(self, frames: Frames) -> Frames:
        at = self._random.randrange(len(frames)) if frames else 0
        if not frames:
            return frames
        stop = self._random.randrange(len(frames[at]) + 1)
        return [*frames[:at], frames[at][:stop], *frames[at + 1 :]]

    def _frames(self, frames: Frames) -> Frames:
        """More, fewer, or in another order."""
        if not frames or self._random.random() < 0.3:
            return [*frames, self._random.randbytes(self._random.choice((0, 5, 4000)))]
        at = self._random.randrange(len(frames))
        return self._random.choice(([*frames[:at], *frames[at + 1 :]], [*frames, frames[at]], frames[::-1], frames * 3))


@dataclass
class _Frame:
    """What a channel reads from a zmq frame."""

    buffer: memoryview

    def get(self, _option: str) -> str:
        return SENDER


@dataclass
class Tally:
    """What became of messages, by name of the error; "taken" and "dropped" of the others."""

    counts: dict[str, int] = field(default_factory=dict)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _take(channel: ZmqChannel, frames: list["_Frame"]) -> Message | None:
    """What a channel makes of frames in its inbox."""
    waiting = [frames]
    with patch.object(zmq_channel, "read_frames", lambda inbox: waiting.pop() if waiting else None):
        return channel.poll()


def attack(channel: ZmqChannel, arena: Arena, handle: Handler, *, count: int, seed: int) -> Tally:
    """Give a channel broken messages of an authenticated peer; what became of them.

    Nothing but the project's own errors may come of it.
    """
    breaker, tally = Breaker(seed, arena), Tally()
    for _ in range(count):
        known = channel.statistics().get(SENDER, {"messages_in": 0})
        frames = [_Frame(memoryview(bytearray(f))) for f in (b"", *breaker.broken(known["messages_in"]))]
        try:
            message = _take(channel, frames)
            if message is not None:
                handle(message)
            tally.count("dropped" if message is None else "taken")
        except CutsetError as error:
            tally.count(error.code)
    return tally
