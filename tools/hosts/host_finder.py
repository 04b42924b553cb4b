"""`HostFinder`: looks for machines while a run goes on: lost ones that are there again, and others that were added."""

import threading
from types import TracebackType

from ...errors import CutsetError
from ...runtime.engines.open_hosts import Opened
from ...runtime.hosts.remote_host import RemoteHost

FIRST_LOOK_S, MAX_LOOK_S = 1.0, 30.0  # between two looks, as long as a machine is missing


class HostFinder:
    """Asks an engine for more machines in a thread of its own, while entered, whenever one is lost or `look` is called.

    opened: the machines of the engine. ports: at which roles listen on them.

    Attributes:
        failure: why a machine could not be used, or none be asked for, at the last look; "" where all is well.
    """

    def __init__(self, opened: Opened, *, ports: str = "") -> None:
        self._opened, self._ports = opened, ports
        self._asked, self._closing = threading.Event(), False
        self._lock, self._unanswered = threading.Lock(), 0  # how often somebody asked without an answer yet
        self._found: list[RemoteHost] = []
        self._thread = threading.Thread(target=self._run, name="cutset-host-finder", daemon=True)
        self.failure = ""

    @property
    def can_find(self) -> bool:
        """Whether looking is of any use with this engine."""
        return self._opened.can_grow

    @property
    def is_looking(self) -> bool:
        """Whether a look that was asked for has yet to end, or what it found to be taken."""
        with self._lock:
            return self._unanswered > 0 or bool(self._found)

    def look(self) -> None:
        """Look at once."""
        if self.can_find:
            with self._lock:
                self._unanswered += 1
            self._asked.set()

    def take_found(self) -> list[RemoteHost]:
        """Return the machines that were found since the last call."""
        with self._lock:
            found, self._found = self._found, []
        return found

    def __enter__(self) -> "HostFinder":
        if self.can_find:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._asked.set()

    def _run(self) -> None:
        wait_s = None
        while True:
            if self._asked.wait(wait_s):
                wait_s = FIRST_LOOK_S
            self._asked.clear()
            if self._closing:
                return
            with self._lock:
                answered = self._unanswered
            found = self._look()
            with self._lock:
                self._found += found
                self._unanswered -= answered
            missing = any(not isinstance(host, RemoteHost) or host.lost for host in self._opened.values())
            wait_s = min(MAX_LOOK_S, FIRST_LOOK_S if found else (wait_s or FIRST_LOOK_S) * 2) if missing else None

    def _look(self) -> list[RemoteHost]:
        try:
            found = self._opened.open_more()
        except (CutsetError, OSError) as error:
            self.failure = error.facts if isinstance(error, CutsetError) else str(error)
            return []
        refused = [error.facts for error in self._opened.values() if isinstance(error, CutsetError)]
        self.failure = "; ".join(refused)
        for host in found:
            host.ports = self._ports
        return found

    def __repr__(self) -> str:
        return f"HostFinder({self._opened})"
