"""A run as its monitor sees it: events, each at a time, and the verdict that follows."""

from collections.abc import Callable

from cutset.errors import CutsetError, NetworkError
from cutset.runtime.hosts.failure_report import Failure
from cutset.runtime.launcher.liveness import LivenessMonitor
from cutset.runtime.launcher.membership import Limits

LIMITS = Limits(start_s=60.0, heartbeat_s=5.0, progress_s=120.0, overdue_s=1.5, grace_s=1.0, exit_s=15.0)
Event = Callable[[LivenessMonitor, float], None]

BUG = Failure(
    "", 1, "ValueError: bad shape", "", "Traceback (most recent call last):\n  line 7\nValueError: bad shape\n"
)
NAN = Failure("E701", 7, "the loss is NaN at step 12", "lower the rate", "Traceback: diverged")
SILENT = Failure("E501", 5, "waited 60 s and no message came", "see the logs", "Traceback: silence")
DAMAGED = Failure("E801", 8, "the checkpoint is damaged", "", "")
DOWN = NetworkError("E514", "the connection from a to b (tcp://b) broke 0.5 s ago", fix="check the network")


def running(*names: str, now: float = 0.0) -> LivenessMonitor:
    monitor = LivenessMonitor(names, now=now, limits=LIMITS)
    for name in names:
        monitor.on_hello(name, f"tcp://{name}")
    monitor.on_started(now)
    return monitor


def alive(*names: str, progress: int | None = None) -> Event:
    def event(monitor: LivenessMonitor, now: float) -> None:
        for name in names:
            monitor.on_heartbeat(name, now, progress)

    return event


def fails(name: str, report: Failure) -> Event:
    return lambda monitor, now: monitor.on_failed(name, now, report)


def exits(name: str, code: int, lines: str = "") -> Event:
    return lambda monitor, now: monitor.on_exited(name, now, code, last_lines=lines)


def finishes(name: str) -> Event:
    return lambda monitor, now: monitor.on_finished(name, now, f"result of {name}")


def breaks(name: str, peer: str) -> Event:
    return lambda monitor, now: monitor.on_connection_lost(name, peer, now, DOWN)


def passes(monitor: LivenessMonitor, now: float) -> None:
    """Nothing but time."""


def play(monitor: LivenessMonitor, events: list[tuple[float, Event]]) -> tuple[float, CutsetError | None]:
    """Let the events happen at their times; the verdict and when it was there."""
    for now, event in events:
        event(monitor, now)
        if monitor.tick(now) is not None:
            return now, monitor.verdict
    return events[-1][0], None
