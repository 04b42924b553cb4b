"""Machines are looked for when somebody asks, and again and again as long as one is missing."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from cutset.errors import UsageError
from cutset.tools.hosts import host_finder
from cutset.tools.hosts.host_finder import HostFinder

WAIT_S = 20.0


class FakeOpened(dict[str, Any]):
    """An engine's machines. comes: what each look finds, or raises."""

    def __init__(self, comes: Callable[[int], Any], *, can_grow: bool = True) -> None:
        super().__init__()
        self.can_grow, self.looks, self._comes = can_grow, 0, comes
        self.looked = threading.Condition()

    def open_more(self) -> list[Any]:
        with self.looked:
            self.looks += 1
            self.looked.notify_all()
        found = self._comes(self.looks)
        if isinstance(found, Exception):
            raise found
        self.update({host.name: host for host in found})
        return [host for host in found if not host.lost]

    def await_looks(self, count: int) -> None:
        with self.looked:
            assert self.looked.wait_for(lambda: self.looks >= count, WAIT_S)


def host(name: str, monkeypatch: pytest.MonkeyPatch, *, lost: str = "") -> Any:
    class Found:
        """What counts as a machine here."""

    found: Any = Found()
    found.name, found.lost, found.ports = name, lost, ""
    monkeypatch.setattr(host_finder, "RemoteHost", Found)
    return found


def await_found(finder: HostFinder) -> list[Any]:
    deadline = time.monotonic() + WAIT_S
    while not (found := finder.take_found()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


def test_who_asks_gets_what_has_come_and_it_is_told_where_to_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    lab1 = host("lab1", monkeypatch)
    opened: Any = FakeOpened(lambda look: [lab1])
    with HostFinder(opened, ports="40000-40100") as finder:
        assert not finder.is_looking
        assert opened.looks == 0
        finder.look()
        assert finder.is_looking
        assert await_found(finder) == [lab1]
        assert lab1.ports == "40000-40100"
        while finder.is_looking:
            time.sleep(0.001)
        assert finder.take_found() == []


def test_a_machine_that_is_missing_is_looked_for_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_finder, "FIRST_LOOK_S", 0.01)
    there, lost = host("lab1", monkeypatch), host("lab1", monkeypatch, lost="host lab1 is lost")
    monkeypatch.setattr(host_finder, "RemoteHost", object)
    opened: Any = FakeOpened(lambda look: [there] if look == 4 else [lost])
    with HostFinder(opened) as finder:
        finder.look()
        assert await_found(finder) == [there]
        assert opened.looks == 4
        assert not finder._thread.join(0.2)
        assert opened.looks == 4


def test_why_nothing_is_found_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Any = FakeOpened(lambda look: UsageError("E297", "there is no scontrol", fix="install it"))
    with HostFinder(opened) as finder:
        finder.look()
        opened.await_looks(1)
        while finder.is_looking:
            time.sleep(0.001)
        assert finder.failure == "there is no scontrol"
        assert finder.take_found() == []


def test_nobody_looks_where_no_machine_can_come() -> None:
    opened: Any = FakeOpened(lambda look: [], can_grow=False)
    with HostFinder(opened) as finder:
        assert not finder.can_find
        finder.look()
        assert not finder.is_looking
        assert opened.looks == 0
