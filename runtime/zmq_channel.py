"""`ZmqChannel`: a `Channel` over ZeroMQ - one ROUTER inbox, one DEALER a peer, CURVE keys on every connection."""

import math
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType

import zmq

from ..partition.errors import NetworkError
from .channel import silence, unknown_peer
from .gate import DOMAIN, Gate
from .keys import Keys
from .ledger import Ledger
from .link import Link
from .message import MalformedError, Message, decode, encode
from .neighbours import MEMORY, Neighbours
from .shared_memory import ARENA_BYTES

MAX_FRAME_BYTES = 1 << 30
_OVERHEAD_BYTES = 1024  # what CURVE adds to a frame, generously
SIDE = "#"  # a sender "worker 1#beacon" is a side line of worker 1, with sequence numbers of its own
BEACON = f"{SIDE}beacon"  # the only one there is


class ZmqChannel:
    """One role's end of the network. host: the address of one interface to listen on; the port is any free one.
    shared_bytes: of memory at most that is shared with each peer on this host, 0 for none. encrypted: without it
    anybody may connect and send under any name; only on loopback, to measure what encryption costs.

    Peers are connected at the first message, from the directory given to `introduce`. Who connects must hold a key on
    the list, and may only send under the name that the key belongs to.
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
        self._encrypted = encrypted
        self._directory: dict[str, str] = {}
        self._links: dict[str, Link] = {}
        self._connecting: list[Link] = []
        self._ledger = Ledger(name)
        self._neighbours = Neighbours(host, size=shared_bytes)
        self._put_back: deque[Message] = deque()
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

    def send(self, peer: str, message: Message) -> None:
        """Queue `message` for `peer` and return at once; its tensors must not be written afterwards."""
        self._check_use()
        link = self._links.get(peer) or self._connect(peer)
        if message.tensors:
            offer = self._neighbours.offer(peer, link.endpoint, message)
            if offer is not None:
                self.send(peer, offer)
        arena = self._neighbours.arena(peer)
        frames = encode(message, job=self.job, sender=self.name, sequence=self._ledger.next(peer), writer=arena)
        largest = max(len(frame) for frame in frames)
        if largest > self._max_frame_bytes:
            raise NetworkError(
                "E510",
                f"{self.name} has a tensor of {largest} bytes for {peer} in a message {message.kind!r}; "
                f"{self._max_frame_bytes} are allowed",
                fix="send it in pieces",
            )
        link.send(frames)
        self._ledger.sent(peer, message)

    def receive(self, timeout_s: float) -> Message:
        """The next message of any peer; SilenceError after `timeout_s` seconds without one."""
        deadline = time.monotonic() + timeout_s
        while (message := self.poll()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise silence(self.name, timeout_s, state=self._state())
            self.wait(left)
        return message

    def poll(self) -> Message | None:
        """The next message if one is there."""
        self._check_use()
        if self._connecting:
            self._check_handshakes()
        if self._put_back:
            return self._put_back.popleft()
        while True:
            try:
                frames = self._inbox.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            message = self._read(frames)
            if message is not None:
                return message

    def put_back(self, messages: Iterable[Message]) -> None:
        """Let these be received (again) before any other: they came before their reader was ready."""
        self._put_back.extend(messages)

    def wait(self, timeout_s: float, *, files: Collection[int] = ()) -> None:
        """Sleep until something may be there to `poll`, one of the file descriptors is readable, or time is up."""
        self._check_use()
        poller = zmq.Poller()
        for source in (self._inbox, *(link.monitor for link in self._connecting), *files):
            poller.register(source, zmq.POLLIN)
        poller.poll(math.ceil(timeout_s * 1000))

    def side_link(self, peer: str) -> Link:
        """A connection of its own to `peer`, for another thread; its owner closes it before this channel is closed."""
        keys = self._keys if self._encrypted else None
        return Link(self._context, keys, peer=peer, endpoint=self._endpoint(peer))

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
        if not self._encrypted and not host.startswith("127."):
            raise NetworkError("E512", f"{self.name} would listen on {host} without encryption", fix="use 127.0.0.1")
        if host in ("*", "0.0.0.0", "::"):
            raise NetworkError(
                "E512",
                f"{self.name} would listen on every interface ({host})",
                fix="give the address of one, 127.0.0.1",
            )
        self._inbox.linger = 0
        self._inbox.rcvhwm = 0
        self._inbox.maxmsgsize = self._max_frame_bytes + _OVERHEAD_BYTES
        if self._encrypted:
            self._inbox.curve_server = True
            self._inbox.curve_secretkey = self._keys.secret.encode()
            self._inbox.zap_domain = DOMAIN
        try:
            self._inbox.bind(f"tcp://{host}:0")
        except zmq.ZMQError as error:
            raise NetworkError(
                "E512",
                f"{self.name} cannot listen on {host!r}: {error.strerror}",
                fix="give an address of this machine",
            ) from error
        return self._inbox.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

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
        if not self._ledger.arrived(header.sequence, message):
            return None
        if message.kind != MEMORY:
            return message
        answer = self._neighbours.heard(message)
        if answer is not None:
            self.send(message.sender, answer)
        return None

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
