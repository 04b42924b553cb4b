"""`MemoryNetwork`: the in-process counterpart of the ZeroMQ channel; each role runs in a thread.

It keeps the same promises: order, sequence numbers, a deadline on every wait. Faults can be scripted (faults.py). A
`Replica` in one process and most tests run over it.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...errors import NetworkError, ProcessLost
from .channel import silence_error, unknown_peer_error
from .faults import Fault, Kill, Stop, decide_fate
from .message import Message, decode, encode
from .sequence_numbers import SequenceNumbers

Direction = tuple[str, str]  # sender and receiver
Letter = tuple[int, Message]  # sequence number and message


@dataclass
class _StalledDirection:
    """Letters that wait until `by` more messages were sent in other directions."""

    direction: Direction
    by: int
    letters: list[Letter] = field(default_factory=list)


class MemoryNetwork:
    """Channels between threads. faults: what goes wrong, see faults.py.

    Every message is encoded and decoded. copies: whether its bytes are copied, too; without, a tensor that arrives is
    the sender's own memory.
    """

    def __init__(self, faults: Iterable[Fault] = (), *, copies: bool = False) -> None:
        self.copies = copies
        self._faults = tuple(faults)
        self._lock = threading.RLock()
        self._inboxes: dict[str, _Inbox] = {}
        self._counts: Counter[Direction] = Counter()
        self._stalled: list[_StalledDirection] = []
        self._swapped: dict[Direction, Letter] = {}
        self._reason = ""
        self._ended = threading.Condition(self._lock)

    def channel(self, name: str) -> "MemoryChannel":
        """Make the end point of role `name`. Make all of them before the first message is sent."""
        with self._lock:
            if name in self._inboxes:
                raise ValueError(f"there is already a channel {name!r}")
            self._inboxes[name] = _Inbox(threading.Condition(self._lock))
        ends = [f for f in self._faults if isinstance(f, Kill | Stop) and f.role == name]
        return MemoryChannel(name, self, ends)

    def run(self, roles: Mapping[str, Callable[["MemoryChannel"], Any]]) -> dict[str, Any]:
        """Run each role in a thread with a channel of its own. Returns each result; the first error ends all."""
        results: dict[str, Any] = {}
        errors: list[BaseException] = []
        channels = {name: self.channel(name) for name in roles}

        def run_role(name: str) -> None:
            try:
                results[name] = roles[name](channels[name])
            except BaseException as error:  # whatever it is, it is raised again below, in the caller's thread
                errors.append(error)
                self.abort(f"{name} raised {type(error).__name__}: {error}")
            finally:
                channels[name].close()

        threads = [threading.Thread(target=run_role, args=(name,), name=name) for name in roles]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            self.abort("interrupted")
            raise
        if errors:
            raise errors[0]
        return results

    def abort(self, reason: str) -> None:
        """Make every blocked and every later call of any channel raise NetworkError. The first reason given stays."""
        with self._lock:
            self._reason = self._reason or reason
            self._ended.notify_all()
            for inbox in self._inboxes.values():
                inbox.changed.notify_all()

    def __repr__(self) -> str:
        waiting = {name: len(inbox.letters) for name, inbox in self._inboxes.items()}
        return f"MemoryNetwork(inboxes={waiting}, held={len(self._stalled)}, aborted={self._reason!r})"

    def _post(self, direction: Direction, letter: Letter) -> None:
        """Take a letter from its sender and apply the faults scripted for it."""
        with self._lock:
            self._check()
            nth, back = self._counts[direction], self._counts[direction[::-1]]
            self._counts[direction] += 1
            outcome = decide_fate(self._faults, direction, nth=nth, between=nth + back)
            if outcome.held_by:
                self._stalled.append(_StalledDirection(direction, outcome.held_by))
            if outcome.after_next:
                self._swapped[direction] = letter
                return
            for _ in range(outcome.copies):
                self._pass_on(direction, letter)
            if direction in self._swapped:
                self._pass_on(direction, self._swapped.pop(direction))
            self._count_down(direction)

    def _freeze(self) -> None:
        """Block until the network is ended, then raise."""
        with self._lock:
            while not self._reason:
                self._ended.wait()
            self._check()

    def _check_peer(self, name: str, peer: str) -> None:
        if peer not in self._inboxes:
            raise unknown_peer_error(name, peer, list(self._inboxes))

    def _pass_on(self, direction: Direction, letter: Letter) -> None:
        for stalled in self._stalled:
            if stalled.direction == direction:
                stalled.letters.append(letter)
                return
        self._deliver(direction, letter)

    def _count_down(self, direction: Direction) -> None:
        for stalled in [s for s in self._stalled if s.direction != direction]:
            stalled.by -= 1
            if stalled.by <= 0:
                self._release(stalled)

    def _release(self, stalled: _StalledDirection) -> None:
        self._stalled.remove(stalled)
        for letter in stalled.letters:
            self._deliver(stalled.direction, letter)

    def _deliver(self, direction: Direction, letter: Letter) -> None:
        inbox = self._inboxes[direction[1]]
        if inbox.closed:
            return
        inbox.letters.append(letter)
        inbox.changed.notify()

    def _collect(self, name: str, timeout_s: float) -> Letter | None:
        """Wait for the next letter in the inbox of `name`; None after `timeout_s` seconds without one."""
        with self._lock:
            inbox = self._inboxes[name]
            deadline = time.monotonic() + timeout_s
            while True:
                self._check()
                if inbox.letters:
                    return inbox.letters.popleft()
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                inbox.waiting = True
                self._release_if_all_wait()
                if not inbox.letters:
                    inbox.changed.wait(left)
                inbox.waiting = False

    def _release_if_all_wait(self) -> None:
        if self._stalled and all(
            inbox.closed or (inbox.waiting and not inbox.letters) for inbox in self._inboxes.values()
        ):
            self._release(self._stalled[0])

    def _leave(self, name: str) -> None:
        with self._lock:
            inbox = self._inboxes[name]
            inbox.closed = True
            inbox.letters.clear()
            self._release_if_all_wait()

    def _check(self) -> None:
        if self._reason:
            raise NetworkError("E509", f"the network was ended: {self._reason}")


@dataclass
class _Inbox:
    """The letters that arrived for one role. waiting: whether its owner is blocked in `receive`."""

    changed: threading.Condition
    letters: deque[Letter] = field(default_factory=deque)
    waiting: bool = False
    closed: bool = False


class MemoryChannel:
    """One role's end of a `MemoryNetwork`; a `Channel`."""

    def __init__(self, name: str, network: MemoryNetwork, ends: list[Kill | Stop]) -> None:
        self.name = name
        self._network = network
        self._ends = ends  # scripted ends of this role
        self._passed = 0
        self._numbers = SequenceNumbers(name)
        self._closed = False

    def send(self, peer: str, message: Message) -> Message:
        """Queue `message` for `peer`; see `Channel`."""
        self._check_alive(message)
        message = message.to_owned()
        self._network._check_peer(self.name, peer)
        sequence = self._numbers.next(peer)
        self._network._post((self.name, peer), (sequence, self._as_sent(message, sequence)))
        self._numbers.count_sent(peer, message)
        return message

    def copy(self, tensor: Tensor) -> Tensor:
        """Copy a tensor; see `Channel`."""
        return tensor.clone()

    def empty(self, peer: str, size: int, dtype: torch.dtype) -> Tensor:
        """Return memory [size]; see `Channel`."""
        return torch.empty(size, dtype=dtype)

    def receive(self, timeout_s: float) -> Message:
        """Wait for the next message of any peer; SilenceError after `timeout_s` seconds without one."""
        message = self._next(timeout_s)
        if message is None:
            raise silence_error(self.name, timeout_s, state=self._numbers.describe_malformed())
        return message

    def poll(self) -> Message | None:
        """Return the next message if one is there, without waiting."""
        return self._next(0)

    def statistics(self) -> dict[str, dict[str, int]]:
        """Count messages and tensor bytes so far, by peer; see `Channel`."""
        return self._numbers.statistics()

    def close(self) -> None:
        """Leave the network; messages still sent to this role are lost."""
        if not self._closed:
            self._closed = True
            self._network._leave(self.name)

    def __repr__(self) -> str:
        return f"MemoryChannel({self.name}, {'closed' if self._closed else 'open'}, {self._numbers})"

    def _next(self, timeout_s: float) -> Message | None:
        deadline = time.monotonic() + timeout_s
        while True:
            self._check_open()
            letter = self._network._collect(self.name, max(0.0, deadline - time.monotonic()))
            if letter is None:
                return None
            sequence, message = letter
            if self._numbers.check_arrival(sequence, message):
                self._check_alive(message)
                return message

    def _as_sent(self, message: Message, sequence: int) -> Message:
        frames = encode(message, job="memory", sender=self.name, sequence=sequence, inline_bytes=0)
        if self._network.copies:
            frames = [bytes(frame) for frame in frames]
        return decode(frames, job="memory")[1]

    def _check_open(self) -> None:
        if self._closed:
            raise NetworkError("E511", f"the channel of {self.name} is closed")

    def _check_alive(self, message: Message) -> None:
        self._check_open()
        for end in self._ends:
            if message.step != end.step and self._passed != end.nth:
                continue
            if isinstance(end, Stop):
                self._network._freeze()
            self.close()
            raise ProcessLost("E602", f"{self.name} was killed, as scripted, at step {message.step}")
        self._passed += 1
