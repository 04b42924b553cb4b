"""Faults of hosts that have a network card and a disk of their own, and runs that meet one."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from listening import Listening
from ssh_hosts import SeparateHosts

from cutset.errors import CutsetError
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.train import run

HostFault = Callable[[SeparateHosts, int], object]


def kill_agent(hosts: SeparateHosts, number: int) -> None:
    """Kill what serves the launcher there, and nothing else."""
    for pid in hosts.agents(number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pull_cable(hosts: SeparateHosts, number: int) -> None:
    """Both ends of its cable see at once that nothing is there."""
    hosts.cluster.pull_cable(number)


def drop_packets(hosts: SeparateHosts, number: int) -> None:
    """Nobody sees anything, but nothing arrives."""
    hosts.cluster.drop_packets(number)


def lose_machine(hosts: SeparateHosts, number: int) -> None:
    """Its power, its disk and its cable."""
    hosts.cluster.pull_cable(number)
    hosts.kill_all(number)
    hosts.wipe(number)


HOST_FAULTS: tuple[HostFault, ...] = (kill_agent, pull_cable, drop_packets, lose_machine)


@dataclass
class Followed:
    """How a run with a fault ended. resumed_s: from the fault to the next step of replica 0 once the loss was noted."""

    result: dict[str, Any] = field(default_factory=dict)
    error: CutsetError | None = None
    notes: list[str] = field(default_factory=list)
    resumed_s: float | None = None


def train_and_lose(config: RunConfig, hosts: SeparateHosts, fault: HostFault, number: int, *, step: int) -> Followed:
    """Train; when replica 0 reports this step or a later one, a fault happens on a host."""
    followed = Followed()
    lost_at: float | None = None

    def follow(at: int, loss: float) -> None:
        nonlocal lost_at
        if lost_at is None and at >= step:
            lost_at = time.monotonic()
            fault(hosts, number)
        elif lost_at is not None and followed.resumed_s is None and any("is lost" in note for note in followed.notes):
            followed.resumed_s = time.monotonic() - lost_at

    try:
        followed.result = run(prepare(config), Listening(follow, on_notice=followed.notes.append))
    except CutsetError as error:
        followed.error = error
    return followed
