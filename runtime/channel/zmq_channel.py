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
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
import zmq
from torch import Tensor

from ...errors import NetworkError
from ..sealing.sealer import ForgedError
from .arrivals import Arrival, Arrivals
from .bind import listen, read_frames, set_up
from .channel import CONNECTION_LOST, DIRECTORY, KEYS_KNOWN, NOTHING, silence_error
from .curve import Keys, ZapAuthenticator
from .message import LAUNCHER, MAX_ENCRYPTED_FRAME_BYTES, Buffer, Header, MalformedError, Message, decode, encode
from .peer_connection import PeerConnection, PeerConnections, describe_states
from .same_host import SHARED_MEMORY, SameHostPeers
from .sealed_peers import BEGUN, SEALED, SealedPeers
from .sequence_numbers import SequenceNumbers
from .shared_memory import ARENA_BYTES

MAX_FRAME_BYTES = 1 << 30
SIDE = "#"  # sender "worker 1#heartbeat" is a second connection of worker 1, with sequence numbers of its own
HEARTBEAT = f"{SIDE}heartbeat"  # suffix of the only one there is
CHECK_S = 0.5  # between two checks of all connections
SPIN_S = 100e-6  # a thread that sleeps may take longer than this to wake up; meanwhile others may have the core
BULK_BYTES, BULK_S = 1 << 20, 0.05  # for so long after a message of so many bytes, cores are for those who move them
_READABLE = int(zmq.POLLIN)  # a plain number is faster than a flag


class ZmqChannel(AbstractContextManager["ZmqChannel"]):
    """One role's end of the network.

    host: the address of one interface to listen on, at any free port or, as "ADDRESS:FIRST-LAST", at one of a range.
    shared_bytes: the most memory to share with each peer on this host; 0 for none, and no sockets. encrypted: else
    anybody may send under any name; only on loopback, to measure what it costs. looking_s: the CPU time of `wait`.

    A peer is connected at the first message to it, at the end point that `introduce` gave. Whoever connects must hold a
    key on the list, and may not send under the name of a peer that is known to have another key. Other ways come with
    the first tensors (same_host.py, sealed_peers.py). The launcher hears of a connection that breaks, or lacks a
    message; in a process without one, `poll` and `receive` raise NetworkError.
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
        self._arrivals = Arrivals(self._read_local, self._read_network)
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
            set_up(self._inbox, keys if encrypted else None, max_frame_bytes=max_frame_bytes)
            self.endpoint = listen(self._inbox, name, host, encrypted=encrypted)
        except NetworkError:
            self.close()
            raise

    def introduce(self, directory: Mapping[str, str], *, key_owners: Mapping[str, str] = NOTHING) -> None:
        """Learn where peers listen, {name: endpoint}, and whose keys they hold: {name: owner}."""
        self._connections.introduce(directory, key_owners)
        self._send_unroutable()

    def forget(self, peer: str) -> None:
        """The peer has ended for good: close the connection to it, and drop and count what is still sent to it."""
        self._ended_peers.add(peer)
        self._connections.forget(peer)
        self._same_host.forget(peer)
        self._arrivals.forget(peer)
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
            self._unroutable.setdefault(peer, []).append(owned := message.to_owned())
            return owned
        connection = self._connections.get(peer)
        for offer in self._list_offers(connection, message) if message.tensors else ():
            self.send(peer, offer)
        message, slots = self._same_host.place_tensors(peer, message)
        sequence, sealed = self._numbers.next(peer), self._sealed.connection(peer)
        is_curve = self._encrypted and sealed is None
        most = min(MAX_ENCRYPTED_FRAME_BYTES, self._max_frame_bytes) if is_curve else self._max_frame_bytes
        frames = encode(message, job=self.job, sender=self.name, sequence=sequence, slots=slots, frame_bytes=most)
        self._note_bulk(frames)
        if (largest := max(map(len, frames))) > self._max_frame_bytes:
            raise NetworkError(
                "E510",
                f"{self.name} has a frame of {largest} bytes for {peer} in a message {message.kind!r}; "
                f"{self._max_frame_bytes} are allowed",
                fix="send large data as tensors, not in the body",
            )
        if len(frames) > 1 or not self._same_host.sockets.send(peer, frames[0]):
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
            if (remaining_s := deadline - time.monotonic()) <= 0:
                state = self._numbers.describe_malformed() + self._arrivals.describe()
                raise silence_error(self.name, timeout_s, state=state + describe_states(list(self._connections)))
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
        while (arrival := self._arrivals.read()) is not None:
            if (message := self._take(arrival)) is not None:
                return message
        return None

    def requeue(self, messages: Iterable[Message]) -> None:
        """Receive these messages again, before any other: they came before their reader was ready."""
        self._requeued.extend(messages)

    def wait(self, timeout_s: float, *, files: Collection[int] = ()) -> None:
        """Sleep until something may be there to `poll`, one of the file descriptors is readable, or time is up."""
        self._check_use()
        if self._requeued or self._arrivals.is_ready or self._sealed.is_ready:
            return
        new = [connection.monitor for connection in self._connections.new]
        sources: tuple[Any, ...] = (self._inbox, *new, *self._sealed.sources, *self._same_host.sockets.files, *files)
        polled, now, busy_s = [(one, _READABLE) for one in sources], time.monotonic(), time.thread_time()
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
        connections = ", ".join(f"{c.peer}: {c.state}" for c in self._connections)
        state = "closed" if self._closed else "open"
        return f"ZmqChannel({self.name} at {self.endpoint}, {state}, connections={{{connections}}})"

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
            if connection.lost and connection.peer != LAUNCHER and connection.peer not in self._incomplete:
                self._report_loss(connection.peer, connection.loss_error(self.name))

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
        self._connections.introduce(body["joined"], body["key_owners"])
        if body["keys"]:
            self._keys.allowed.update(body["keys"])
            self.send(LAUNCHER, Message(KEYS_KNOWN, body={"owners": list(body["keys"])}))
        for name in body["gone"]:
            self.forget(name)
        self._send_unroutable()

    def _send_unroutable(self) -> None:
        """Send what had to wait until it was known where its receiver listens."""
        for name in [name for name in self._unroutable if name in self._connections.directory]:
            for message in self._unroutable.pop(name):
                self.send(name, message)

    def _list_offers(self, connection: PeerConnection, message: Message) -> list[Message]:
        """What to offer a peer before it is sent this message: a socket and memory on this host, or to seal."""
        here, to = self._same_host, (connection.peer, connection.endpoint)
        if here.is_settled(connection.peer):
            return []
        offers = [here.ask_for_socket(*to), here.offer_memory(*to, message)]
        if self._encrypted and here.is_elsewhere(*to):
            offers.append(self._sealed.offer(*to, message))
        return [offer for offer in offers if offer is not None]

    def _read_local(self) -> Arrival | None:
        while (arrived := self._same_host.sockets.receive()) is not None:
            peer, packet = arrived
            if (found := self._decode([packet], peer, peer)) is not None:
                return Arrival(*found, is_local=True)
        return None

    def _read_network(self) -> Arrival | None:
        return self._read_inbox() or self._read_sealed()

    def _read_inbox(self) -> Arrival | None:
        while (frames := read_frames(self._inbox)) is not None:
            owner = str(frames[-1].get("User-Id")) if self._encrypted else ""
            found = self._decode([frame.buffer for frame in frames[1:]], owner)
            if found is None:
                continue
            if not self._encrypted or self._connections.may_send_as(found[0].sender.removesuffix(HEARTBEAT), owner):
                return Arrival(*found)
            self._numbers.count_malformed(owner)
        return None

    def _read_sealed(self) -> Arrival | None:
        while (arrived := self._sealed.receive()) is not None:
            peer, frames = arrived
            if isinstance(frames, ForgedError):
                self._numbers.count_malformed(peer)
                self._report_loss(peer, frames)
            elif (found := self._decode(frames, peer, peer)) is not None:
                return Arrival(*found)
        return None

    def _decode(self, frames: list[Buffer], source: str, sender: str = "") -> tuple[Header, Message] | None:
        """What is in the frames; None for what is dropped and counted, as the source's: it is not of the sender."""
        self._note_bulk(frames)
        with suppress(MalformedError):
            header, message = decode(frames, job=self.job, readers=self._same_host.readers)
            if sender in ("", header.sender):
                return header, message
        self._numbers.count_malformed(source)
        return None

    def _note_bulk(self, frames: list[Buffer]) -> None:
        if sum(map(len, frames)) >= BULK_BYTES:
            self._bulk_until = time.monotonic() + BULK_S

    def _take(self, arrival: Arrival) -> Message | None:
        """The message, for a role; None for one that is not the next, or that is for the channel itself."""
        message = arrival.message
        if not self._is_next(arrival):
            return None
        self._arrivals.follow(arrival)
        if message.kind == DIRECTORY and message.sender == LAUNCHER:
            self._update_directory(message.body)
            return None
        if message.kind not in (SHARED_MEMORY, SEALED):
            self._same_host.reclaim()
            return message
        if (answer := (self._same_host if message.kind == SHARED_MEMORY else self._sealed).handle(message)) is not None:
            self.send(message.sender, answer)
        return None

    def _is_next(self, arrival: Arrival) -> bool:
        """Whether to read a message: not one that came before, follows a gap, or comes from a peer that has ended."""
        message, sequence = arrival.message, arrival.header.sequence
        expected, sender = self._numbers.next_expected(message.sender), message.sender.partition(SIDE)[0]
        if sender in self._ended_peers:
            return False
        if sequence > expected and message.sender in self._same_host.sockets.senders and not arrival.is_again:
            self._arrivals.put_aside(arrival)
            return False
        if sequence > expected and sender in self._incomplete:
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
