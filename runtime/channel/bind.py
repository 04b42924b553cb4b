"""Binds the socket on which a role listens: one address of this machine, any free port, or one of a range.

And reads what arrives there.
"""

import errno
import random
import re
import socket

import zmq

from ...errors import NetworkError
from .curve import ZAP_DOMAIN, Keys

_OVERHEAD_BYTES = 1024  # more than CURVE adds to a frame
_NOW = int(zmq.NOBLOCK)  # a plain number is faster than a flag


def set_up(inbox: "zmq.Socket[bytes]", keys: Keys | None, *, max_frame_bytes: int) -> None:
    """Set the options of an inbox, before it is bound. keys: of this role, which decrypt; None where nothing is."""
    inbox.linger = 0
    inbox.rcvhwm = 0
    inbox.maxmsgsize = max_frame_bytes + _OVERHEAD_BYTES
    if keys is not None:
        inbox.curve_server = True
        inbox.curve_secretkey = keys.secret.encode()
        inbox.zap_domain = ZAP_DOMAIN


def read_frames(inbox: "zmq.Socket[bytes]") -> list[zmq.Frame] | None:
    """Return the frames of the next message, the first of which says who sent it; None if there is none."""
    try:
        frames = [inbox.recv(_NOW, copy=False)]
    except zmq.Again:
        return None
    while frames[-1].more:
        frames.append(inbox.recv(_NOW, copy=False))
    return frames


def listen(inbox: "zmq.Socket[bytes]", name: str, host: str, *, encrypted: bool) -> str:
    """Bind the inbox of role `name` to a free port of `host`, "ADDRESS" or "ADDRESS:FIRST-LAST". Returns the end point.

    NetworkError where the host has no such address, or the traffic would be neither local nor encrypted.
    """
    if not encrypted and not host.startswith("127."):
        raise NetworkError("E512", f"{name} would listen on {host} without encryption", fix="use 127.0.0.1")
    if host in ("*", "0.0.0.0", "::"):
        raise NetworkError(
            "E512", f"{name} would listen on every interface ({host})", fix="give the address of one, 127.0.0.1"
        )
    host, _, ports = host.partition(":")
    try:
        _bind(inbox, host, parse_ports(ports) if ports else range(1))
    except zmq.ZMQError as error:
        if ports and error.errno == errno.EADDRINUSE:
            facts = f"{name} cannot listen on {host!r}: every port of {ports} is in use"
            raise NetworkError("E512", facts, fix="a larger range, or others: --ports 40000-40999") from error
        fix = "give the address of one of this machine's interfaces (`ip address` lists them), or 127.0.0.1"
        raise NetworkError(
            "E512", f"{name} cannot listen on {host!r}: {explain_failure(host, error)}", fix=fix
        ) from error
    return inbox.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


def join_ports(address: str, ports: str) -> str:
    """Return what `listen` takes: an address, with a range of ports where there is one."""
    return f"{address}:{ports}" if ports else address


def parse_ports(text: str) -> range:
    """Return the ports of a range, "40000-40100". ValueError where it is none."""
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    ports = range(int(match[1]), int(match[2]) + 1) if match else range(0)
    if not ports or ports.start < 1024 or ports.stop > 1 << 16:
        raise ValueError(f"{text!r} is no range of ports from 1024 to 65535")
    return ports


def _bind(inbox: "zmq.Socket[bytes]", host: str, ports: range) -> None:
    """Bind to the first port that is free, from one by chance on, since many roles begin at once."""
    begin = random.randrange(len(ports))
    for tried, port in enumerate([*ports[begin:], *ports[:begin]], start=1):
        try:
            inbox.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            if error.errno != errno.EADDRINUSE or tried == len(ports):
                raise
        else:
            return


def explain_failure(host: str, error: zmq.ZMQError) -> str:
    """Why a role cannot listen there. libzmq reports an unknown name and another machine's address alike."""
    if error.errno == errno.EADDRINUSE:
        return "every port there is in use"
    try:
        socket.getaddrinfo(host, None)
    except OSError as unknown:
        return f"it is no name that is known here ({unknown.strerror})"
    return f"it is no address of this machine ({error.strerror})"
