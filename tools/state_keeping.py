"""`StateKeeping`: replica 0 writes what the shards do not have whenever a checkpoint is due.

A disk that cannot be written to does not end the training: the launcher is told, and the checkpoint stays incomplete.
"""

from collections.abc import Callable, Sequence

import msgspec
from torch import Tensor

from ..partition.errors import CheckpointError
from ..ps.checkpoint_files import write_state
from ..ps.keeper import unfinished_path
from ..ps.region import Region
from ..runtime.assignment import LAUNCHER
from ..runtime.channel import Channel
from ..runtime.message import Message
from .course import Course

State = Callable[[], Sequence[tuple[Region, Tensor]]]


class StateKeeping:
    """Of one machine of replica 0, which begins with step `first`. state: buffers and frozen parameters as they are."""

    def __init__(self, channel: Channel, course: Course, machine: int, state: State, *, first: int) -> None:
        self._channel, self._course, self._machine, self._state = channel, course, machine, state
        self._last = course.checkpoint(first * course.replicas)

    def reached(self, batches: int) -> None:
        """All replicas together have come to so many batches; a step was just done.

        Where batches are leased that may be many more than before: what was due between has the state of now.
        """
        due = range(self._last + 1, self._course.checkpoint(batches) + 1)
        for number in due:
            self._last = number
            self._write(number)

    def _write(self, number: int) -> None:
        try:
            file = write_state(unfinished_path(self._course.folder, number), self._machine, self._state())
        except CheckpointError as error:
            tell_unsaved(self._channel, str(error.__cause__ or error.facts))
            return
        body = {"checkpoint": number, "file": msgspec.to_builtins(file)}
        self._channel.send(LAUNCHER, Message("kept", body=body))


def tell_unsaved(channel: Channel, why: str) -> None:
    """The launcher says that something could not be written, and that the run goes on."""
    channel.send(LAUNCHER, Message("unsaved", body={"why": why}))
