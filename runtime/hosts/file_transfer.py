"""Files on their way between a launcher and an agent, as frames: `AssignmentQueue` sends them, `FileFetch` takes them.

A file goes in pieces, so that other frames, above all that either end is alive, need not wait for the whole of it.
"""

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from .frames import PIECE_BYTES, FilePiece, Frame


def read_pieces(file: Path, path: str) -> Iterator[FilePiece]:
    """Yield a file in pieces, under the relative path that the other end knows it by. Raises OSError."""
    with file.open("rb") as opened:
        offset, data = 0, opened.read(PIECE_BYTES)
        while True:
            following = opened.read(PIECE_BYTES) if len(data) == PIECE_BYTES else b""
            yield FilePiece(path, offset, data, last=not following)
            if not following:
                return
            offset, data = offset + len(data), following


class AssignmentQueue:
    """Assignments that come with files, one after the other, since two may need the same file; each file goes once.

    Threads may `add` while another one sends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = deque[tuple[Mapping[str, Path], Frame]]()
        self._copied: dict[str, tuple[int, int, int]] = {}  # by path there, which version of a file

    def add(self, files: Mapping[str, Path], frame: Frame) -> Iterator[Frame] | None:
        """Add the frame of an assignment; return all frames to send if nobody sends them, else None."""
        with self._lock:
            self._waiting.append((files, frame))
            return self._send() if len(self._waiting) == 1 else None

    def _send(self) -> Iterator[Frame]:
        while True:
            with self._lock:
                files, frame = self._waiting[0]
            for path, file in files.items():
                yield from self._read_new(path, file)
            yield frame
            with self._lock:
                self._waiting.popleft()
                if not self._waiting:
                    return

    def _read_new(self, path: str, file: Path) -> Iterator[Frame]:
        """Yield a file in pieces unless the agent has it. One that is not there is the role's to miss, or not."""
        try:
            state = file.stat()
            version = (state.st_ino, state.st_mtime_ns, state.st_size)
            if self._copied.get(path) != version:
                yield from read_pieces(file, path)
                self._copied[path] = version
        except OSError:
            return  # the role says what it misses


class FileFetch:
    """A file on its way here. into: where it is written. failure: why it could not be copied, once it has ended."""

    def __init__(self, into: IO[bytes]) -> None:
        self._into, self._ended, self.failure = into, threading.Event(), ""

    def take(self, piece: FilePiece) -> None:
        """Write a piece; the last one ends it."""
        if self._ended.is_set():
            return
        try:
            os.pwrite(self._into.fileno(), piece.data, piece.offset)
        except OSError as error:
            self.end(str(error))
        if piece.last:
            self.end("")

    def end(self, failure: str) -> None:
        """End it, if it has not ended; "" if nothing has failed."""
        if not self._ended.is_set():
            self.failure = failure
            self._ended.set()

    def wait(self, timeout_s: float) -> str:
        """Wait for its end; return why it could not be copied, "" if it was."""
        if not self._ended.wait(timeout_s):
            self.end(f"it took more than {timeout_s:g} s")
        return self.failure
