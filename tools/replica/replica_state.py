"""What workers write that the shards do not have: replica 0 of the model, each what a restart of it restores.

`ReplicaStateWriter` writes buffers and frozen parameters whenever a checkpoint is due. Where checkpoints go by time,
only those are due that the launcher requested; it is told if a request came too late. `BufferFile` saves the buffers of
a worker every few seconds. A disk that cannot be written to does not end the training: the launcher is told.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from torch import Tensor

from ...errors import CheckpointError, UsageError
from ...ps.checkpoint.journal import checkpoint_path
from ...ps.checkpoint.streamed_safetensors import TensorReader
from ...ps.checkpoint.write_checkpoint import write_once_there_is_room, write_state
from ...ps.slices.region import Region
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import LAUNCHER, Message
from ..job.process_specs import TrainingSpec
from ..run_folder import BEST, buffer_path
from ..tensor_files import name_unfinished, save_state

ReplicaState = Callable[[], Sequence[tuple[Region, Tensor]]]


class ReplicaStateWriter:
    """Writes the state of one machine of replica 0, which begins with `start_step`.

    state: returns the buffers and frozen parameters as they are.
    """

    def __init__(
        self, mailbox: Mailbox, training: TrainingSpec, machine: int, state: ReplicaState, *, start_step: int
    ) -> None:
        self._mailbox, self._training, self._machine, self._state = mailbox, training, machine, state
        self._last = training.checkpoint(start_step * training.replicas)  # the last checkpoint that was due
        self._requested = 0  # the number of the checkpoint that was requested, until it is due

    def write_due(self, batches: int) -> None:
        """Write the state if a checkpoint is due; a step was just made, and all replicas have computed `batches`.

        Where batches are leased, `batches` may have grown by many: all checkpoints passed get the present state.
        """
        before, self._last = self._last, max(self._last, self._training.checkpoint(batches))
        due = range(before + 1, self._last + 1)
        for number in self._select_requested(due) if self._training.checkpoint_s else due:
            self._write(number)

    def _select_requested(self, due: range) -> list[int]:
        """Return the checkpoints that the launcher requested; tell it of a request for one that was due before."""
        while (request := self._mailbox.take((LAUNCHER, "checkpoint", 0, 0, 0))) is not None:
            self._requested = int(request.body["number"])
        if not self._requested or self._requested >= due.stop:
            return []
        number, self._requested = self._requested, 0
        if number in due:
            return [number]
        self._mailbox.send(LAUNCHER, Message("checkpoint_missed", body={"number": number}))
        return []

    def _write(self, number: int) -> None:
        try:
            path = checkpoint_path("", number)
            file = write_state(self._training.folder / path, self._machine, self._state())
        except CheckpointError as error:
            report_write_failure(self._mailbox.channel, str(error.__cause__ or error.facts))
            return
        body = {"number": number, "file": msgspec.to_builtins(file), "written": [str(path / file.name)]}
        self._mailbox.send(LAUNCHER, Message("state_saved", body=body))


def report_write_failure(channel: Channel, reason: str) -> None:
    """Tell the launcher that a file could not be written; training continues."""
    channel.send(LAUNCHER, Message("write_failed", body={"reason": reason}))


def write_final_state(channel: Channel, folder: str, path: str, machine: int, state: ReplicaState) -> None:
    """Write the state of a machine of replica 0 to the final checkpoint, once there is room, and tell the launcher.

    folder: of the run; path: of the checkpoint in it. The launcher answers "kept" when it has the file.
    """
    file = write_once_there_is_room(
        lambda: write_state(Path(folder, path), machine, state()),
        lambda reason: channel.send(LAUNCHER, Message("waiting_for_room", body={"reason": reason})),
    )
    body = {"file": msgspec.to_builtins(file), "written": [str(Path(path, file.name))], "confirm": True}
    channel.send(LAUNCHER, Message("state_file", body=body))


def save_best_state(channel: Channel, folder: str, machine: int, state: Sequence[tuple[Region, Tensor]]) -> None:
    """Write the best weights that a machine of replica 0 has evaluated, and tell the launcher, which completes them."""
    try:
        file = write_state(Path(folder, BEST), machine, state)
    except CheckpointError as error:
        report_write_failure(channel, str(error.__cause__ or error.facts))
        return
    body = {"file": msgspec.to_builtins(file), "written": [str(Path(BEST, file.name))]}
    channel.send(LAUNCHER, Message("best_saved", body=body))


SAVE_INTERVAL_S = 2.0


def restored_files(replica: int, machine: int, *, local_state: str, restarted: bool) -> list[str]:
    """Return what a worker continues from besides what all begin with, by paths in the folder of the run."""
    if local_state:
        return [local_state]
    return [str(buffer_path(Path(), replica, machine))] if restarted else []


@contextmanager
def remove_buffers_afterwards(folder: Path, *, replicas: int, machines: int) -> Iterator[None]:
    """Remove the files of all workers' buffers in the end, whatever happens; UsageError where one cannot be removed."""
    try:
        yield
    finally:
        for path in [buffer_path(folder, r, m) for r in range(replicas) for m in range(machines)]:
            try:
                path.unlink(missing_ok=True)
                name_unfinished(path).unlink(missing_ok=True)  # of a worker that was killed while it wrote
            except OSError as error:
                raise UsageError("E222", f"cannot remove {path}: {error}", fix="--out FOLDER of your own") from error


class BufferFile:
    """The file to which a worker saves its buffers, from which its next incarnation restores them.

    Args:
        restarted: the worker is not the first incarnation; restore the buffers if any were saved.
        on_saved: called after each save. on_failure: called with the reason if the buffers cannot be saved; without it,
            that is an error.
    """

    def __init__(
        self,
        buffers: Sequence[Tensor],
        path: Path,
        *,
        restarted: bool,
        on_saved: Callable[[], object] = lambda: None,
        on_failure: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._buffers, self._path, self._clock = buffers, path, clock
        self._on_saved, self._on_failure = on_saved, on_failure
        self._saved_at_s = clock()
        if restarted:
            self._restore()
        else:
            path.unlink(missing_ok=True)

    def save(self, *, now: bool = False) -> None:
        """Write the buffers, now or every few seconds."""
        if not self._buffers or (not now and self._clock() - self._saved_at_s < SAVE_INTERVAL_S):
            return
        self._saved_at_s = self._clock()
        try:
            save_state(self._path, {str(number): buffer for number, buffer in enumerate(self._buffers)})
        except UsageError as error:
            if self._on_failure is None:
                raise
            self._on_failure(str(error.__cause__ or error.facts))
            return
        self._on_saved()

    def _restore(self) -> None:
        if not self._path.exists():
            return
        with TensorReader(self._path) as reader:
            for number, buffer in enumerate(self._buffers):
                buffer.copy_(reader.tensor(str(number)).view(buffer.shape))
