"""`serve`: the loop of a shard's process, which connects a `Shard` to a channel and a clock."""

import time
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ...runtime.channel.channel import Channel, SilenceError, count_link_bytes, silence_error
from ...runtime.channel.mailbox import stop_error
from ...runtime.channel.message import LAUNCHER, Message
from ...runtime.hosts.heartbeat import RoleProgress
from ..checkpoint.write_checkpoint import write_once_there_is_room, write_shard
from ..optimizers.optimizer import Optimizer
from ..slices.slice_state import SliceState
from .replies import Replies

STATUS_S = 1.0  # between two statuses
BUSY_S = 0.01  # seconds between two polls while something is being written and no message arrives


class Server(Protocol):
    """What `serve` serves: a `Shard`, or Sandblaster's `VectorShard`."""

    index: int

    @property
    def busy(self) -> bool: ...
    @property
    def optimizer(self) -> Optimizer: ...
    def handle(self, message: Message) -> Replies: ...
    def poll(self) -> Replies: ...
    def close(self) -> Replies: ...
    def slice_states(self) -> list[SliceState]: ...
    def statistics(self) -> dict[str, Any]: ...
    def status(self) -> dict[str, Any]: ...


def serve(
    shard: Server,
    channel: Channel,
    *,
    folder: Path | None = None,
    progress: RoleProgress | None = None,
    interval_s: float = 1.0,
    timeout_s: float = 600.0,
) -> dict[str, Any]:
    """Answer messages until the launcher sends "finish". Return the shard's statistics.

    If the body of "finish" has a "path" in `folder`, write the shard there, and wait until the launcher has it; the
    statistics then contain the "file".
    progress: changes with each message and after each `interval_s` seconds without one, so an idle shard is not taken
    for a hanging one. Raises Stopped on "stop", and SilenceError after `timeout_s` seconds without any message.
    """
    progress, handled, silent_s, told_s = progress or RoleProgress(), 0, 0.0, -STATUS_S
    while True:
        if (now := time.monotonic()) - told_s >= STATUS_S:
            told_s = now
            progress.status = {"at_s": round(now, 3), **shard.status(), "links": count_link_bytes(channel)}
        progress.value = f"{handled} messages" + (f", then idle for {silent_s:g} s" if silent_s else "")
        wait_s = BUSY_S if shard.busy else interval_s
        try:
            message = channel.receive(wait_s)
        except SilenceError as error:
            silent_s += wait_s
            _send(channel, shard.poll())
            if silent_s >= timeout_s:
                raise silence_error(channel.name, silent_s) from error
            continue
        handled, silent_s = handled + 1, 0.0
        match message.kind:
            case "finish" if message.sender == LAUNCHER:
                return _finish(shard, folder or Path(), message.body.get("path"), channel, progress, timeout_s)
            case "stop":
                raise stop_error(channel.name, message)
        if message.kind in ("commit", "roll back"):
            progress.value = None  # writing to a slow disk is not hanging
        _send(channel, shard.handle(message))
        _send(channel, shard.poll())


def _send(channel: Channel, replies: Replies) -> None:
    for peer, reply in replies:
        channel.send(peer, reply)


def _finish(
    shard: Server, folder: Path, path: str | None, channel: Channel, progress: RoleProgress, timeout_s: float
) -> dict[str, Any]:
    statistics = shard.statistics()
    if path is None:
        return statistics
    progress.value = None  # writing to a slow disk is not hanging
    _send(channel, shard.close())
    states = shard.slice_states()
    file = write_once_there_is_room(
        lambda: write_shard(folder / path, shard.index, states, shard.optimizer),
        lambda reason: channel.send(LAUNCHER, Message("waiting_for_room", body={"reason": reason})),
    )
    body = {"written": [str(Path(path) / file.name)], "confirm": True}
    channel.send(LAUNCHER, Message("final_file", body=body))
    while (message := channel.receive(timeout_s)).kind != "kept" or message.body["kind"] != "final_file":
        if message.kind == "stop":
            raise stop_error(channel.name, message)
    return {**statistics, "file": msgspec.to_builtins(file)}
