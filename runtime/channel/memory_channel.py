"""`MemoryNetwork`: the in-process twin of the ZeroMQ channel, with scripted faults; each role runs in a thread.

It keeps the same promises - order, sequence numbers, a deadline on every wait - and is how most tests run.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ...errors import NetworkError, ProcessLost
from .channel import silence, unknown_peer
from .faults import Fault, Kill, Stop, fate
from .sequence_numbers import Ledger
from .message import Message, decode, encode

Link = tuple[str, str]
Letter = tuple[int, Message]  # sequence number and message


@dataclass
class _Held:
    """Letters of a link that stands still until `by` more messages were sent elsewhere."""

    link: Link
    by: int
    letters: list[Letter] = field(default_factory=list)


class MemoryNetwork:
    """Channels between threads. faults: what goes wrong, in `faults.py`; copies: whether tensors are copied.

    Every message is encoded and decoded; without `copies` a tensor that arrives is the sender's own memory.
    """

    def __init__(self, faults: Iterable[Fault] = (), *, copies: bool = False) -> None:
        self.copies = copies
        self._faults = tuple(faults)
        self._lock = threading.RLock()
        self._inboxes: dict[str, _Inbox] = {}
        self._counts: Counter[Link] = Counter()
        self._held: list[_Held] = []
        self._swapped: dict[Link, Letter] = {}
        self._reason = ""
        self._ended = threading.Condition(self._lock)

    def channel(self, name: str) -> "MemoryChannel":
        """The end point of role `name`. Make all before the first message is sent."""
        with self._lock:
            if name in self._inboxes:
                raise ValueError(f"there is already a channel {name!r}")
            self._inboxes[name] = _Inbox(threading.Condition(self._lock))
        ends = [f for f in self._faults if isinstance(f, Kill | Stop) and f.role == name]
        return MemoryChannel(name, self, ends)

    def run(self, roles: Mapping[str, Callable[["MemoryChannel"], Any]]) -> dict[str, Any]:
        """Run each role in a thread with a channel of its own; what each returned. The first that raises ends all."""
        results: dict[str, Any] = {}
        errors: list[BaseException] = []
        channels = {name: self.channel(name) for name in roles}

        def life(name: str) -> None:
            try:
                results[name] = roles[name](channels[name])
            except BaseException as error:  # whatever it is, it is raised again below, in the caller's thread
                errors.append(error)
                self.abort(f"{name} raised {type(error).__name__}: {error}")
            finally:
                channels[name].close()

        threads = [threading.Thread(target=life, args=(name,), name=name) for name in roles]
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
        """Make every blocked and every later call of any channel raise NetworkError at once. The first reason stays."""
        with self._lock:
            self._reason = self._reason or reason
            self._ended.notify_all()
            for inbox in self._inboxes.values():
                inbox.changed.notify_all()

    def __repr__(self) -> str:
        waiting = {name: len(inbox.letters) for name, inbox in self._inboxes.items()}
        return f"MemoryNetwork(inboxes={waiting}, held={len(self._held)}, aborted={self._reason!r})"

    def _post(self, link: Link, letter: Letter) -> None:
        """Take a letter from its sender and apply the faults that are scripted for it."""
        with self._lock:
            self._check()
            nth, back = self._counts[link], self._counts[link[::-1]]
            self._counts[link] += 1
            what = fate(self._faults, link, nth=nth, between=nth + back)
            if what.held_by:
                self._held.append(_Held(link, what.held_by))
            if what.after_next:
                self._swapped[link] = letter
                return
            for _ in range(what.copies):
                self._pass_on(link, letter)
            if link in self._swapped:
                self._pass_on(link, self._swapped.pop(link))
            self._count_down(link)

    def _freeze(self) -> None:
        """Block until the network is ended, and raise."""
        with self._lock:
            while not self._reason:
                self._ended.wait()
            self._check()

    def _check_peer(self, name: str, peer: str) -> None:
        if peer not in self._inboxes:
            raise unknown_peer(name, peer, list(self._inboxes))

    def _pass_on(self, link: Link, letter: Letter) -> None:
        for held in self._held:
            if held.link == link:
                held.letters.append(letter)
                return
        self._deliver(link, letter)

    def _count_down(self, link: Link) -> None:
        for held in [h for h in self._held if h.link != link]:
            held.by -= 1
            if held.by <= 0:
                self._release(held)

    def _release(self, held: _Held) -> None:
        self._held.remove(held)
        for letter in held.letters:
            self._deliver(held.link, letter)

    def _deliver(self, link: Link, letter: Letter) -> None:
        inbox = self._inboxes[link[1]]
        if inbox.closed:
            return
        inbox.letters.append(letter)
        inbox.changed.notify()

    def _collect(self, name: str, timeout_s: float) -> Letter | None:
        """The next letter in the inbox of `name`, or None after `timeout_s` seconds."""
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
        if self._held and all(
            inbox.closed or (inbox.waiting and not inbox.letters) for inbox in self._inboxes.values()
        ):
            self._release(self._held[0])

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
    """What arrived for one role. waiting: its owner is blocked in `receive`."""

    changed: threading.Condition
    letters: deque[Letter] = field(default_factory=deque)
    waiting: bool = False
    closed: bool = False


class MemoryChannel:
    """One role's end of a `MemoryNetwork`; a `Channel`."""

    def __init__(self, name: str, network: MemoryNetwork, ends: list[Kill | Stop]) -> None:
        self.name = name
        self._network = network
        self._ends = ends
        self._passed = 0
        self._ledger = Ledger(name)
        self._closed = False

    def send(self, peer: str, message: Message) -> Message:
        """Queue `message` for `peer`; see `Channel`."""
        self._check_alive(message)
        message = message.owned()
        self._network._check_peer(self.name, peer)
        sequence = self._ledger.next(peer)
        self._network._post((self.name, peer), (sequence, self._as_sent(message, sequence)))
        self._ledger.sent(peer, message)
        return message

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor."""
        return tensor.clone()

    def receive(self, timeout_s: float) -> Message:
        """The next message of any peer; SilenceError after `timeout_s` seconds without one."""
        message = self._next(timeout_s)
        if message is None:
            raise silence(self.name, timeout_s, state=self._ledger.dropped())
        return message

    def poll(self) -> Message | None:
        """The next message if one is there."""
        return self._next(0)

    def statistics(self) -> dict[str, dict[str, int]]:
        """Messages and tensor bytes so far, by peer."""
        return self._ledger.statistics()

    def close(self) -> None:
        """Leave the network; what is still sent to this role is lost."""
        if not self._closed:
            self._closed = True
            self._network._leave(self.name)

    def __repr__(self) -> str:
        return f"MemoryChannel({self.name}, {'closed' if self._closed else 'open'}, {self._ledger})"

    def _next(self, timeout_s: float) -> Message | None:
        deadline = time.monotonic() + timeout_s
        while True:
            self._check_open()
            letter = self._network._collect(self.name, max(0.0, deadline - time.monotonic()))
            if letter is None:
                return None
            sequence, message = letter
            if self._ledger.arrived(sequence, message):
                self._check_alive(message)
                return message

    def _as_sent(self, message: Message, sequence: int) -> Message:
        frames = encode(message, job="memory", sender=self.name, sequence=sequence)
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
