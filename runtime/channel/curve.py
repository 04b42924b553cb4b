"""CURVE keys: who may talk to whom, and the `ZapAuthenticator` that enforces it.

CURVE (https://rfc.zeromq.org/spec/26) encrypts every connection with the keys of both ends. For each handshake libzmq
asks a handler over an inproc socket, by the protocol ZAP (https://rfc.zeromq.org/spec/27), whether the key may enter.
A sealed connection (sealed_peers.py) enters by ZAP's mechanism PLAIN with a token, which is good for one handshake.
"""

import threading
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec
import zmq
from zmq.utils import z85

ZAP_DOMAIN = b"cutset"  # must equal the zap_domain of the sockets; without one libzmq would ask nobody
NO_KEYS: Mapping[str, str] = MappingProxyType({})
_ENDPOINT = "inproc://zeromq.zap.01"
_FIELDS = 7  # of a request: version, request, domain, address, identity, mechanism, key; of PLAIN a name and a password


class Keys(msgspec.Struct, frozen=True):
    """A pair of keys, and in `allowed` the public key of each owner that may connect, by name. All are Z85 text.

    An owner is a host, whose roles share its pair, or the launcher, or in tests a role.
    """

    public: str
    secret: str
    allowed: dict[str, str]

    def owner(self, public: str) -> str | None:
        """The owner of this public key; None for a key that is not on the list."""
        allowed = list(self.allowed.items())  # others may be let in meanwhile
        return next((name for name, key in allowed if key == public), None)

    def __repr__(self) -> str:
        return f"Keys({self.public}, allowed={sorted(self.allowed)})"


def make_keys(names: Iterable[str], *, others: Mapping[str, str] = NO_KEYS) -> dict[str, Keys]:
    """Make a new pair for each name; each may talk to all the others.

    others: public keys of those who have made their pair themselves, whose secret key is "" here.
    """
    pairs = {name: tuple(key.decode() for key in zmq.curve_keypair()) for name in names}
    pairs |= {name: (public, "") for name, public in others.items()}
    allowed = {name: public for name, (public, _) in pairs.items()}
    return {name: Keys(public, secret, allowed) for name, (public, secret) in pairs.items()}


class ZapAuthenticator:
    """Tells libzmq whether a key may connect; each message of the connection then carries its owner ("User-Id").

    It runs in a thread, since handshakes come while the owner computes, and ends when the context is terminated.
    refused: how many handshakes failed because the key is not on the list, or the token is none.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", keys: Keys) -> None:
        self.refused = 0
        self._keys = keys
        self._tokens: dict[str, str] = {}
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ENDPOINT)
        self._thread = threading.Thread(target=self._run, name="cutset-zap", daemon=True)
        self._thread.start()

    def admit_once(self, token: str, name: str) -> None:
        """Let one connection enter with this token; its messages carry this name ("User-Id")."""
        self._tokens[token] = name

    def join(self) -> None:
        """Wait for the thread, which ends as soon as the context is being terminated."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                self._socket.send_multipart(self._answer(self._socket.recv_multipart()))
        except zmq.ContextTerminated:
            self._socket.close()

    def _answer(self, request: list[bytes]) -> list[bytes]:
        name = self._find_name(request)
        if name is None:
            self.refused += 1
            return [b"1.0", request[1], b"400", b"not on the list of keys", b"", b""]
        return [b"1.0", request[1], b"200", b"OK", name.encode(), b""]

    def _find_name(self, request: list[bytes]) -> str | None:
        if request[2:3] == [ZAP_DOMAIN] and request[5:6] == [b"PLAIN"] and len(request) == _FIELDS + 1:
            return self._tokens.pop(request[7].decode(errors="replace"), None)
        if len(request) != _FIELDS or request[2] != ZAP_DOMAIN or request[5] != b"CURVE":
            return None
        return self._keys.owner(z85.encode(request[6]).decode())
