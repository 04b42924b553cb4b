"""`StateKeeping`: replica 0 writes what the shards do not have whenever a checkpoint is due.

Where checkpoints go by time, those are due that the launcher has asked for; it is told where that was too late. A disk
that cannot be written to does not end the training: the launcher is told, and the checkpoint stays incomplete.
"""

from collections.abc import Callable, Sequence

import msgspec
from torch import Tensor

from ...errors import CheckpointError
from ...ps.checkpoint.write_checkpoint import write_state
from ...ps.checkpoint.journal import unfinished_path
from ...ps.slices.region import Region
from ...runtime.launcher.assignment import LAUNCHER
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import Message
from ..job.run_config import Course

State = Callable[[], Sequence[tuple[Region, Tensor]]]


class StateKeeping:
    """Of one machine of replica 0, which begins with step `first`. state: buffers and frozen parameters as they are."""

    def __init__(self, mailbox: Mailbox, course: Course, machine: int, state: State, *, first: int) -> None:
        self._mailbox, self._course, self._machine, self._state = mailbox, course, machine, state
        self._last = course.checkpoint(first * course.replicas)  # the last that was due
        self._asked = 0  # the number of the one that was asked for, until it is due

    def reached(self, batches: int) -> None:
        """All replicas together have come to so many batches; a step was just done.

        Where batches are leased that may be many more than before: what was due between has the state of now.
        """
        before, self._last = self._last, max(self._last, self._course.checkpoint(batches))
        due = range(before + 1, self._last + 1)
        for number in self._asked_for(due) if self._course.checkpoint_s else due:
            self._write(number)

    def _asked_for(self, due: range) -> list[int]:
        """Those that the launcher has asked for; it is told of one that was due before."""
        while (asked := self._mailbox.take((LAUNCHER, "checkpoint", 0, 0, 0))) is not None:
            self._asked = int(asked.body["checkpoint"])
        if not self._asked or self._asked >= due.stop:
            return []
        number, self._asked = self._asked, 0
        if number in due:
            return [number]
        self._mailbox.send(LAUNCHER, Message("late", body={"checkpoint": number}))
        return []

    def _write(self, number: int) -> None:
        try:
            file = write_state(unfinished_path(self._course.folder, number), self._machine, self._state())
        except CheckpointError as error:
            tell_unsaved(self._mailbox.channel, str(error.__cause__ or error.facts))
            return
        body = {"checkpoint": number, "file": msgspec.to_builtins(file)}
        self._mailbox.send(LAUNCHER, Message("kept", body=body))


def tell_unsaved(channel: Channel, why: str) -> None:
    """The launcher says that something could not be written, and that the run goes on."""
    channel.send(LAUNCHER, Message("unsaved", body={"why": why}))
