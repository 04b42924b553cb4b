"""`MetricsReader`: follows metrics.jsonl in a run folder, from its beginning to whatever is written last."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ...errors import UsageError
from ..run_folder import CONFIG, METRICS

CHUNK_BYTES = 1 << 20
RECENT_BYTES = 4 << 20  # at the end of the file; what processes said before it nobody asks for any more
ROLES = b'{"event": "roles"'  # how a line begins that is most of the file
LOCKS = Path("/proc/locks")  # of all processes: "1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF"


class MetricsReader:
    """Reads the events of a run folder, each once. UsageError (E259) where the folder is not that of a run.

    Of what processes said, only what was written last is read: a run of days leaves gigabytes of it, and they are
    shown as they are now.

    Attributes:
        position: bytes that were read, up to the end of a line.
        restarts: how often the file turned out to be another one, which is read from its beginning.
        unreadable: lines that are no events, as one that was cut short by a crash.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / METRICS
        self._identity: tuple[int, int] | None = None  # of the file
        self.position = self.restarts = self.unreadable = 0
        self._check_folder()

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the events that were written since the last time; a line that is not whole yet comes later."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            self._check_folder(gone="has been removed, or is at another place")  # else the run has yet to begin
            return
        except OSError as error:
            facts = f"{self._path} cannot be read: {error.strerror}"
            raise UsageError("E259", facts, fix="be the user who started the run") from error
        with file:
            status = os.fstat(file.fileno())
            self._notice_another_file(status)
            recent = status.st_size - RECENT_BYTES
            file.seek(self.position)
            rest = b""
            while chunk := file.read(CHUNK_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self.position += len(line) + 1
                    if self.position < recent and line.startswith(ROLES) and line.endswith(b"}"):
                        continue
                    event = _parse(line)
                    if event is None:
                        self.unreadable += 1
                    else:
                        yield event

    def is_running(self) -> bool:
        """Whether a process holds the run folder, as the one that leads a run does; on this machine."""
        try:
            status = self._folder.stat()
        except FileNotFoundError:
            return False
        major, minor = os.major(status.st_dev), os.minor(status.st_dev)
        held = f" {major:02x}:{minor:02x}:{status.st_ino} "
        return any(" FLOCK " in line and held in line for line in LOCKS.read_text().splitlines())

    def _check_folder(self, *, gone: str = "is not there") -> None:
        if not (self._folder / CONFIG).is_file():
            there = "is not the folder of a run" if self._folder.exists() else gone
            raise UsageError("E259", f"{self._folder} {there}", fix="name the folder that a run has as --out")

    def _notice_another_file(self, status: os.stat_result) -> None:
        """Begin anew where a new run has taken the folder."""
        identity = (status.st_dev, status.st_ino)
        if self._identity not in (None, identity) or status.st_size < self.position:
            self.position, self.unreadable, self.restarts = 0, 0, self.restarts + 1
        self._identity = identity

    def __repr__(self) -> str:
        return f"MetricsReader({self._path}, at byte {self.position})"


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line, None where it is none."""
    try:
        event = msgspec.json.decode(line)
    except ValueError:
        return None
    is_event = isinstance(event, dict) and isinstance(event.get("event"), str) and isinstance(event.get("time"), float)
    return event if is_event else None
