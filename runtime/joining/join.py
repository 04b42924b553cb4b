"""`join`: the other side of a `Door` - starts an agent here, and leads it to the launcher until either ends."""

import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field

import zmq
from zmq.utils.monitor import recv_monitor_message

from ...errors import NetworkError
from ..hosts.remote_host import AGENT
from .byte_stream import ByteStream
from .door import JOIN, JOIN_S, REFUSED, WELCOME

_ANSWER_S, _END_S = 3.0, 10.0
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
    """Return a connection through which the door answers; try again and again, for it may be opened later."""
    deadline = time.monotonic() + wait_s
    while True:
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
        ready = dict(poller.poll(int(min(_ANSWER_S, max(0.1, deadline - time.monotonic())) * 1000)))
        refusal = ""
        if dealer in ready:
            kind, _, why = dealer.recv_multipart()
            if kind == WELCOME:
                dealer.disable_monitor()
                monitor.close()
                return dealer
            refusal = why.decode(errors="replace") if kind == REFUSED else "it gives an answer that is none"
        elif monitor in ready:
            recv_monitor_message(monitor)
            refusal = "it does not expect this key"
        dealer.disable_monitor()
        monitor.close()
        dealer.close()
        if refusal:
            facts = f"the launcher at {endpoint} refuses this machine: {refusal}"
            raise NetworkError("E519", facts, fix="a key serves one machine for one run: make a new one")
        if time.monotonic() >= deadline:
            facts = f"no launcher answers at {endpoint} in {wait_s:g} s"
            raise NetworkError("E519", facts, fix="see that it runs, and that this machine can connect to that address")


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
