"""`serve`: joins a shard to a channel and a clock, until the run is over."""

from pathlib import Path
from typing import Any, Protocol

import msgspec

from ...runtime.launcher.assignment import LAUNCHER
from ...runtime.launcher.heartbeat import Beacon
from ...runtime.channel.channel import Channel, SilenceError, silence
from ...runtime.channel.mailbox import Stopped
from ...runtime.channel.message import Message
from .replies import Replies
from ..checkpoint.write_checkpoint import write_shard
from ..slices.slice_state import Holding
from ..optimizers.optimizer import Rule

BUSY_S = 0.01  # between two looks at what is being written, while no message comes


class Server(Protocol):
    """What is served: a `Shard`, or a `VectorShard`."""

    index: int

    @property
    def busy(self) -> bool: ...
    @property
    def rule(self) -> Rule: ...
    def handle(self, message: Message) -> Replies: ...
    def turn(self) -> Replies: ...
    def close(self) -> Replies: ...
    def holdings(self) -> list[Holding]: ...
    def statistics(self) -> dict[str, Any]: ...


def serve(
    shard: Server,
    channel: Channel,
    *,
    beacon: Beacon | None = None,
    interval_s: float = 1.0,
    timeout_s: float = 600.0,
) -> dict[str, Any]:
    """Answer messages until the launcher sends "finish"; the shard's statistics.

    A "finish" with a "path" in its body has the shard written to that folder; the statistics then hold the "file".
    beacon: is told of each message and of each `interval_s` seconds without one, so idle is not stuck.
    Raises Stopped on "stop", and SilenceError after `timeout_s` seconds in which nobody asked for anything.
    """
    beacon, handled, silent_s = beacon or Beacon(), 0, 0.0
    while True:
        beacon.progress = f"{handled} messages" + (f", then idle for {silent_s:g} s" if silent_s else "")
        wait_s = BUSY_S if shard.busy else interval_s
        try:
            message = channel.receive(wait_s)
        except SilenceError as error:
            silent_s += wait_s
            _send(channel, shard.turn())
            if silent_s >= timeout_s:
                raise silence(channel.name, silent_s) from error
            continue
        handled, silent_s = handled + 1, 0.0
        match message.kind:
            case "finish" if message.sender == LAUNCHER:
                return _finished(shard, message.body.get("path"), channel, beacon)
            case "stop":
                raise Stopped("E601", f"{channel.name} was told to stop: {message.body.get('why', 'the run ended')}")
        if message.kind in ("commit", "roll back"):
            beacon.progress = None  # a slow disk is not being stuck
        _send(channel, shard.handle(message))
        _send(channel, shard.turn())


def _send(channel: Channel, replies: Replies) -> None:
    for peer, reply in replies:
        channel.send(peer, reply)


def _finished(shard: Server, path: str | None, channel: Channel, beacon: Beacon) -> dict[str, Any]:
    statistics = shard.statistics()
    if path is None:
        return statistics
    beacon.progress = None  # a slow disk is not being stuck
    _send(channel, shard.close())
    file = write_shard(Path(path), shard.index, shard.holdings(), shard.rule)
    return {**statistics, "file": msgspec.to_builtins(file)}
