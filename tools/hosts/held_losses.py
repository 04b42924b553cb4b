"""`HeldLosses`: losses for which there is no machine at present, until one comes back or joins, or for too long."""

import time
from collections.abc import Callable

from ...errors import ProcessLost
from ...runtime.launcher.membership import Loss
from .run_hosts import RunHosts


class HeldLosses:
    """What waits for a machine in one run.

    limit_s: how long. on_notice: called with a sentence as the wait begins.
    """

    def __init__(self, hosts: RunHosts, *, limit_s: float, on_notice: Callable[[str], object]) -> None:
        self._hosts, self._limit_s, self._on_notice = hosts, limit_s, on_notice
        self._losses: list[Loss] = []
        self._began = 0.0

    def add_if_needed(self, loss: Loss) -> bool:
        """Keep a loss if there is no machine for what was lost; return whether that is so."""
        obstacle = self._hosts.find_obstacle()
        if obstacle is None and not self._losses:
            return False
        if not self._losses and obstacle is not None:
            if not self._hosts.can_find_more or not self._limit_s:
                raise obstacle
            self._began = time.monotonic()
            self._hosts.look_for_more()
            self._on_notice(f"{obstacle.facts}; waiting {self._limit_s:g} s at most for a machine to come back or join")
        self._losses.append(loss)
        return True

    def must_wait(self) -> bool:
        """Return whether there is still no machine for a loss. Raise why, when that has lasted too long."""
        obstacle = self._hosts.find_obstacle() if self._losses else None
        if obstacle is not None and time.monotonic() - self._began >= self._limit_s:
            facts = f"{obstacle.facts}, and none came back in {self._limit_s:g} s{self._hosts.describe_search()}"
            raise ProcessLost(obstacle.code, facts, fix=obstacle.fix)
        return obstacle is not None

    def take(self) -> list[Loss]:
        """Return the losses for which there are machines now, each once."""
        losses, self._losses = self._losses, []
        return losses

    def __repr__(self) -> str:
        return f"HeldLosses({[loss.group for loss in self._losses]})"
