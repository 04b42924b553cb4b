"""A run as its coordinator sees it: events, each at a time, and the verdict that follows."""

from collections.abc import Callable

from cutset.errors import CutsetError, NetworkError
from cutset.runtime.launcher.liveness import Coordinator, Limits
from cutset.runtime.launcher.failure_report import Failure

LIMITS = Limits(start_s=60.0, beacon_s=5.0, progress_s=120.0, overdue_s=1.5, grace_s=1.0, exit_s=15.0)
Event = Callable[[Coordinator, float], None]

BUG = Failure(
    "", 1, "ValueError: bad shape", "", "Traceback (most recent call last):\n  line 7\nValueError: bad shape\n"
)
NAN = Failure("E701", 7, "the loss is NaN at step 12", "lower the rate", "Traceback: diverged")
SILENT = Failure("E501", 5, "waited 60 s and no message came", "see the logs", "Traceback: silence")
DAMAGED = Failure("E801", 8, "the checkpoint is damaged", "", "")
DOWN = NetworkError("E514", "the link from a to b (tcp://b) broke 0.5 s ago", fix="check the network")


def running(*names: str, now: float = 0.0) -> Coordinator:
    coordinator = Coordinator(names, now=now, limits=LIMITS)
    for name in names:
        coordinator.hello(name, f"tcp://{name}")
    coordinator.started(now)
    return coordinator


def alive(*names: str, progress: int | None = None) -> Event:
    def event(coordinator: Coordinator, now: float) -> None:
        for name in names:
            coordinator.beacon(name, now, progress)

    return event


def fails(name: str, report: Failure) -> Event:
    return lambda coordinator, now: coordinator.failed(name, now, report)


def exits(name: str, code: int, lines: str = "") -> Event:
    return lambda coordinator, now: coordinator.exited(name, now, code, last_lines=lines)


def finishes(name: str) -> Event:
    return lambda coordinator, now: coordinator.finished(name, now, f"result of {name}")


def breaks(name: str, peer: str) -> Event:
    return lambda coordinator, now: coordinator.broke(name, peer, now, DOWN)


def passes(coordinator: Coordinator, now: float) -> None:
    """Nothing but time."""


def play(coordinator: Coordinator, events: list[tuple[float, Event]]) -> tuple[float, CutsetError | None]:
    """Let the events happen at their times; the verdict and when it was there."""
    for now, event in events:
        event(coordinator, now)
        if coordinator.tick(now) is not None:
            return now, coordinator.verdict
    return events[-1][0], None
