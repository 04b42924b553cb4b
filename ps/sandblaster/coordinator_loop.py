"""`coordinate`: joins a `BatchCoordinator` to a channel and a clock, until the run is over."""

from typing import Any

from ...runtime.launcher.assignment import LAUNCHER
from ...runtime.launcher.heartbeat import Beacon
from ...runtime.channel.channel import Channel, SilenceError
from ...runtime.channel.mailbox import Stopped
from ..server.replies import Replies
from .coordinator import BatchCoordinator

RETRY_S = 15.0  # of silence, after which what is not answered is said again


def coordinate(coordinator: BatchCoordinator, channel: Channel, beacon: Beacon | None = None) -> dict[str, Any]:
    """Go on until the launcher says "finish"; why the method ended, and the coordinator's statistics.

    Raises Stopped on "stop".
    """
    beacon, handled = beacon or Beacon(), 0
    _send(channel, coordinator.start())
    while True:
        beacon.progress = f"{handled} messages; {coordinator}"
        try:
            message = channel.receive(RETRY_S)
        except SilenceError:
            handled += 1  # so that idle is not stuck
            _send(channel, coordinator.again())
            continue
        handled += 1
        if message.kind == "finish" and message.sender == LAUNCHER:
            return {"why": coordinator.why, **coordinator.statistics()}
        if message.kind == "stop":
            raise Stopped("E601", f"{channel.name} was told to stop: {message.body.get('why', 'the run ended')}")
        _send(channel, coordinator.handle(message))


def _send(channel: Channel, replies: Replies) -> None:
    for peer, reply in replies:
        channel.send(peer, reply)
