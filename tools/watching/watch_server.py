"""`WatchServer`: the page of a run for browsers on this machine, and the events by which it changes.

It listens on loopback, and knows only paths that begin with a secret token. It answers GET, reads nothing of what a
browser sends but the path, and writes nothing anywhere. A browser that comes back is sent all that is shown now: what
it has missed is in that.
"""

import hmac
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ...errors import UsageError
from .run_follower import RunFollower
from .watch_page import BUSY, PageParts, render_watch_page

LOOPBACK = "127.0.0.1"
UPDATE_S = 2.0  # a browser takes some milliseconds for each, maybe of a core that trains
SLOWEST_S, FINEST = 10.0, 1 / 300  # the longer a run lasts, the less a curve moves: so much of its width, at most
QUIET_S = 10.0  # after so long without news a comment keeps the connection, and finds that a browser has gone
SEND_TIMEOUT_S = 20.0
MAX_VIEWERS = 32
POLICY = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"  # of all that is sent
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Connection": "close",
}


class News:
    """What viewers are shown, made once for all of them.

    number: changes with it.
    """

    def __init__(self) -> None:
        self._changed, self._is_closed = threading.Condition(), False
        self.number = 0
        self.parts: dict[str, Any] = {}

    def publish(self, parts: dict[str, Any]) -> None:
        """Show viewers something else."""
        with self._changed:
            if parts == self.parts:
                return
            self.parts = parts
            self.number += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Let all viewers go."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def wait(self, number: int, timeout_s: float) -> tuple[int, dict[str, Any]] | None:
        """Return what is shown, once it has another number or the time is over; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self.number != number, timeout_s)
            return None if self._is_closed else (self.number, self.parts)


class WatchServer:
    """Serves the page of a run while entered. UsageError (E280) where it cannot listen at the port; 0 is any.

    token: the secret in the address, by default a new one.

    Attributes:
        address: of the page.
    """

    def __init__(self, follower: RunFollower, folder: Path, port: int = 0, *, token: str = "") -> None:
        self._follower, self._parts, self.news = follower, PageParts(folder), News()
        self._happened: object = None
        self._shown_at = 0.0
        self._token, self._viewers = token or secrets.token_urlsafe(24), threading.Semaphore(MAX_VIEWERS)
        self._title = folder.resolve().name
        try:
            self._http = _Server((LOOPBACK, port), _make_handler(self))
        except OSError as error:
            facts = f"port {port} of {LOOPBACK} cannot be used: {error.strerror}"
            raise UsageError("E280", facts, fix="another --port, or none, for any that is free") from error
        self._thread = threading.Thread(target=self._http.serve_forever, name="cutset-watch", daemon=True)
        self.address = f"http://{LOOPBACK}:{self._http.server_address[1]}/{self._token}/"

    def update(self) -> None:
        """Take into account what was written since the last time. What happens is shown at once, progress in its time.

        A run of ten minutes is shown anew each two seconds, one of an hour each ten.
        """
        follower = self._follower
        follower.update()
        view, now = follower.view, follower.now()
        happened = follower.is_running, view, tuple(view.happenings)[-1:]
        trained_s = view.current.step.get("seconds", 0.0) if view.current else 0.0
        if happened == self._happened and 0 <= now - self._shown_at < min(SLOWEST_S, FINEST * trained_s):
            return
        self._happened, self._shown_at = happened, now
        self.news.publish(self._parts.render(follower))

    def find_part(self, path: str) -> str | None:
        """Return which part of the page a path names, None without the right token."""
        parts = path.split("?", 1)[0].split("/", 2)
        is_right = len(parts) == 3 and not parts[0] and hmac.compare_digest(parts[1].encode(), self._token.encode())
        return parts[2] if is_right else None

    def render_page(self, nonce: str) -> str:
        """Return the page, into which events bring what it shows."""
        return render_watch_page(self._title, nonce)

    def admit(self) -> bool:
        """Return whether one viewer more may connect, which must `release` itself."""
        return self._viewers.acquire(blocking=False)

    def release(self) -> None:
        """Note that a viewer has gone."""
        self._viewers.release()

    def __enter__(self) -> "WatchServer":
        self.update()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.news.close()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over browsers that have gone; what else fails is a bug, and is shown."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def _make_handler(server: WatchServer) -> type[BaseHTTPRequestHandler]:
    """Return what answers the requests of browsers to a server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = SEND_TIMEOUT_S
        server_version, sys_version = "cutset", ""

        def do_GET(self) -> None:
            match server.find_part(self.path):
                case "":
                    self._send_page()
                case "events" if server.admit():
                    try:
                        self._send_events()
                    except (ConnectionError, TimeoutError):
                        pass  # the browser has gone
                    finally:
                        server.release()
                case "events":
                    self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, f"{MAX_VIEWERS} browsers watch already")
                case _:
                    self.send_error(HTTPStatus.NOT_FOUND)
            self.close_connection = True

        def _send_page(self) -> None:
            nonce = secrets.token_urlsafe(16)
            body = server.render_page(nonce).encode()
            policy = f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'"
            self._send_head("text/html; charset=utf-8", policy, **{"Content-Length": str(len(body))})
            self.wfile.write(body)

        def _send_events(self) -> None:
            """Send what has changed in the page since this browser was sent it, until it has gone."""
            self._send_head("text/event-stream", "default-src 'none'")
            number, shown = 0, dict[str, Any]()
            while (news := server.news.wait(number, QUIET_S)) is not None:
                number, parts = news
                changed = {name: part for name, part in parts.items() if name == BUSY or shown.get(name) != part}
                shown, has_news = parts, bool(set(changed) - {BUSY})
                text = f"data: {json.dumps(changed)}\n\n" if has_news else ": nothing new\n\n"
                self.wfile.write(text.encode())
                self.wfile.flush()

        def _send_head(self, kind: str, policy: str, **more: str) -> None:
            self.send_response(HTTPStatus.OK)
            own = {"Content-Type": kind, "Content-Security-Policy": f"{policy}; {POLICY}"}
            for name, value in (own | HEADERS | more).items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing: the path has the token in it."""

    return Handler


def serve_page(
    follower: RunFollower,
    folder: Path,
    port: int,
    *,
    tell: Callable[[str], object],
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Serve the page of a run, which follows it, until the caller is interrupted. tell: gets the address."""
    with WatchServer(follower, folder, port) as server:
        tell(f"open {server.address} in a browser on this machine; Ctrl-C ends this, not the run")
        while True:
            wait(UPDATE_S)
            server.update()
