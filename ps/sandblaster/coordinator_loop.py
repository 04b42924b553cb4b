"""`coordinate`: joins a `Coordinator` to a channel and a clock, until the run is over."""

from typing import Any

from ...runtime.channel.channel import Channel, SilenceError
from ...runtime.channel.mailbox import Stopped
from ...runtime.channel.message import LAUNCHER
from ...runtime.hosts.heartbeat import RoleProgress
from ..server.replies import Replies
from .coordinator import Coordinator

RETRANSMIT_S = 15.0  # of silence, after which unanswered messages are sent again


def coordinate(coordinator: Coordinator, channel: Channel, progress: RoleProgress | None = None) -> dict[str, Any]:
    """Run a coordinator until the launcher sends "finish"; return why the solver stopped, and its statistics.

    Raises Stopped on "stop".
    """
    progress, handled = progress or RoleProgress(), 0
    _send(channel, coordinator.start())
    while True:
        progress.value = f"{handled} messages; {coordinator}"
        try:
            message = channel.receive(RETRANSMIT_S)
        except SilenceError:
            handled += 1  # so that an idle coordinator does not count as stuck
            _send(channel, coordinator.resend())
            continue
        handled += 1
        if message.kind == "finish" and message.sender == LAUNCHER:
            return {"reason": coordinator.stop_reason, **coordinator.statistics()}
        if message.kind == "stop":
            raise Stopped("E601", f"{channel.name} was told to stop: {message.body.get('why', 'the run ended')}")
        _send(channel, coordinator.handle(message))


def _send(channel: Channel, replies: Replies) -> None:
    for peer, reply in replies:
        channel.send(peer, reply)
