"""`SealedPeers`: connections on which a channel seals whole messages itself, several times as fast as CURVE encrypts.

libzmq encrypts by Salsa20 at about a gigabyte a second; AES in the instructions of the processor takes a seventh of the
time. So before the first large tensor for a peer that shares no memory with it, the sender offers a fresh key over the
CURVE connection, which is encrypted, authenticated and forward secret, and so is then the key. The peer answers with a
port and a token that admits one connection (ZAP's mechanism PLAIN). Once that is up, the sender says so as before, and
all later messages come sealed (runtime/sealing). Where the peer cannot, or its port is closed, all goes over CURVE.
"""

import secrets
from collections import deque
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import zmq

from ...errors import NetworkError
from ..sealing.sealer import (
    CHUNK_BYTES,
    KEY_BYTES,
    TAG_BYTES,
    Buffer,
    ForgedError,
    Opener,
    Sealer,
    choose_cipher,
    list_ciphers,
    make_key,
)
from .bind import listen
from .curve import ZAP_DOMAIN, ZapAuthenticator
from .message import LAUNCHER, Message
from .peer_connection import PeerConnection

SEALED = "@sealed"  # kind of the messages in which two channels agree on a sealed connection; no role sees them
BEGUN = Message(SEALED, body={"begun": True})  # what follows it comes over the sealed connection
MIN_SEALED_BYTES = 64 << 10  # a tensor for which it pays to make another connection
MAX_QUEUED = 1 << 14  # messages that libzmq reads ahead of us, more than any window; beyond, pings have no answer
_TOKEN_BYTES = 32


class _Incoming:
    """A peer's sealed connection to us. has_begun: whether the peer has said so, after all that it sent over CURVE."""

    def __init__(self, opener: Opener) -> None:
        self.opener: Opener | None = opener  # None once a message did not open
        self.has_begun = False
        self.held: deque[list[Buffer]] = deque()  # messages that are faster than that


class SealedPeers:
    """The sealed connections of one channel, to peers and from them.

    host: the address that the channel listens on, with its range of ports if there is one.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        authenticator: ZapAuthenticator,
        *,
        name: str,
        job: str,
        host: str,
    ) -> None:
        self._context, self._authenticator = context, authenticator
        self._name, self._job, self._host = name, job, host
        self._offered: dict[str, tuple[str, bytes]] = {}  # by peer, its host and our key, until it answers
        self._asked: set[str] = set()  # peers that we have made an offer
        self._opening: dict[str, PeerConnection] = {}  # by peer: not up yet
        self._open: dict[str, PeerConnection] = {}
        self._incoming: dict[str, _Incoming] = {}
        self._inbox: zmq.Socket[bytes] | None = None  # bound at the first offer
        self._ready: deque[tuple[str, list[Buffer] | ForgedError]] = deque()  # held messages of peers that have begun

    @property
    def sources(self) -> list[Any]:
        """Sockets on which something may arrive."""
        inboxes = [] if self._inbox is None else [self._inbox]
        return [*inboxes, *(connection.monitor for connection in self._opening.values())]

    @property
    def is_ready(self) -> bool:
        """Whether a message is to be read that no socket tells of any more."""
        return bool(self._ready)

    @property
    def is_connecting(self) -> bool:
        """Whether a connection has yet to come up."""
        return bool(self._opening)

    @property
    def connections(self) -> Iterable[PeerConnection]:
        """The connections that are in use."""
        return self._open.values()

    def connection(self, peer: str) -> PeerConnection | None:
        """The sealed connection to a peer, once it is in use."""
        return self._open.get(peer)

    def offer(self, peer: str, endpoint: str, message: Message) -> Message | None:
        """The offer of a sealed connection to send before `message` to where a peer listens, if it is time for one."""
        if peer in self._asked or all(tensor.nbytes < MIN_SEALED_BYTES for tensor in message.tensors):
            return None
        self._asked.add(peer)
        key = make_key()
        self._offered[peer] = urlsplit(endpoint).hostname or "", key
        return Message(SEALED, body={"key": key, "ciphers": list_ciphers()})

    def handle(self, message: Message) -> Message | None:
        """Take in a peer's offer of a sealed connection, its answer to ours, or that it has begun to use its own.

        Returns our answer to an offer.
        """
        peer, body = message.sender, message.body
        if "key" in body:
            return None if peer in self._incoming else Message(SEALED, body=self._accept(peer, body))
        if "begun" in body:
            incoming = self._incoming.get(peer)
            if incoming is not None:
                incoming.has_begun = True
                self._ready.extend((peer, frames) for frames in incoming.held)
                incoming.held.clear()
        elif peer in self._offered:
            self._connect(peer, body, *self._offered.pop(peer))
        return None

    def take_connected(self) -> list[str]:
        """Return the peers to which a sealed connection has come up, and give up those that have failed.

        The caller then sends `begun` over CURVE, and calls `begin`.
        """
        for peer, connection in list(self._opening.items()):
            try:
                connection.check()
            except NetworkError:  # somebody else had the token: the peer still listens to CURVE
                self._give_up(peer)
                continue
            if connection.lost:
                self._give_up(peer)
        return [peer for peer, connection in self._opening.items() if connection.connected]

    def begin(self, peer: str) -> None:
        """Use the connection to a peer from now on."""
        self._open[peer] = self._opening.pop(peer)

    def receive(self) -> tuple[str, list[Buffer] | ForgedError] | None:
        """The sender of the next sealed message, and its frames, or why it is refused; None if there is none.

        Of a sender of whom one message was refused, nothing more is taken.
        """
        if self._ready:
            return self._ready.popleft()
        while self._inbox is not None:
            try:
                chunks = self._inbox.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            peer = str(chunks[-1].get("User-Id"))
            incoming = self._incoming.get(peer)
            if incoming is None or incoming.opener is None:
                continue
            try:
                frames = incoming.opener.open([chunk.buffer for chunk in chunks[1:]])
            except ForgedError as error:
                incoming.opener = None
                fix = f"somebody may have changed what passes between {peer} and {self._name}; start the run again"
                return peer, ForgedError(error.code, f"{error.facts}, from {peer} to {self._name}", fix=fix)
            if incoming.has_begun:
                return peer, frames
            incoming.held.append(frames)
        return None

    def forget(self, peer: str) -> None:
        """Let go of the connections to and from a peer that has ended."""
        self._offered.pop(peer, None)
        self._incoming.pop(peer, None)
        self._give_up(peer)
        connection = self._open.pop(peer, None)
        if connection is not None:
            connection.close(linger_ms=0)

    def close(self) -> None:
        """Close all. Queued messages are still sent, as those of other connections are."""
        for connection in (*self._opening.values(), *self._open.values()):
            connection.close()
        if self._inbox is not None:
            self._inbox.close(0)

    def _give_up(self, peer: str) -> None:
        connection = self._opening.pop(peer, None)
        if connection is not None:
            connection.close(linger_ms=0)

    def _accept(self, peer: str, body: dict[str, Any]) -> dict[str, Any]:
        """Take an offer. Return the answer: the cipher, port and token, or nothing where all is to go over CURVE."""
        key, ciphers = body["key"], body.get("ciphers")
        cipher = choose_cipher(ciphers) if isinstance(ciphers, list) else None
        if cipher is None or not isinstance(key, bytes) or len(key) != KEY_BYTES or not self._listen():
            return {}
        assert self._inbox is not None
        token = secrets.token_hex(_TOKEN_BYTES)
        self._incoming[peer] = _Incoming(Opener(cipher, key, self._bind_names(peer, self._name)))
        self._authenticator.admit_once(token, peer)
        port = urlsplit(self._inbox.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")).port
        return {"cipher": cipher, "port": port, "token": token}

    def _listen(self) -> bool:
        """Bind the inbox of sealed messages. Return whether there is one."""
        if self._inbox is not None:
            return True
        inbox = self._context.socket(zmq.ROUTER)
        inbox.linger, inbox.rcvhwm = 0, MAX_QUEUED
        inbox.maxmsgsize = CHUNK_BYTES + TAG_BYTES
        inbox.plain_server, inbox.zap_domain = True, ZAP_DOMAIN
        try:
            listen(inbox, self._name, self._host, encrypted=True)
        except NetworkError:  # every port of the range is in use, as peers know from our answer
            inbox.close(0)
            return False
        self._inbox = inbox
        return True

    def _connect(self, peer: str, answer: dict[str, Any], host: str, key: bytes) -> None:
        """Open a connection to the port that an answer names, unless it names none."""
        cipher, port, token = (answer.get(name) for name in ("cipher", "port", "token"))
        if cipher not in list_ciphers() or not isinstance(port, int) or not 0 < port < 1 << 16:
            return
        if not isinstance(token, str) or len(token) != 2 * _TOKEN_BYTES or not token.isascii():
            return
        sealer = Sealer(cipher, key, self._bind_names(self._name, peer))
        to, pings = f"tcp://{host}:{port}", peer != LAUNCHER
        self._opening[peer] = PeerConnection(
            self._context, None, peer=peer, endpoint=to, pings=pings, token=token, sealer=sealer
        )

    def _bind_names(self, sender: str, receiver: str) -> bytes:
        """What every chunk is bound to, besides the key."""
        return f"{self._job}\0{sender}\0{receiver}\0".encode()
