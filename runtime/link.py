"""`Link`: one way to one peer - a DEALER, and the monitor that tells how its connection fares.

libzmq says nothing when keys do not fit and retries for ever; only the monitor shows it (HANDSHAKE_FAILED_*).
"""

from collections.abc import Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

from ..partition.errors import NetworkError
from .keys import Keys
from .message import Buffer

LINGER_MS = 1000
LEAST_UNCOPIED = 64 << 10  # bytes; to copy fewer takes less than to keep track of them
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
    """Sends frames to one peer, encrypted with both keys if there are any. state: how it fares, in words."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", keys: Keys | None, *, peer: str, endpoint: str
    ) -> None:
        self.peer = peer
        self.endpoint = endpoint
        self.state = "connecting"
        self._hung_up = 0
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = LINGER_MS
        self._socket.sndhwm = 0
        if keys is not None:
            self._socket.curve_serverkey = keys.allowed[peer].encode()
            self._socket.curve_publickey = keys.public.encode()
            self._socket.curve_secretkey = keys.secret.encode()
        self.monitor = self._socket.get_monitor_socket(_EVENTS)
        self._socket.connect(endpoint)

    @property
    def connected(self) -> bool:
        """Whether both sides have accepted each other's key and no disconnect was seen since."""
        return self.state == "connected"

    def send(self, frames: Sequence[Buffer]) -> None:
        """Queue one message; large frames are not copied. NetworkError where the peer has refused us."""
        try:
            for frame in frames[:-1]:
                self._socket.send(frame, zmq.NOBLOCK | zmq.SNDMORE, copy=len(frame) < LEAST_UNCOPIED)
            self._socket.send(frames[-1], zmq.NOBLOCK, copy=len(frames[-1]) < LEAST_UNCOPIED)
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
            self._hung_up += event == _HUNG_UP
            if event in (_REFUSED, _UNREADABLE) or self._hung_up >= 2:
                self.state = "keys do not fit"
                raise NetworkError(
                    "E508",
                    f"{self.peer} ({self.endpoint}) "
                    + ("refused our key" if event == _REFUSED else "does not hold the key that we have for it"),
                    fix="another program or job may use this port: end it and start the run again",
                )

    def close(self) -> None:
        """Close; what is queued is still sent for at most a second after, while the context is being terminated."""
        self._socket.disable_monitor()
        self.monitor.close(0)
        self._socket.close()

    def __repr__(self) -> str:
        return f"Link({self.peer} at {self.endpoint}, {self.state})"
