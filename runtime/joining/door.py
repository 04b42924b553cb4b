"""`Door`: where agents come to that nothing leads to from here. Each has a key that is expected; one comes once.

All is encrypted by CURVE, and a key that is not expected gets no answer at all.
"""

import contextlib
import os
import socket
import threading
import time
from dataclasses import dataclass, field

import zmq

from ...errors import NetworkError, UsageError
from ..channel.bind import explain_failure
from ..channel.curve import ZAP_DOMAIN, Keys, ZapAuthenticator
from .byte_stream import ByteStream

JOIN, WELCOME, REFUSED = b"join", b"welcome", b"refused"
JOIN_S = 60.0  # for a machine to come
_IDLE_MS = 1000


class JoinedStream:
    """The `AgentStream` of an agent that came to a door."""

    def __init__(self, local: socket.socket) -> None:
        local.setblocking(False)
        self._local = local
        self.reading = self.writing = local.fileno()

    def describe_trouble(self) -> str:
        """Return nothing: what the agent prints stays where it was started; see `AgentStream`."""
        return ""

    def hang_up(self) -> None:
        """Close the stream."""
        self._local.close()

    def end(self, wait_s: float) -> None:
        """Do nothing more: whoever started the agent ends it."""


@dataclass
class _Guest:
    """Somebody who is expected. route: where replies go, b"" before the first message."""

    route: bytes = b""
    stream: ByteStream | None = None
    remote: socket.socket | None = None
    arrived: threading.Event = field(default_factory=threading.Event)
    taken: bool = False  # whether somebody has the other end of its stream


class Door:
    """Listens for those whose public keys are `keys.allowed`, by name, until it is closed.

    address: of the interface to listen on. port: 0 for any free one. NetworkError where it cannot listen.
    """

    def __init__(self, keys: Keys, address: str, port: int = 0) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator = ZapAuthenticator(self._context, keys)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.curve_server, self._router.curve_secretkey = True, keys.secret.encode()
        self._router.zap_domain = ZAP_DOMAIN
        self._router.linger, self._router.router_handover = 0, True
        self._closed = False
        self._repeated = 0
        self._guests = {name: _Guest() for name in keys.allowed}
        self._wake_reader, self._wake_writer = os.pipe()
        try:
            self._router.bind(f"tcp://{address}:{port}")
        except zmq.ZMQError as error:
            os.close(self._wake_writer)
            self._close_sockets()
            why = explain_failure(address, error)
            facts = f"nobody can join at port {port} of {address}: {why}"
            raise NetworkError("E512", facts, fix="choose another port, or end what has it") from error
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._thread = threading.Thread(target=self._run, name="cutset-door", daemon=True)
        self._thread.start()

    @property
    def refusals(self) -> str:
        """How often somebody was refused, and why, in words; "" where nobody was."""
        reasons = {"a key that is not expected": self._authenticator.refused, "a key that was used": self._repeated}
        return ", ".join(f"{count} came with {key}" for key, count in reasons.items() if count)

    def await_stream(self, name: str, *, wait_s: float = JOIN_S) -> JoinedStream:
        """Wait until the agent of that name has come. UsageError where it does not in time."""
        guest = self._guests[name]
        if not guest.arrived.wait(wait_s) or self._closed:
            wrong = f"; {self.refusals}" if self.refusals else ""
            facts = f"host {name} cannot be used: it has not joined at {self.endpoint} in {wait_s:g} s{wrong}"
            raise UsageError("E290", facts, fix="see what it prints, and that it can connect to this address")
        assert guest.remote is not None
        guest.taken = True
        return JoinedStream(guest.remote)

    def close(self) -> None:
        """End all streams, and whoever waits for one."""
        self._closed = True
        for guest in self._guests.values():
            guest.arrived.set()
        os.close(self._wake_writer)
        self._thread.join()
        self._close_sockets()

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Door({self.endpoint}, {sorted(name for name, guest in self._guests.items() if guest.stream)} joined)"

    def _close_sockets(self) -> None:
        self._router.close(linger=1000)  # the ends of streams
        self._context.term()
        self._authenticator.join()
        os.close(self._wake_reader)

    def _run(self) -> None:
        closing_at = float("inf")
        while time.monotonic() < closing_at:
            streams = [guest.stream for guest in self._guests.values() if guest.stream and not guest.stream.ended]
            if closing_at < float("inf") and not streams:
                break
            poller = zmq.Poller()
            poller.register(self._router, zmq.POLLIN)
            if closing_at == float("inf"):
                poller.register(self._wake_reader, zmq.POLLIN)
            for stream in streams:
                if stream.flags:
                    poller.register(stream.local, stream.flags)
            ready = dict(poller.poll(_IDLE_MS))
            if self._wake_reader in ready:
                closing_at = time.monotonic() + 1.0  # what hosts have said last is on its way
            self._take_messages()
            for stream in streams:
                stream.pump(ready)
        for guest in self._guests.values():
            if guest.stream is not None:
                guest.stream.end()
            if guest.remote is not None and not guest.taken:
                guest.remote.close()

    def _take_messages(self) -> None:
        while True:
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if len(frames) != 4:  # where from, kind, number, data
                continue
            name = str(frames[1].get("User-Id"))
            route, kind, number, data = (frame.bytes for frame in frames)
            guest = self._guests[name]
            if kind == JOIN:
                self._admit(guest, route)
            elif guest.stream is not None and route == guest.route:
                guest.stream.take(kind, number, data)

    def _admit(self, guest: _Guest, route: bytes) -> None:
        if guest.stream is not None:
            self._repeated += 1
            self._send(route, [REFUSED, b"", b"its key has been used already"])
            return
        local, guest.remote = socket.socketpair()
        guest.route, guest.stream = route, ByteStream(local, lambda frames: self._send(route, frames))
        self._send(route, [WELCOME, b"", b""])
        guest.arrived.set()

    def _send(self, route: bytes, frames: list[bytes]) -> None:
        with contextlib.suppress(zmq.Again):  # whoever is gone gets nothing
            self._router.send_multipart([route, *frames], zmq.NOBLOCK)
