"""`BufferFile`: a worker's buffers, kept for the one that takes its place: the shards have only parameters."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from ..ps.tensor_file import TensorReader
from .saving import save_state

KEEP_S = 2.0  # between two times that they are kept


class BufferFile:
    """again: a worker was here before; the buffers become what it has kept last, if it came to that."""

    def __init__(
        self, buffers: Sequence[Tensor], path: Path, *, again: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._buffers, self._path, self._clock = buffers, path, clock
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
        save_state(self._path, {str(number): buffer for number, buffer in enumerate(self._buffers)})

    def _recall(self) -> None:
        if not self._path.exists():
            return
        with TensorReader(self._path) as reader:
            for number, buffer in enumerate(self._buffers):
                buffer.copy_(reader.tensor(str(number)).view(buffer.shape))
