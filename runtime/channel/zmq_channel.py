"""`ZmqChannel`: a `Channel` over ZeroMQ - one ROUTER inbox, one DEALER a peer, CURVE keys on every connection."""

import math
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import Any

import zmq
from torch import Tensor

from ...errors import NetworkError
from ..launcher.assignment import LAUNCHER
from .channel import silence, unknown_peer
from .curve import DOMAIN, Gate
from .keys import Keys
from .sequence_numbers import Ledger
from .link import Link
from .bind import listen
from .message import FRAME_BYTES, MalformedError, Message, decode, encode
from .same_host import MEMORY, Neighbours
from .shared_memory import ARENA_BYTES

MAX_FRAME_BYTES = 1 << 30
_OVERHEAD_BYTES = 1024  # what CURVE adds to a frame, generously
SIDE = "#"  # a sender "worker 1#beacon" is a side line of worker 1, with sequence numbers of its own
BEACON = f"{SIDE}beacon"  # the only one there is
DIRECTORY = "@directory"  # from the launcher, which no role sees: {"here": {name: endpoint}, "gone": [name]}
LOST = "@lost"  # to the launcher: {"peer", "code", "facts", "fix"} of a link on which messages were lost
LOOK_S = 0.5  # between two looks at all links
_NOW, _READABLE = int(zmq.NOBLOCK), int(zmq.POLLIN)  # as numbers, which are quicker


class ZmqChannel:
    """One role's end of the network. host: the address of one interface to listen on; the port is any free one.
    shared_bytes: of memory at most that is shared with each peer on this host, 0 for none. encrypted: without it
    anybody may connect and send under any name; only on loopback, to measure what encryption costs.

    Peers are connected at the first message, from the directory given to `introduce`. Who connects must hold a key on
    the list, and may only send under the name that the key belongs to.

    A link that breaks, or on which a message is missing, is told to the launcher, which knows more than either end of
    it; where there is none, `poll` and `receive` raise NetworkError.
    """

    def __init__(
        self,
        name: str,
        job: str,
        keys: Keys,
        *,
        host: str = "127.0.0.1",
        max_frame_bytes: int = MAX_FRAME_BYTES,
        shared_bytes: int = ARENA_BYTES,
        encrypted: bool = True,
    ) -> None:
        self.name = name
        self.job = job
        self._keys = keys
        self._max_frame_bytes = max_frame_bytes
        self._frame_bytes = min(FRAME_BYTES, max_frame_bytes) if encrypted else max_frame_bytes
        self._encrypted = encrypted
        self._directory: dict[str, str] = {}
        self._links: dict[str, Link] = {}
        self._connecting: list[Link] = []
        self._ledger = Ledger(name)
        self._neighbours = Neighbours(host, size=shared_bytes)
        self._put_back: deque[Message] = deque()
        self._gone: set[str] = set()
        self._given_up: set[str] = set()  # peers whose messages are no longer complete, one way or the other
        self._held: dict[str, list[Message]] = {}  # for peers that were faster than the launcher's word about them
        self._look_at = 0.0
        self._owner: int | None = None
        self._closed = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gate = Gate(self._context, keys)
        self._inbox = self._context.socket(zmq.ROUTER)
        try:
            self.endpoint = self._bind(host)
        except NetworkError:
            self.close()
            raise

    def introduce(self, directory: Mapping[str, str]) -> None:
        """Learn where peers listen: {name: endpoint}."""
        self._directory |= directory

    def forget(self, peer: str) -> None:
        """The peer has ended for good: close the link to it, and drop and count what is still sent to it."""
        self._gone.add(peer)
        self._directory.pop(peer, None)
        link = self._links.pop(peer, None)
        if link is not None:
            self._connecting = [other for other in self._connecting if other is not link]
            link.close(linger_ms=0)
        self._neighbours.forget(peer)
        for _ in self._held.pop(peer, []):
            self._ledger.undelivered(peer)

    def send(self, peer: str, message: Message) -> Message:
        """Queue `message` for `peer` and return at once; see `Channel`."""
        self._check_use()
        if peer in self._gone:
            self._ledger.undelivered(peer)
            return message.owned()
        if peer not in self._directory and self._ledger.expected(peer):
            message = message.owned()
            self._held.setdefault(peer, []).append(message)
            return message
        link = self._links.get(peer) or self._connect(peer)
        if message.tensors:
            offer = self._neighbours.offer(peer, link.endpoint, message)
            if offer is not None:
                self.send(peer, offer)
        message, places = self._neighbours.placed(peer, message)
        sequence = self._ledger.next(peer)
        frames = encode(
            message, job=self.job, sender=self.name, sequence=sequence, places=places, frame_bytes=self._frame_bytes
        )
        largest = max(map(len, frames))
        if largest > self._max_frame_bytes:
            raise NetworkError(
                "E510",
                f"{self.name} has a frame of {largest} bytes for {peer} in a message {message.kind!r}; "
                f"{self._max_frame_bytes} are allowed",
                fix="send large data as tensors, not in the body",
            )
        link.send(frames)
        self._ledger.sent(peer, message)
        return message

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor that will be sent often; see `Channel`."""
        return self._neighbours.copy(tensor)

    def receive(self, timeout_s: float) -> Message:
        """The next message of any peer; SilenceError after `timeout_s` seconds without one."""
        deadline = time.monotonic() + timeout_s
        while (message := self.poll()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise silence(self.name, timeout_s, state=self._state())
            self.wait(min(left, LOOK_S))
        return message

    def poll(self) -> Message | None:
        """The next message if one is there."""
        self._check_use()
        if self._connecting:
            self._check_handshakes()
        if time.monotonic() >= self._look_at:
            self._look()
        if self._put_back:
            return self._put_back.popleft()
        while True:
            try:
                frames = [self._inbox.recv(_NOW, copy=False)]
            except zmq.Again:
                return None
            while frames[-1].more:
                frames.append(self._inbox.recv(_NOW, copy=False))
            message = self._read(frames)
            if message is not None:
                return message

    def put_back(self, messages: Iterable[Message]) -> None:
        """Let these be received (again) before any other: they came before their reader was ready."""
        self._put_back.extend(messages)

    def wait(self, timeout_s: float, *, files: Collection[int] = ()) -> None:
        """Sleep until something may be there to `poll`, one of the file descriptors is readable, or time is up."""
        self._check_use()
        sources: tuple[Any, ...] = (self._inbox, *(link.monitor for link in self._connecting), *files)
        zmq.zmq_poll([(source, _READABLE) for source in sources], math.ceil(timeout_s * 1000))

    def side_link(self, peer: str) -> Link:
        """A connection of its own to `peer`, for another thread; its owner closes it before this channel is closed."""
        keys = self._keys if self._encrypted else None
        # A launcher that a user has stopped for a while (Ctrl-Z) is not lost; if it ends, so does this process.
        return Link(self._context, keys, peer=peer, endpoint=self._endpoint(peer), pings=peer != LAUNCHER)

    def statistics(self) -> dict[str, dict[str, int]]:
        """Messages and tensor bytes so far, by peer."""
        return self._ledger.statistics()

    @property
    def refused(self) -> int:
        """How often a connection was refused because its key is not on the list."""
        return self._gate.refused

    def close(self) -> None:
        """Release the end point; queued messages are flushed for at most a second."""
        if self._closed:
            return
        self._closed = True
        for link in self._links.values():
            link.close()
        self._neighbours.close()
        self._inbox.close(0)
        self._context.term()
        self._gate.join()

    def __enter__(self) -> "ZmqChannel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        links = ", ".join(f"{peer}: {link.state}" for peer, link in self._links.items())
        return f"ZmqChannel({self.name} at {self.endpoint}, {'closed' if self._closed else 'open'}, links={{{links}}})"

    def _bind(self, host: str) -> str:
        self._inbox.linger = 0
        self._inbox.rcvhwm = 0
        self._inbox.maxmsgsize = self._max_frame_bytes + _OVERHEAD_BYTES
        if self._encrypted:
            self._inbox.curve_server = True
            self._inbox.curve_secretkey = self._keys.secret.encode()
            self._inbox.zap_domain = DOMAIN
        return listen(self._inbox, self.name, host, encrypted=self._encrypted)

    def _endpoint(self, peer: str) -> str:
        if peer not in self._directory or peer not in self._keys.allowed:
            raise unknown_peer(self.name, peer, list(self._directory))
        return self._directory[peer]

    def _connect(self, peer: str) -> Link:
        link = self._links[peer] = self.side_link(peer)
        self._connecting.append(link)
        return link

    def _check_handshakes(self) -> None:
        for link in self._connecting:
            link.check()
        self._connecting = [link for link in self._connecting if not link.connected]

    def _look(self) -> None:
        """Give up the peers to which a link is lost."""
        self._look_at = time.monotonic() + LOOK_S
        for link in list(self._links.values()):
            link.check()
            if link.lost and link.peer != LAUNCHER and link.peer not in self._given_up:
                facts = f"the link from {self.name} to {link.peer} ({link.endpoint}) {link.fate()}"
                fix = f"check the network between the machines of {self.name} and {link.peer}"
                self._give_up(link.peer, NetworkError("E514", facts, fix=fix))

    def _give_up(self, peer: str, error: NetworkError) -> None:
        """Messages between this role and the peer are lost: tell the launcher, or raise where there is none."""
        self._given_up.add(peer)
        body = {"peer": peer, "code": error.code, "facts": error.facts, "fix": error.fix}
        if self.name == LAUNCHER:
            self._put_back.append(Message(LOST, body=body, sender=LAUNCHER))
        elif LAUNCHER in self._directory and peer != LAUNCHER:
            self.send(LAUNCHER, Message(LOST, body=body))
        else:
            raise error

    def _learn(self, body: dict[str, Any]) -> None:
        """What the launcher says of who is there."""
        self.introduce(body["here"])
        for name in body["gone"]:
            self.forget(name)
        for name in [name for name in self._held if name in self._directory]:
            for message in self._held.pop(name):
                self.send(name, message)

    def _read(self, frames: list[zmq.Frame]) -> Message | None:
        """The message in the frames; None for one that is dropped and counted."""
        owner = str(frames[-1].get("User-Id")) if self._encrypted else ""
        try:
            header, message = decode(
                [frame.buffer for frame in frames[1:]], job=self.job, readers=self._neighbours.readers
            )
        except MalformedError:
            self._ledger.malformed(owner)
            return None
        if self._encrypted and header.sender not in (owner, owner + BEACON):
            self._ledger.malformed(owner)
            return None
        if not self._is_next(header.sequence, message):
            return None
        if message.kind == DIRECTORY and message.sender == LAUNCHER:
            self._learn(message.body)
            return None
        if message.kind != MEMORY:
            self._neighbours.take_back()
            return message
        answer = self._neighbours.heard(message)
        if answer is not None:
            self.send(message.sender, answer)
        return None

    def _is_next(self, sequence: int, message: Message) -> bool:
        """Whether it is to be read: not what came before, nor what follows a gap or comes from the dead."""
        sender = message.sender.partition(SIDE)[0]
        if sender in self._gone or (sender in self._given_up and sequence > self._ledger.expected(message.sender)):
            return False
        try:
            return self._ledger.arrived(sequence, message)
        except NetworkError as gap:
            self._give_up(sender, gap)
            return False

    def _state(self) -> str:
        """What stands in the way, in words."""
        for link in self._links.values():
            link.check()
        bad = [f"{link.peer} at {link.endpoint}: {link.state}" for link in self._links.values() if not link.connected]
        return self._ledger.dropped() + (f"; links that are not up: {', '.join(bad)}" if bad else "")

    def _check_use(self) -> None:
        if self._closed:
            raise NetworkError("E511", f"the channel of {self.name} is closed")
        thread = threading.get_ident()
        if self._owner is None:
            self._owner = thread
        if self._owner != thread:
            raise RuntimeError(f"the channel of {self.name} is used by two threads")
