"""Launchers of real processes for tests, after which nothing may be left."""

import os
import select
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import descriptors
import pytest
from busy import stretch
from places import SUPPORT
from warm_servers import WARM

from cutset.errors import CutsetError
from cutset.runtime.channel.message import Message
from cutset.runtime.hosts.host import LocalHost, Role
from cutset.runtime.hosts.role_process import await_ends
from cutset.runtime.launcher.launcher import Launcher
from cutset.runtime.launcher.membership import Limits

QUICK = Limits(heartbeat_s=2.0)
HOST = LocalHost()


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The roles can import role_examples.py; no thread or descriptor is left (and no process, see conftest.py)."""
    monkeypatch.syspath_prepend(SUPPORT)
    files = open_files()
    yield
    assert not [t.name for t in threading.enumerate() if t.name.startswith("cutset")]
    assert not [target for _, target in open_files() - files if target.startswith(("anon_inode:", "pipe:", "socket:"))]


def open_files() -> set[tuple[str, str]]:
    """Descriptors of this process and what they are, but of servers that wait."""
    warm = {str(file) for file in WARM.files()}
    return {(name, target) for name, target in descriptors.open_files() if name not in warm}


@pytest.fixture(scope="module", autouse=True)
def shared_servers() -> Iterator[None]:
    """Keep the processes that roles are forks of for all tests of a module: each takes a second to start."""
    with Path(os.devnull).open("r+b") as log:
        role = HOST.start(Role("first", "role_examples:waits"), log)
        role.hang_up()
        await_ends([role], stretch(60))
        role.kill()
    yield
    HOST.close()


def launch(roles: Sequence[Role], **more: Any) -> Launcher:
    return Launcher(roles, **{"job": "test", "hosts": [HOST], **more})


def run(*roles: Role, **more: Any) -> tuple[list[Message], Launcher]:
    with launch(roles, **more) as launcher:
        launcher.start()
        return list(launcher.events()), launcher


def failure(*roles: Role, **more: Any) -> CutsetError:
    with pytest.raises(CutsetError) as caught:
        run(*roles, **more)
    return caught.value


def waiting(launcher: Launcher, *names: str) -> None:
    """Start, and follow the events until these roles wait."""
    launcher.start()
    missing = set(names)
    for message in launcher.events():
        missing.discard(message.sender)
        if not missing:
            return


def gone(pid: int, *, timeout_s: float = 10.0) -> bool:
    """Whether a process that is not our child ends in time."""
    try:
        end = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([end], [], [], timeout_s)[0])
    finally:
        os.close(end)


def state_of(pid: int) -> str:
    """The state of a process as in /proc: T if it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def replicas(count: int) -> list[Role]:
    """A server, and groups of one role that greet it and then wait for the word to end."""
    greeting = [Role(f"w{n}", "role_examples:greets", "shard", group=f"group {n}") for n in range(count)]
    return [Role("shard", "role_examples:serves", serves=True), *greeting]
