"""`Gate`: lets those with a key on the list into one zmq context (a ZAP handler, https://rfc.zeromq.org/spec/27)."""

import threading

import zmq
from zmq.utils import z85

from .keys import Keys

DOMAIN = b"cutset"  # must equal the zap_domain of the sockets; without one libzmq would ask nobody
_ENDPOINT = "inproc://zeromq.zap.01"
_FIELDS = 7  # version, request, domain, address, identity, mechanism, key


class Gate:
    """Answers libzmq whether a key may enter; who may is known by its role's name ("User-Id") from then on.

    It runs in a thread, since handshakes come while the owner computes, and ends when the context is terminated.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", keys: Keys) -> None:
        self.refused = 0
        self._keys = keys
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ENDPOINT)
        self._thread = threading.Thread(target=self._run, name="cutset-gate", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, once the context is being terminated."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                self._socket.send_multipart(self._answer(self._socket.recv_multipart()))
        except zmq.ContextTerminated:
            self._socket.close()

    def _answer(self, request: list[bytes]) -> list[bytes]:
        name = self._name(request)
        if name is None:
            self.refused += 1
            return [b"1.0", request[1], b"400", b"not on the list of keys", b"", b""]
        return [b"1.0", request[1], b"200", b"OK", name.encode(), b""]

    def _name(self, request: list[bytes]) -> str | None:
        if len(request) != _FIELDS or request[2] != DOMAIN or request[5] != b"CURVE":
            return None
        return self._keys.owner(z85.encode(request[6]).decode())
