"""Losses wait for a machine as long as they may, and only where one may come."""

import time
from typing import Any

import pytest

from cutset.errors import ProcessLost
from cutset.runtime.launcher.membership import Loss
from cutset.tools.hosts.held_losses import HeldLosses

OBSTACLE = ProcessLost("E608", "host lab1 is lost: why; no host is left", fix="do this")
LOSSES = [Loss(f"replica {number}", OBSTACLE, {f"worker-{number}.0": 3}) for number in range(2)]


class FakeRunHosts:
    """Hosts of which only matters whether there is room."""

    def __init__(self, *, can_find_more: bool = True) -> None:
        self.can_find_more, self.looks = can_find_more, 0
        self.obstacle: ProcessLost | None = OBSTACLE

    def find_obstacle(self) -> ProcessLost | None:
        return self.obstacle

    def look_for_more(self) -> None:
        self.looks += 1

    def describe_search(self) -> str:
        return "; nobody answers"


def hold(hosts: FakeRunHosts, limit_s: float) -> tuple[HeldLosses, list[str]]:
    notices: list[str] = []
    any_hosts: Any = hosts
    return HeldLosses(any_hosts, limit_s=limit_s, on_notice=notices.append), notices


def test_a_loss_for_which_there_is_room_is_not_held() -> None:
    hosts = FakeRunHosts()
    hosts.obstacle = None
    held, notices = hold(hosts, 60.0)
    assert not held.add_if_needed(LOSSES[0])
    assert not held.must_wait()
    assert (held.take(), notices, hosts.looks) == ([], [], 0)


def test_losses_wait_together_and_are_taken_in_their_order_when_a_machine_is_there() -> None:
    hosts = FakeRunHosts()
    held, notices = hold(hosts, 60.0)
    assert held.add_if_needed(LOSSES[0])
    hosts.obstacle = None  # between two losses of one machine
    assert held.add_if_needed(LOSSES[1])
    assert not held.must_wait()
    assert held.take() == LOSSES
    assert held.take() == []
    assert hosts.looks == 1
    assert notices == [f"{OBSTACLE.facts}; waiting 60 s at most for a machine to come back or join"]


@pytest.mark.parametrize(("limit_s", "can_find_more"), [(0.0, True), (60.0, False)])
def test_nobody_waits_who_may_not_or_in_vain(limit_s: float, can_find_more: bool) -> None:
    held, _ = hold(FakeRunHosts(can_find_more=can_find_more), limit_s)
    with pytest.raises(ProcessLost) as caught:
        held.add_if_needed(LOSSES[0])
    assert caught.value is OBSTACLE


def test_the_end_of_the_wait_is_the_error_of_the_loss_with_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    held, _ = hold(FakeRunHosts(), 60.0)
    held.add_if_needed(LOSSES[0])
    assert held.must_wait()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61.0)
    with pytest.raises(ProcessLost, match=r"E608: host lab1 .* none came back in 60 s; nobody answers") as caught:
        held.must_wait()
    assert caught.value.fix == "do this"
