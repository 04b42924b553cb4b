"""Binds the socket on which a role listens: one address of this machine, any free port."""

import errno
import socket

import zmq

from ...errors import NetworkError


def listen(inbox: "zmq.Socket[bytes]", name: str, host: str, *, encrypted: bool) -> str:
    """Bind the inbox of role `name` to a free port of `host`. Returns the end point.

    NetworkError where the host has no such address, or the traffic would be neither local nor encrypted.
    """
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
        raise NetworkError(
            "E512", f"{name} cannot listen on {host!r}: {explain_failure(host, error)}", fix=fix
        ) from error
    return inbox.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


def explain_failure(host: str, error: zmq.ZMQError) -> str:
    """Why a role cannot listen there. libzmq reports an unknown name and another machine's address alike."""
    if error.errno == errno.EADDRINUSE:
        return "every port there is in use"
    try:
        socket.getaddrinfo(host, None)
    except OSError as unknown:
        return f"it is no name that is known here ({unknown.strerror})"
    return f"it is no address of this machine ({error.strerror})"
