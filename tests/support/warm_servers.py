"""Servers that roles are forks of, kept from one test to the next: each takes seconds of a CPU to import torch.

A test sees none of it. A server that a launcher is done with, and whose roles have ended, waits for the next launcher
that would start one in the same folder, with the same environment and modules; any other is ended, as outside of tests.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from busy import stretch

from cutset.runtime.hosts import role_process
from cutset.runtime.hosts.role_process import _ServerProcess

OF_ONE_TEST = ("PYTEST_CURRENT_TEST",)  # in the environment, for people who look
MOST_IDLE = 3
REAPED_S = 1.0  # from the kill of a role until its server has waited for it

Key = tuple[str, tuple[str, ...], frozenset[tuple[str, str]]]


class WarmServers:
    """The idle servers of this test process, the one that was used last at the end."""

    def __init__(self) -> None:
        self._idle: dict[Key, _WarmServer] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let `ForkServers` take its servers here; at the end all are ended."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(role_process, "_ServerProcess", self.take)
            try:
                yield
            finally:
                while self._idle:
                    self._idle.popitem()[1].end()

    def take(
        self, environment: Mapping[str, str], prefix: Sequence[str], modules: Sequence[str], hold: Sequence[int]
    ) -> _ServerProcess:
        """An idle server, or a new one; the arguments are those of `_ServerProcess`."""
        if prefix or hold:
            return _ServerProcess(environment, prefix, modules, hold)
        kept = {name: value for name, value in environment.items() if name not in OF_ONE_TEST}
        key = (os.getcwd(), tuple(modules), frozenset(kept.items()))
        server = self._idle.pop(key, None)
        if server is not None and server.has_ended():
            server.end()
            server = None
        return server or _WarmServer(kept, modules, self, key)

    def keep(self, server: "_WarmServer", key: Key) -> None:
        """Have a server wait for the next launcher; one that waits for longer ends instead, where there are many."""
        other = self._idle.pop(key, None)
        self._idle[key] = server
        if other is None and len(self._idle) > MOST_IDLE:
            other = self._idle.pop(next(iter(self._idle)))
        if other is not None:
            other.end()

    def pids(self) -> set[int]:
        """The processes that wait, which no test has left behind."""
        return {server.pid for server in self._idle.values()}

    def files(self) -> set[int]:
        """The descriptors of this process that lead to them."""
        return {server.file for server in self._idle.values()}


class _WarmServer(_ServerProcess):
    def __init__(self, environment: Mapping[str, str], modules: Sequence[str], servers: WarmServers, key: Key) -> None:
        super().__init__(environment, (), modules, ())
        self._servers, self._key = servers, key

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def file(self) -> int:
        return self._control.fileno()

    def hang_up(self) -> None:
        """Go on: whether it ends is said by `close`."""

    def close(self) -> None:
        """Wait for the next launcher; with roles that still run, end, and they with it."""
        deadline = time.monotonic() + stretch(REAPED_S)
        while not self.has_ended() and (roles := self._has_roles()) and time.monotonic() < deadline:
            time.sleep(0.005)
        if self.has_ended() or roles:
            self.end()
            return
        self.output.truncate(0)
        self._servers.keep(self, self._key)

    def end(self) -> None:
        """End, as a server does that is not kept."""
        super().hang_up()
        super().close()

    def _has_roles(self) -> bool:
        return bool(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text())


WARM = WarmServers()
