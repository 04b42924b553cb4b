"""Where a role listens: one address of this machine, any free port; and why it cannot, in words."""

import errno
import socket

import zmq

from ...errors import NetworkError


def listen(inbox: "zmq.Socket[bytes]", name: str, host: str, *, encrypted: bool) -> str:
    """Bind the inbox of role `name` to a free port of `host`; the end point. NetworkError where that will not do."""
    if not encrypted and not host.startswith("127."):
        raise NetworkError("E512", f"{name} would listen on {host} without encryption", fix="use 127.0.0.1")
    if host in ("*", "0.0.0.0", "::"):
        raise NetworkError(
            "E512", f"{name} would listen on every interface ({host})", fix="give the address of one, 127.0.0.1"
        )
    try:
        inbox.bind(f"tcp://{host}:0")
    except zmq.ZMQError as error:
        fix = "give the address of one of this machine's interfaces (`ip address` lists them), or 127.0.0.1"
        raise NetworkError("E512", f"{name} cannot listen on {host!r}: {why_not(host, error)}", fix=fix) from error
    return inbox.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


def why_not(host: str, error: zmq.ZMQError) -> str:
    """Why nobody can listen there; libzmq says the same of a name that is unknown and of another machine's."""
    if error.errno == errno.EADDRINUSE:
        return "every port there is in use"
    try:
        socket.getaddrinfo(host, None)
    except OSError as unknown:
        return f"it is no name that is known here ({unknown.strerror})"
    return f"it is no address of this machine ({error.strerror})"
