"""`PeerConnection`: sends to one peer over a DEALER socket, and watches its connection through a monitor.

libzmq says nothing when keys do not fit and retries for ever; only the monitor shows it (HANDSHAKE_FAILED_*). Nor does
it say when a connection breaks: it connects again, and what was on the way is lost. So a connection that was up and
broke counts as lost for good, even if libzmq makes another.

A network that swallows packets breaks no connection. It is found by libzmq's own heartbeat: the I/O threads of both
ends send pings and answer them while Python computes. Only this end pings, as an answer to the other's ping would have
to wait for the end of a large frame that is being sent, which may take longer than the timeout. What is being sent must
be acknowledged by the other end's kernel in the same time (TCP_USER_TIMEOUT).
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

from ...errors import NetworkError
from ..sealing.sealer import Sealer
from .channel import unknown_peer_error
from .curve import Keys
from .message import LAUNCHER, Buffer

LINGER_MS = 1000
HEARTBEAT_MS = 1000  # between two pings
SILENCE_MS = 4000  # a ping without an answer, or bytes without an acknowledgement, for so long break the connection
MAX_RETRY_MS = 2000  # between two attempts to connect; the first ones follow each other faster
CONNECT_S = 20.0  # a connection that has not come up by then is lost; interpreters take part in the handshake
SETTLE_S = 0.5  # after a break: time for the launcher to say that the peer has ended
PLAIN_BUFFER_BYTES = 256 << 10  # of an unencrypted socket, always on loopback: a larger one would leave the caches
MIN_UNCOPIED_BYTES = 64 << 10  # copying a smaller frame takes less time than keeping track of it
_MORE, _LAST = int(zmq.NOBLOCK | zmq.SNDMORE), int(zmq.NOBLOCK)  # ready-made: joining flags takes longer than sending
_STATES = {
    zmq.EVENT_CONNECTED: "shaking hands",
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "connected",
    zmq.EVENT_CONNECT_RETRIED: "nobody listens",
    zmq.EVENT_DISCONNECTED: "disconnected",
}
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_UNREADABLE = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_HUNG_UP = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL  # once: the peer may have died; twice: it cannot decrypt our frames
_EVENTS = sum(_STATES) | _REFUSED | _UNREADABLE | _HUNG_UP


class PeerConnection:
    """Sends frames to one peer, encrypted if there are keys. owner: of the key that the peer holds, by default itself.

    state: of the connection, as text. pings: whether a peer that does not answer breaks the connection. sealer: seals
    the frames instead (sealed_peers.py), where the peer admits the connection for this token.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        keys: Keys | None,
        *,
        peer: str,
        endpoint: str,
        owner: str | None = None,
        pings: bool = True,
        token: str = "",
        sealer: Sealer | None = None,
    ) -> None:
        self.peer = peer
        self.endpoint = endpoint
        self.state = "connecting"
        self._sealer = sealer
        self._hung_up = 0
        self._down_since: float | None = time.monotonic()
        self._was_up = False
        self._broken = False
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = LINGER_MS
        self._socket.sndhwm = 0
        self._socket.reconnect_ivl_max = MAX_RETRY_MS
        if pings:
            self._socket.heartbeat_ivl = HEARTBEAT_MS
            self._socket.heartbeat_timeout = SILENCE_MS
            self._socket.tcp_maxrt = SILENCE_MS
        if sealer is not None:
            self._socket.plain_username, self._socket.plain_password = b"sealed", token.encode()
        elif keys is None:
            self._socket.sndbuf = PLAIN_BUFFER_BYTES
        else:
            self._socket.curve_serverkey = keys.allowed[owner or peer].encode()
            self._socket.curve_publickey = keys.public.encode()
            self._socket.curve_secretkey = keys.secret.encode()
        self.monitor = self._socket.get_monitor_socket(_EVENTS)
        self._socket.connect(endpoint)

    @property
    def connected(self) -> bool:
        """Whether both ends have accepted each other's key, and no disconnect was seen since."""
        return self.state == "connected"

    @property
    def lost(self) -> bool:
        """Whether the connection broke after it was up, or did not come up in time."""
        if self._down_since is None:
            return False
        return time.monotonic() - self._down_since >= (SETTLE_S if self._broken else CONNECT_S)

    def loss_error(self, owner: str) -> NetworkError:
        """The error of the role that owns a connection which is lost."""
        since = 0.0 if self._down_since is None else time.monotonic() - self._down_since
        if self._broken:
            how = f"broke {since:.1f} s ago: {self.peer} closed it, or nothing passes any more"
        else:
            how = f"did not come up in {since:.1f} s: {self.state}"
        facts = f"the connection from {owner} to {self.peer} ({self.endpoint}) {how}"
        return NetworkError("E514", facts, fix=f"check the network between the machines of {owner} and {self.peer}")

    def send(self, frames: Sequence[Buffer]) -> None:
        """Queue the frames of one message; large ones are not copied. NetworkError where our key was refused."""
        if self._sealer is not None:
            frames = self._sealer.seal(frames)
        try:
            for frame in frames[:-1]:
                self._socket.send(frame, _MORE, copy=len(frame) < MIN_UNCOPIED_BYTES)
            self._socket.send(frames[-1], _LAST, copy=len(frames[-1]) < MIN_UNCOPIED_BYTES)
        except zmq.Again:
            self.check()
            raise NetworkError(
                "E508", f"the connection to {self.peer} ({self.endpoint}) is gone: {self.state}"
            ) from None

    def check(self) -> None:
        """Read the monitor and bring `state` up to date; NetworkError where the keys do not fit."""
        while self.monitor.poll(0):
            event = zmq.Event(parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))["event"])
            self.state = _STATES.get(event, self.state)
            self._update(event)
            if self._was_up:  # its key did fit; what answers after a break is another process on its port
                continue
            self._hung_up += event == _HUNG_UP
            if event in (_REFUSED, _UNREADABLE) or self._hung_up >= 2:
                self.state = "keys do not fit"
                raise NetworkError(
                    "E508",
                    f"{self.peer} ({self.endpoint}) "
                    + ("refused our key" if event == _REFUSED else "does not hold the key that we have for it"),
                    fix="another program or job may use this port: end it and start the run again",
                )

    def close(self, *, linger_ms: int = LINGER_MS) -> None:
        """Close. Queued messages are still sent for at most `linger_ms`, while the context is being terminated."""
        self._socket.disable_monitor()
        self.monitor.close(0)
        self._socket.close(linger_ms)

    def _update(self, event: zmq.Event) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED and not self._broken:
            self._down_since, self._was_up = None, True
        elif event == zmq.EVENT_DISCONNECTED and self._was_up and not self._broken:
            self._down_since, self._broken = time.monotonic(), True

    def __repr__(self) -> str:
        return f"PeerConnection({self.peer} at {self.endpoint}, {self.state})"


class PeerConnections:
    """The connections of one channel, each made at the first message to its peer.

    directory: where peers listen, by name. key_owners: of each peer that was introduced, by default the peer itself.
    new: the connections that have yet to come up.
    """

    def __init__(self, name: str, context: "zmq.Context[zmq.Socket[bytes]]", keys: Keys, *, encrypted: bool) -> None:
        self.directory: dict[str, str] = {}
        self.key_owners: dict[str, str] = {}
        self.new: list[PeerConnection] = []
        self._name = name
        self._context = context
        self._keys = keys
        self._encrypted = encrypted
        self._by_peer: dict[str, PeerConnection] = {}

    def __iter__(self) -> Iterator[PeerConnection]:
        return iter(list(self._by_peer.values()))

    def introduce(self, directory: Mapping[str, str], key_owners: Mapping[str, str]) -> None:
        """Learn where peers listen, and whose keys they hold."""
        self.directory |= directory
        self.key_owners |= key_owners

    def get(self, peer: str) -> PeerConnection:
        """The connection to a peer; NetworkError for a peer that is not known."""
        connection = self._by_peer.get(peer)
        if connection is None:
            connection = self._by_peer[peer] = self.open(peer)
            self.new.append(connection)
        return connection

    def open(self, peer: str) -> PeerConnection:
        """Open another connection to a peer, which the caller closes."""
        owner = self.key_owners.get(peer)
        if peer not in self.directory or (owner or peer) not in self._keys.allowed:
            raise unknown_peer_error(self._name, peer, list(self.directory))
        keys = self._keys if self._encrypted else None
        # No pings to a launcher: its user may stop it for a while (Ctrl-Z). If it ends, so does this process.
        endpoint, pings = self.directory[peer], peer != LAUNCHER
        return PeerConnection(self._context, keys, peer=peer, owner=owner, endpoint=endpoint, pings=pings)

    def check_new(self) -> None:
        """Bring those that have yet to come up up to date; NetworkError where keys do not fit."""
        for connection in self.new:
            connection.check()
        self.new = [connection for connection in self.new if not connection.connected]

    def forget(self, peer: str) -> None:
        """Close the connection to a peer that has ended."""
        self.directory.pop(peer, None)
        connection = self._by_peer.pop(peer, None)
        if connection is not None:
            self.new = [other for other in self.new if other is not connection]
            connection.close(linger_ms=0)

    def may_send_as(self, name: str, owner: str) -> bool:
        """Whether the holder of a key may have this name: its own, or one that no other owner has, if it is a host.

        Messages of a role that has just joined may be faster than the news of it.
        """
        is_new = name not in self._keys.allowed and owner in self.key_owners.values()
        return owner == self.key_owners.get(name, owner if is_new else name)


def describe_states(connections: Iterable[PeerConnection]) -> str:
    """Which connections are not up, as text for an error; "" where all are."""
    for connection in connections:
        connection.check()
    bad = [f"{c.peer} at {c.endpoint}: {c.state}" for c in connections if not c.connected]
    return f"; connections that are not up: {', '.join(bad)}" if bad else ""
