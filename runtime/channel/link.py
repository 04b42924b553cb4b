"""`Link`: one way to one peer - a DEALER, and the monitor that tells how its connection fares.

libzmq says nothing when keys do not fit and retries for ever; only the monitor shows it (HANDSHAKE_FAILED_*). Nor does
it say when a connection breaks: it connects again, and what was on the way is lost. So a link that was up and broke is
lost for good, whatever becomes of it later.

A network that swallows packets breaks no connection. It is found by pings, which the I/O threads of both ends send and
answer while Python computes. Only this end pings: an answer to the other's would have to wait for the end of a large
frame that is being sent, which may take longer than anyone should wait for an answer. What is being sent itself must be
acknowledged by the other's kernel in the same time.
"""

import time
from collections.abc import Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

from ...errors import NetworkError
from .keys import Keys
from .message import Buffer

LINGER_MS = 1000
PING_MS = 1000  # between two pings
SILENCE_MS = 4000  # a ping without an answer, or bytes without an acknowledgement, for so long break the connection
RETRY_MOST_MS = 2000  # between two attempts to connect; the first follow each other faster
CONNECT_S = 6.0  # a link that has not come up by then is lost
SETTLE_S = 0.5  # after a break, in which the launcher may say that the peer has ended
PLAIN_BYTES = 128 << 10  # unencrypted in the kernel, which is only on one host: more would leave the caches on the way
LEAST_UNCOPIED = 64 << 10  # bytes; to copy fewer takes less than to keep track of them
_MORE, _LAST = int(zmq.NOBLOCK | zmq.SNDMORE), int(zmq.NOBLOCK)  # of frames; to join flags takes longer than to send
_STATES = {
    zmq.EVENT_CONNECTED: "shaking hands",
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "connected",
    zmq.EVENT_CONNECT_RETRIED: "nobody listens",
    zmq.EVENT_DISCONNECTED: "disconnected",
}
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_UNREADABLE = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_HUNG_UP = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL  # once: the peer may just have died; twice: it cannot read what we say
_EVENTS = sum(_STATES) | _REFUSED | _UNREADABLE | _HUNG_UP


class Link:
    """Sends frames to one peer, encrypted with both keys if there are any. state: how it fares, in words.

    pings: whether a peer that does not answer breaks the connection.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        keys: Keys | None,
        *,
        peer: str,
        endpoint: str,
        pings: bool = True,
    ) -> None:
        self.peer = peer
        self.endpoint = endpoint
        self.state = "connecting"
        self._hung_up = 0
        self._down_since: float | None = time.monotonic()
        self._was_up = False
        self._broken = False
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = LINGER_MS
        self._socket.sndhwm = 0
        self._socket.reconnect_ivl_max = RETRY_MOST_MS
        if pings:
            self._socket.heartbeat_ivl = PING_MS
            self._socket.heartbeat_timeout = SILENCE_MS
            self._socket.tcp_maxrt = SILENCE_MS
        if keys is None:
            self._socket.sndbuf = PLAIN_BYTES
        else:
            self._socket.curve_serverkey = keys.allowed[peer].encode()
            self._socket.curve_publickey = keys.public.encode()
            self._socket.curve_secretkey = keys.secret.encode()
        self.monitor = self._socket.get_monitor_socket(_EVENTS)
        self._socket.connect(endpoint)

    @property
    def connected(self) -> bool:
        """Whether both sides have accepted each other's key and no disconnect was seen since."""
        return self.state == "connected"

    @property
    def lost(self) -> bool:
        """Whether it broke after it was up, or did not come up in time."""
        if self._down_since is None:
            return False
        return time.monotonic() - self._down_since >= (SETTLE_S if self._broken else CONNECT_S)

    def fate(self) -> str:
        """What has become of it, in words, for one that is lost."""
        since = 0.0 if self._down_since is None else time.monotonic() - self._down_since
        if self._broken:
            return f"broke {since:.1f} s ago: {self.peer} closed it, or nothing passes any more"
        return f"did not come up in {since:.1f} s: {self.state}"

    def send(self, frames: Sequence[Buffer]) -> None:
        """Queue one message; large frames are not copied. NetworkError where the peer has refused us."""
        try:
            for frame in frames[:-1]:
                self._socket.send(frame, _MORE, copy=len(frame) < LEAST_UNCOPIED)
            self._socket.send(frames[-1], _LAST, copy=len(frames[-1]) < LEAST_UNCOPIED)
        except zmq.Again:
            self.check()
            raise NetworkError(
                "E508", f"the connection to {self.peer} ({self.endpoint}) is gone: {self.state}"
            ) from None

    def check(self) -> None:
        """Bring `state` up to date; NetworkError where the keys do not fit."""
        while self.monitor.poll(0):
            event = zmq.Event(parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))["event"])
            self.state = _STATES.get(event, self.state)
            self._note(event)
            if self._was_up:  # its key did fit; what comes after a break is one who took its place
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
        """Close; what is queued is still sent for at most so long, while the context is being terminated."""
        self._socket.disable_monitor()
        self.monitor.close(0)
        self._socket.close(linger_ms)

    def _note(self, event: zmq.Event) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED and not self._broken:
            self._down_since, self._was_up = None, True
        elif event == zmq.EVENT_DISCONNECTED and self._was_up and not self._broken:
            self._down_since, self._broken = time.monotonic(), True

    def __repr__(self) -> str:
        return f"Link({self.peer} at {self.endpoint}, {self.state})"
