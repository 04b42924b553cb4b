"""`join`: the other side of a `Door` - starts an agent here, and leads it to the launcher until either ends."""

import socket
import subprocess
import sys
import uuid
from dataclasses import dataclass, field

import zmq

from ...errors import NetworkError
from ..hosts.remote_host import AGENT
from .byte_stream import ByteStream
from .door import JOIN, JOIN_S, WELCOME

REFUSED_CODE = "E520"
_END_S = 10.0
_IDLE_MS = 1000


@dataclass(frozen=True)
class Pass:
    """What lets a machine through a door. server: the public key there. public, secret: its own pair. All Z85 text."""

    server: str
    public: str
    secret: str = field(repr=False)


def join(endpoint: str, own: Pass, *, wait_s: float = JOIN_S) -> None:
    """Start an agent that serves the launcher at an end point, and return when it has ended.

    Raises NetworkError where nobody answers there in time, or refuses the key.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        dealer = _knock(context, endpoint, own, wait_s)
        local, remote = socket.socketpair()
        with remote:
            agent = subprocess.Popen((sys.executable, *AGENT), stdin=remote.fileno(), stdout=remote.fileno())
        stream = ByteStream(local, lambda frames: dealer.send_multipart(frames))
        try:
            _pump(dealer, stream)
        finally:
            stream.end()
            try:
                agent.wait(_END_S)
            except subprocess.TimeoutExpired:
                agent.terminate()
                agent.wait()
            dealer.close(linger=1000)
    finally:
        context.destroy(linger=1000)


def _knock(context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, own: Pass, wait_s: float) -> "zmq.Socket[bytes]":
    """Return a connection through which the door answers, which may be opened later."""
    dealer = context.socket(zmq.DEALER)
    dealer.curve_serverkey = own.server.encode()
    dealer.curve_publickey, dealer.curve_secretkey = own.public.encode(), own.secret.encode()
    dealer.routing_id = uuid.uuid4().bytes
    dealer.linger = 0
    monitor = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    dealer.connect(endpoint)
    dealer.send_multipart([JOIN, b"", b""])
    poller = zmq.Poller()
    poller.register(dealer, zmq.POLLIN)
    poller.register(monitor, zmq.POLLIN)
    ready = dict(poller.poll(int(wait_s * 1000)))
    kind, _, why = dealer.recv_multipart() if dealer in ready else (b"", b"", b"it does not expect this key")
    dealer.disable_monitor()
    monitor.close()
    if kind == WELCOME:
        return dealer
    dealer.close()
    if not ready:
        facts = f"no launcher answers at {endpoint} in {wait_s:g} s"
        raise NetworkError("E519", facts, fix="see that it runs, and that this machine can connect to that address")
    facts = f"the launcher at {endpoint} refuses this machine: {why.decode(errors='replace')}"
    raise NetworkError(REFUSED_CODE, facts, fix="a key serves one machine for one run: make a new one")


def _pump(dealer: "zmq.Socket[bytes]", stream: ByteStream) -> None:
    while not stream.ended:
        poller = zmq.Poller()
        poller.register(dealer, zmq.POLLIN)
        if stream.flags:
            poller.register(stream.local, stream.flags)
        ready = dict(poller.poll(_IDLE_MS))
        if dealer in ready:
            kind, number, data = dealer.recv_multipart()
            stream.take(kind, number, data)
        stream.pump(ready)
