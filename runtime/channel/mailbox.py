"""`Mailbox`: waits on one channel for the message that is wanted next, and keeps the others until they are.

A worker and its parameter client share one channel; each asks for its own messages by key.
"""

import time
from collections import defaultdict, deque
from collections.abc import Collection

from ...errors import CutsetError, NetworkError
from .channel import Channel, SilenceError
from .message import Message

Key = tuple[str, str, int, int, int]
KEPT_MOST = 1 << 12  # messages that nobody has asked for yet; a step has a few for each micro-batch in flight


def key_of(message: Message) -> Key:
    """(sender, kind, step, micro, edge): what a message is waited for by."""
    return (message.sender, message.kind, message.step, message.micro, message.edge)


class Stopped(CutsetError):  # noqa: N818 - it is no fault
    """The launcher told this role to end."""

    exit_code = 6


class Mailbox:
    """Messages of one channel by key. A message of kind "stop" raises Stopped wherever the owner waits."""

    def __init__(self, channel: Channel, *, timeout_s: float = 60.0) -> None:
        self.channel = channel
        self.timeout_s = timeout_s
        self.waited_s = 0.0  # for messages that were not there when they were wanted
        self._kept: dict[Key, deque[Message]] = defaultdict(deque)
        self._count = 0

    def send(self, peer: str, message: Message) -> Message:
        """Queue `message` for `peer`; see `Channel`."""
        return self.channel.send(peer, message)

    def wait(self, wanted: Collection[Key], *, timeout_s: float | None = None) -> Message:
        """The first message with one of the wanted keys; NetworkError after `timeout_s` seconds of silence."""
        while True:
            for key in wanted:
                if self._kept.get(key):
                    return self._pop(key)
            began = time.perf_counter()
            try:
                message = self.channel.receive(self.timeout_s if timeout_s is None else timeout_s)
            except SilenceError as error:
                raise SilenceError(error.code, f"{error.facts}; wanted: {_in_words(wanted)}", fix=error.fix) from None
            finally:
                self.waited_s += time.perf_counter() - began
            self._keep(message)

    def take(self, key: Key) -> Message | None:
        """A message with this key if it has arrived."""
        while (message := self.channel.poll()) is not None:
            self._keep(message)
        return self._pop(key) if self._kept.get(key) else None

    def _pop(self, key: Key) -> Message:
        waiting = self._kept[key]
        message = waiting.popleft()
        self._count -= 1
        if not waiting:
            del self._kept[key]
        return message

    def _keep(self, message: Message) -> None:
        if message.kind == "stop":
            raise Stopped("E601", f"{self.channel.name} was told to stop: {message.body.get('why', 'the run ended')}")
        if self._count == KEPT_MOST:
            raise NetworkError(
                "E513",
                f"{self.channel.name} has {self._count} messages that it did not ask for, "
                f"now {message.kind!r} of {message.sender} (step {message.step})",
                fix="check that all roles belong to this run and have the same placement; then start the run again",
            )
        self._kept[key_of(message)].append(message)
        self._count += 1

    def __repr__(self) -> str:
        kept = {key: len(queue) for key, queue in self._kept.items()}
        return f"Mailbox({self.channel.name}, kept={kept})"


def _in_words(wanted: Collection[Key]) -> str:
    few = [
        f"{kind} of {sender} (step {step}, micro {micro}, edge {edge})"
        for sender, kind, step, micro, edge in list(wanted)[:3]
    ]
    return ", ".join(few) + (f" and {len(wanted) - 3} more" if len(wanted) > 3 else "")
