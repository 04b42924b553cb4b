"""`BufferFile`: a worker's buffers, kept for the one that takes its place: the shards have only parameters."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from ...errors import UsageError
from ...ps.checkpoint.streamed_safetensors import TensorReader
from ..job.export_weights import save_state, unfinished

KEEP_S = 2.0  # between two times that they are kept


def buffer_path(folder: Path, replica: int, machine: int) -> Path:
    """Where the worker of a place keeps its buffers, however often it is started again."""
    return folder / f"buffers-{replica}.{machine}.safetensors"


@contextmanager
def removed_afterwards(folder: Path, *, replicas: int, machines: int) -> Iterator[None]:
    """At the end, however it comes, what the workers of a run have kept is taken away; UsageError where it stays."""
    try:
        yield
    finally:
        for path in [buffer_path(folder, r, m) for r in range(replicas) for m in range(machines)]:
            try:
                path.unlink(missing_ok=True)
                unfinished(path).unlink(missing_ok=True)  # of a worker that was killed while it wrote
            except OSError as error:
                raise UsageError("E222", f"cannot remove {path}: {error}", fix="--out FOLDER of your own") from error


class BufferFile:
    """again: a worker was here before; the buffers become what it has kept last, if it came to that.

    unsaved: is told why they cannot be written, and training goes on; without it, that is an error.
    """

    def __init__(
        self,
        buffers: Sequence[Tensor],
        path: Path,
        *,
        again: bool,
        unsaved: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._buffers, self._path, self._clock, self._unsaved = buffers, path, clock, unsaved
        self._kept_at = clock()
        if again:
            self._recall()
        else:
            path.unlink(missing_ok=True)

    def keep(self, *, now: bool = False) -> None:
        """Write them, now or every few seconds."""
        if not self._buffers or (not now and self._clock() - self._kept_at < KEEP_S):
            return
        self._kept_at = self._clock()
        try:
            save_state(self._path, {str(number): buffer for number, buffer in enumerate(self._buffers)})
        except UsageError as error:
            if self._unsaved is None:
                raise
            self._unsaved(str(error.__cause__ or error.facts))

    def _recall(self) -> None:
        if not self._path.exists():
            return
        with TensorReader(self._path) as reader:
            for number, buffer in enumerate(self._buffers):
                buffer.copy_(reader.tensor(str(number)).view(buffer.shape))
