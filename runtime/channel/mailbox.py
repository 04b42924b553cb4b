"""`Mailbox`: waits on one channel for the message that is wanted next, and keeps the others until they are wanted.

A worker and its parameter client share one channel. The worker asks for its messages by key; the client handles its
own in the order in which they arrive (`divert`), since it would want one of as many keys as there are slices.
"""

import time
from collections import defaultdict, deque
from collections.abc import Collection

from ...errors import CutsetError, NetworkError
from .channel import Channel, SilenceError
from .message import Message

MessageKey = tuple[str, str, int, int, int]  # sender, kind, step, micro-batch, edge
MAX_UNCLAIMED = 1 << 12  # messages that nobody has asked for yet; a step has a few for each micro-batch in flight


def message_key(message: Message) -> MessageKey:
    """The key by which a message is waited for."""
    return (message.sender, message.kind, message.step, message.micro, message.edge)


class Stopped(CutsetError):  # noqa: N818 - not an error of this role
    """Raised in a role that the launcher has told to end."""

    exit_code = 6


def stop_error(name: str, message: Message) -> Stopped:
    """The error of role `name`, which this message of kind "stop" tells to end."""
    return Stopped("E601", f"{name} was told to stop: {message.body.get('why', 'the run ended')}")


class Mailbox:
    """The messages of one channel by key. A message of kind "stop" raises Stopped wherever the owner waits.

    timeout_s: how long `wait` waits by default. waited_s: seconds spent so far in waiting for messages.
    """

    def __init__(self, channel: Channel, *, timeout_s: float = 60.0) -> None:
        self.channel = channel
        self.timeout_s = timeout_s
        self.waited_s = 0.0
        self._kept: dict[MessageKey, deque[Message]] = defaultdict(deque)
        self._count = 0
        self._diverted_kinds: frozenset[str] = frozenset()
        self._diverted: deque[Message] = deque()

    def divert(self, kinds: Collection[str]) -> deque[Message]:
        """Put messages of these kinds into a queue, as they arrive, instead of keeping them by key.

        Returns the queue, out of which the caller takes them: those that were kept so far are in it.
        """
        self._diverted_kinds = frozenset(kinds)
        for key in [key for key in self._kept if key[1] in self._diverted_kinds]:
            self._count -= len(self._kept[key])
            self._diverted.extend(self._kept.pop(key))
        return self._diverted

    def send(self, peer: str, message: Message) -> Message:
        """Queue `message` for `peer`; see `Channel`."""
        return self.channel.send(peer, message)

    def wait(self, keys: Collection[MessageKey], *, timeout_s: float | None = None) -> Message:
        """Wait for a message with one of the wanted keys; SilenceError after `timeout_s` seconds without a message."""
        while True:
            for key in keys:
                if key in self._kept:
                    return self._pop(key)
            try:
                self.wait_next(timeout_s=self.timeout_s if timeout_s is None else timeout_s)
            except SilenceError as error:
                facts = f"{error.facts}; wanted: {describe_keys(keys)}"
                raise SilenceError(error.code, facts, fix=error.fix) from None

    def wait_next(self, *, timeout_s: float) -> None:
        """Wait for the next message, whatever it is, and keep or divert it; SilenceError if none comes in time."""
        began = time.perf_counter()
        try:
            message = self.channel.receive(timeout_s)
        finally:
            self.waited_s += time.perf_counter() - began
        self._keep(message)

    def take(self, key: MessageKey) -> Message | None:
        """Return a message with this key if one has arrived, without waiting."""
        if key not in self._kept:
            self.collect()
        return self.take_collected(key)

    def collect(self) -> None:
        """Collect all messages that have arrived, without waiting: one poll where many keys are wanted."""
        while (message := self.channel.poll()) is not None:
            self._keep(message)

    def take_collected(self, key: MessageKey) -> Message | None:
        """Return a message with this key if one was collected."""
        return self._pop(key) if key in self._kept else None

    def _pop(self, key: MessageKey) -> Message:
        waiting = self._kept[key]
        message = waiting.popleft()
        self._count -= 1
        if not waiting:
            del self._kept[key]
        return message

    def _keep(self, message: Message) -> None:
        if message.kind == "stop":
            raise stop_error(self.channel.name, message)
        count = self._count + len(self._diverted)
        if count == MAX_UNCLAIMED:
            raise NetworkError(
                "E513",
                f"{self.channel.name} has {count} messages that it did not ask for, "
                f"now {message.kind!r} of {message.sender} (step {message.step})",
                fix="check that all roles belong to this run and have the same placement; then start the run again",
            )
        if message.kind in self._diverted_kinds:
            self._diverted.append(message)
            return
        self._kept[message_key(message)].append(message)
        self._count += 1

    def __repr__(self) -> str:
        kept = {key: len(queue) for key, queue in self._kept.items()}
        return f"Mailbox({self.channel.name}, diverted={len(self._diverted)}, kept={kept})"


def describe_keys(keys: Collection[MessageKey]) -> str:
    """Return what an error says of messages that are waited for: the first three."""
    few = [
        f"{kind} of {sender} (step {step}, micro {micro}, edge {edge})"
        for sender, kind, step, micro, edge in list(keys)[:3]
    ]
    return ", ".join(few) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
