"""`ZmqChannel`: a `Channel` over ZeroMQ, with one ROUTER inbox, one DEALER per peer, and CURVE keys everywhere.

Messages are numbered for each peer; a missing one is an error, never resent by the channel. Resending (retransmission)
is the business of the parameter server's client, whose messages carry numbers of their own.
"""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import zmq
from torch import Tensor

from ...errors import NetworkError
from ..sealing.sealer import ForgedError
from .bind import listen
from .channel import DIRECTORY, KEYS_KNOWN, NOTHING, silence_error
from .curve import ZAP_DOMAIN, Keys, ZapAuthenticator
from .message import LAUNCHER, MAX_ENCRYPTED_FRAME_BYTES, Buffer, Header, MalformedError, Message, decode, encode
from .peer_connection import PeerConnection, PeerConnections, describe_states
from .same_host import SHARED_MEMORY, SameHostPeers
from .sealed_peers import BEGUN, SEALED, SealedPeers
from .sequence_numbers import SequenceNumbers
from .shared_memory import ARENA_BYTES

MAX_FRAME_BYTES = 1 << 30
_OVERHEAD_BYTES = 1024  # more than CURVE adds to a frame
SIDE = "#"  # sender "worker 1#heartbeat" is a second connection of worker 1, with sequence numbers of its own
HEARTBEAT = f"{SIDE}heartbeat"  # suffix of the only one there is
CONNECTION_LOST = "@connection_lost"  # to the launcher: {"peer", "code", "facts", "fix"} of one that lost messages
CHECK_S = 0.5  # between two checks of all connections
SPIN_S = 100e-6  # a thread that sleeps may take longer than this to wake up; meanwhile others may have the core
BULK_BYTES, BULK_S = 1 << 20, 0.05  # for so long after a message of so many bytes, cores are for those who move them
_NOW, _READABLE = int(zmq.NOBLOCK), int(zmq.POLLIN)  # plain numbers are faster than flags


class ZmqChannel(AbstractContextManager["ZmqChannel"]):
    """One role's end of the network.

    host: the address of one interface to listen on, at any free port or, as "ADDRESS:FIRST-LAST", at one of a range.
    shared_bytes: the most memory to share with each peer on this host, 0 for none. encrypted: without it anybody may
    connect and send under any name; only allowed on loopback, to measure what encryption costs. looking_s: the CPU time
    that `wait` took so far.

    A peer is connected at the first message to it, at the end point that `introduce` gave. Whoever connects must hold a
    key on the list, and may not send under the name of a peer that is known to have another key. Before the first large
    tensor for another host comes a second connection (sealed_peers.py). The launcher hears of a connection that breaks,
    or lacks a message; in a process without one, `poll` and `receive` raise NetworkError.
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
        self.name, self.job, self.looking_s = name, job, 0.0
        self._keys, self._encrypted, self._max_frame_bytes = keys, encrypted, max_frame_bytes
        self._numbers = SequenceNumbers(name)
        self._same_host = SameHostPeers(host.partition(":")[0], size=shared_bytes)
        self._requeued: deque[Message] = deque()
        self._ended_peers: set[str] = set()  # peers that have ended
        self._incomplete: set[str] = set()  # peers whose messages, in or out, are no longer complete
        self._unroutable: dict[str, list[Message]] = {}  # for peers whose end point the launcher has yet to send
        self._next_check, self._bulk_until, self._closed = 0.0, 0.0, False
        self._owner: int | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connections = PeerConnections(name, self._context, keys, encrypted=encrypted)
        self._authenticator = ZapAuthenticator(self._context, keys)
        self._sealed = SealedPeers(self._context, self._authenticator, name=name, job=job, host=host)
        self._inbox = self._context.socket(zmq.ROUTER)
        try:
            self.endpoint = self._bind(host)
        except NetworkError:
            self.close()
            raise

    def introduce(self, directory: Mapping[str, str], *, key_owners: Mapping[str, str] = NOTHING) -> None:
        """Learn where peers listen, {name: endpoint}, and whose keys they hold: {name: owner}."""
        self._connections.introduce(directory, key_owners)

    def forget(self, peer: str) -> None:
        """The peer has ended for good: close the connection to it, and drop and count what is still sent to it."""
        self._ended_peers.add(peer)
        self._connections.forget(peer)
        self._same_host.forget(peer)
        self._sealed.forget(peer)
        for _ in self._unroutable.pop(peer, []):
            self._numbers.count_undelivered(peer)

    def send(self, peer: str, message: Message) -> Message:
        """Queue `message` for `peer` and return at once; see `Channel`."""
        self._check_use()
        if peer in self._ended_peers:
            self._numbers.count_undelivered(peer)
            return message.to_owned()
        if peer not in self._connections.directory and self._numbers.next_expected(peer):
            message = message.to_owned()
            self._unroutable.setdefault(peer, []).append(message)
            return message
        connection = self._connections.get(peer)
        if message.tensors:
            offer = self._same_host.offer_memory(peer, connection.endpoint, message)
            if offer is None and self._encrypted and self._same_host.is_elsewhere(peer, connection.endpoint):
                offer = self._sealed.offer(peer, connection.endpoint, message)
            if offer is not None:
                self.send(peer, offer)
        message, slots = self._same_host.place_tensors(peer, message)
        sequence, sealed = self._numbers.next(peer), self._sealed.connection(peer)
        is_curve = self._encrypted and sealed is None
        most = min(MAX_ENCRYPTED_FRAME_BYTES, self._max_frame_bytes) if is_curve else self._max_frame_bytes
        frames = encode(message, job=self.job, sender=self.name, sequence=sequence, slots=slots, frame_bytes=most)
        self._note_bulk(frames)
        largest = max(map(len, frames))
        if largest > self._max_frame_bytes:
            raise NetworkError(
                "E510",
                f"{self.name} has a frame of {largest} bytes for {peer} in a message {message.kind!r}; "
                f"{self._max_frame_bytes} are allowed",
                fix="send large data as tensors, not in the body",
            )
        (sealed or connection).send(frames)
        self._numbers.count_sent(peer, message)
        return message

    def copy(self, tensor: Tensor) -> Tensor:
        """Copy a tensor that will be sent often; see `Channel`."""
        return self._same_host.copy(tensor)

    def empty(self, peer: str, size: int, dtype: torch.dtype) -> Tensor:
        """Return memory [size] for a tensor that is to be sent to a peer; see `Channel`."""
        return self._same_host.empty(peer, size, dtype)

    def receive(self, timeout_s: float) -> Message:
        """Wait for the next message of any peer; SilenceError after `timeout_s` seconds without one."""
        deadline = time.monotonic() + timeout_s
        while (message := self.poll()) is None:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                state = self._numbers.describe_malformed() + describe_states(list(self._connections))
                raise silence_error(self.name, timeout_s, state=state)
            self.wait(min(remaining_s, CHECK_S))
        return message

    def poll(self) -> Message | None:
        """Return the next message if one is there, without waiting."""
        self._check_use()
        if self._connections.new or self._sealed.is_connecting:
            self._check_handshakes()
        if time.monotonic() >= self._next_check:
            self._check_connections()
        if self._requeued:
            return self._requeued.popleft()
        while True:
            try:
                frames = [self._inbox.recv(_NOW, copy=False)]
            except zmq.Again:
                return self._poll_sealed()
            while frames[-1].more:
                frames.append(self._inbox.recv(_NOW, copy=False))
            if (message := self._read(frames)) is not None:
                return message

    def requeue(self, messages: Iterable[Message]) -> None:
        """Receive these messages again, before any other: they came before their reader was ready."""
        self._requeued.extend(messages)

    def wait(self, timeout_s: float, *, files: Collection[int] = ()) -> None:
        """Sleep until something may be there to `poll`, one of the file descriptors is readable, or time is up."""
        self._check_use()
        monitors = (connection.monitor for connection in self._connections.new)
        polled: list[Any] = [(one, _READABLE) for one in (self._inbox, *monitors, *self._sealed.sources, *files)]
        now, busy_s = time.monotonic(), time.thread_time()
        until = now + (min(SPIN_S, timeout_s) if now >= self._bulk_until else 0.0)
        while not zmq.zmq_poll(polled, 0):
            if time.monotonic() >= until:
                zmq.zmq_poll(polled, math.ceil(timeout_s * 1000))
                break
            os.sched_yield()
        self.looking_s += time.thread_time() - busy_s

    def open_connection(self, peer: str) -> PeerConnection:
        """Open a connection of its own to `peer`, for another thread, which closes it before this channel is closed."""
        return self._connections.open(peer)

    def statistics(self) -> dict[str, dict[str, int]]:
        """Count messages and tensor bytes so far, by peer; see `Channel`."""
        return self._numbers.statistics()

    @property
    def refused(self) -> int:
        """How many connections were refused because their key is not on the list."""
        return self._authenticator.refused

    def close(self) -> None:
        """Release the end point. Queued messages are still sent, for at most a second."""
        if self._closed:
            return
        self._closed = True
        for connection in self._connections:
            connection.close()
        self._same_host.close()
        self._sealed.close()
        self._inbox.close(0)
        self._context.term()
        self._authenticator.join()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        connections = ", ".join(f"{c.peer}: {c.state}" for c in self._connections)
        return f"ZmqChannel({self.name} at {self.endpoint}, {state}, connections={{{connections}}})"

    def _bind(self, host: str) -> str:
        self._inbox.linger = 0
        self._inbox.rcvhwm = 0
        self._inbox.maxmsgsize = self._max_frame_bytes + _OVERHEAD_BYTES
        if self._encrypted:
            self._inbox.curve_server = True
            self._inbox.curve_secretkey = self._keys.secret.encode()
            self._inbox.zap_domain = ZAP_DOMAIN
        return listen(self._inbox, self.name, host, encrypted=self._encrypted)

    def _check_handshakes(self) -> None:
        self._connections.check_new()
        for peer in self._sealed.take_connected():
            self.send(peer, BEGUN)
            self._sealed.begin(peer)

    def _check_connections(self) -> None:
        """Report the peers to which the connection is lost."""
        self._next_check = time.monotonic() + CHECK_S
        for connection in [*self._connections, *self._sealed.connections]:
            connection.check()
            peer = connection.peer
            if connection.lost and peer != LAUNCHER and peer not in self._incomplete:
                way = f"from {self.name} to {peer} ({connection.endpoint})"
                facts = f"the connection {way} {connection.describe_loss()}"
                fix = f"check the network between the machines of {self.name} and {peer}"
                self._report_loss(peer, NetworkError("E514", facts, fix=fix))

    def _report_loss(self, peer: str, error: NetworkError) -> None:
        """Tell the launcher that messages to or from the peer are lost; raise the error where there is no launcher."""
        self._incomplete.add(peer)
        body = {"peer": peer, "code": error.code, "facts": error.facts, "fix": error.fix}
        if self.name == LAUNCHER:
            self._requeued.append(Message(CONNECTION_LOST, body=body, sender=LAUNCHER))
        elif LAUNCHER in self._connections.directory and peer != LAUNCHER:
            self.send(LAUNCHER, Message(CONNECTION_LOST, body=body))
        else:
            raise error

    def _update_directory(self, body: dict[str, Any]) -> None:
        """Take in the launcher's news of who has joined and who has ended, and send what had to wait for it."""
        self.introduce(body["joined"], key_owners=body["key_owners"])
        if body["keys"]:
            self._keys.allowed.update(body["keys"])
            self.send(LAUNCHER, Message(KEYS_KNOWN, body={"owners": list(body["keys"])}))
        for name in body["gone"]:
            self.forget(name)
        for name in [name for name in self._unroutable if name in self._connections.directory]:
            for message in self._unroutable.pop(name):
                self.send(name, message)

    def _read(self, frames: list[zmq.Frame]) -> Message | None:
        """The message in frames of the inbox; None as of `_take`."""
        owner = str(frames[-1].get("User-Id")) if self._encrypted else ""
        found = self._decode([frame.buffer for frame in frames[1:]], owner)
        if found is None:
            return None
        if self._encrypted and not self._connections.may_send_as(found[0].sender.removesuffix(HEARTBEAT), owner):
            self._numbers.count_malformed(owner)
            return None
        return self._take(*found)

    def _poll_sealed(self) -> Message | None:
        """The next message of those that came sealed, if one is there."""
        while (arrived := self._sealed.receive()) is not None:
            peer, frames = arrived
            if isinstance(frames, ForgedError):
                self._numbers.count_malformed(peer)
                self._report_loss(peer, frames)
                continue
            found = self._decode(frames, peer)
            if found is not None and found[0].sender != peer:
                self._numbers.count_malformed(peer)
            elif found is not None and (message := self._take(*found)) is not None:
                return message
        return None

    def _decode(self, frames: list[Buffer], sender: str) -> tuple[Header, Message] | None:
        """What is in the frames; None for what is dropped and counted, as the sender's."""
        self._note_bulk(frames)
        try:
            return decode(frames, job=self.job, readers=self._same_host.readers)
        except MalformedError:
            self._numbers.count_malformed(sender)
            return None

    def _note_bulk(self, frames: list[Buffer]) -> None:
        if sum(map(len, frames)) >= BULK_BYTES:
            self._bulk_until = time.monotonic() + BULK_S

    def _take(self, header: Header, message: Message) -> Message | None:
        """The message, for a role; None for one that is not the next, or that is for the channel itself."""
        if not self._is_next(header.sequence, message):
            return None
        if message.kind == DIRECTORY and message.sender == LAUNCHER:
            self._update_directory(message.body)
            return None
        if message.kind not in (SHARED_MEMORY, SEALED):
            self._same_host.reclaim()
            return message
        answer = (self._same_host if message.kind == SHARED_MEMORY else self._sealed).handle(message)
        if answer is not None:
            self.send(message.sender, answer)
        return None

    def _is_next(self, sequence: int, message: Message) -> bool:
        """Whether to read a message: not one that came before, follows a gap, or comes from a peer that has ended."""
        sender = message.sender.partition(SIDE)[0]
        is_late = sender in self._incomplete and sequence > self._numbers.next_expected(message.sender)
        if sender in self._ended_peers or is_late:
            return False
        try:
            return self._numbers.check_arrival(sequence, message)
        except NetworkError as gap:
            self._report_loss(sender, gap)
            return False

    def _check_use(self) -> None:
        if self._closed:
            raise NetworkError("E511", f"the channel of {self.name} is closed")
        thread = threading.get_ident()
        self._owner = self._owner or thread
        if self._owner != thread:
            raise RuntimeError(f"the channel of {self.name} is used by two threads")
