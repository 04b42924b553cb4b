"""Requests for more or fewer replicas, which another process of the user leaves in the folder of a run that trains.

The run holds a lock there for as long as it trains, publishes what is possible (`ScaleLimits`), and looks for a request
now and then. All three files are removed when it ends; the lock is released even if the run is killed.
"""

import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from ...errors import UsageError

LOCK_FILE, LIMITS_FILE, REQUEST_FILE = "training.lock", "replicas.json", "replicas.request.json"  # in the run folder
POLL_S = 0.5  # between two looks for a request
MAX_REQUEST_BYTES = 4096


class ScaleLimits(msgspec.Struct, frozen=True):
    """What a run publishes. max_replicas: what may be requested now; 0 where the method needs its initial replicas."""

    method: str
    replicas: int
    max_replicas: int


class ScaleRequest(msgspec.Struct, frozen=True):
    """The number of replicas that a run shall have."""

    replicas: int


class ScaleRequests:
    """The run's side, as a context manager for the time that it trains.

    Args:
        on_notice: called with a sentence about a request that is ignored.
        clock: returns seconds.
    """

    def __init__(
        self, folder: Path, *, on_notice: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._on_notice, self._clock = folder, on_notice, clock
        self._next_poll_s = clock()
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> "ScaleRequests":
        path = self._folder / LOCK_FILE
        try:
            self._lock = path.open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self._folder / REQUEST_FILE).unlink(missing_ok=True)
        except BlockingIOError as error:
            self._release()
            facts = f"another run trains in {self._folder}"
            raise UsageError("E272", facts, fix="--out FOLDER, another one") from error
        except OSError as error:
            self._release()
            raise UsageError("E222", f"cannot write {path}: {error}", fix="--out FOLDER") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in (REQUEST_FILE, LIMITS_FILE, LOCK_FILE):
            (self._folder / name).unlink(missing_ok=True)
        self._release()

    def publish_limits(self, limits: ScaleLimits) -> None:
        """Write what the run is and what may be requested."""
        _replace_file(self._folder / LIMITS_FILE, msgspec.json.encode(limits))

    def take_request(self) -> int | None:
        """Return the replicas requested since the last poll; None without a request, or if no poll is due."""
        if self._clock() < self._next_poll_s:
            return None
        self._next_poll_s = self._clock() + POLL_S
        path = self._folder / REQUEST_FILE
        taken = path.with_suffix(".taken")  # what is requested from now on is another request
        try:
            path.rename(taken)
            request = _read_request(taken)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            self._on_notice(f"{path} is ignored: {error}")
            request = None
        taken.unlink(missing_ok=True)
        return None if request is None else request.replicas

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def request_replicas(folder: Path, replicas: int) -> ScaleLimits:
    """Request a number of replicas from the run in a folder; return what the run published before.

    Raises:
        UsageError: E276 where no run trains there, E273 where its method cannot change its replicas, E274 where it
            cannot have so many, E275 where the request cannot be written.
    """
    limits = _read_limits(folder)
    if limits.max_replicas == 0:
        facts = f"the run in {folder} trains by {limits.method}, which needs all of its initial replicas"
        raise UsageError("E273", facts, fix="a method whose replicas are independent: --method downpour, ssp or easgd")
    if not 1 <= replicas <= limits.max_replicas:
        facts = f"--replicas {replicas}; the run in {folder} can have 1 to {limits.max_replicas} now"
        raise UsageError("E274", facts, fix=f"--replicas {min(max(replicas, 1), limits.max_replicas)}")
    path = folder / REQUEST_FILE
    try:
        _replace_file(path, msgspec.json.encode(ScaleRequest(replicas)))
    except OSError as error:
        raise UsageError("E275", f"cannot write {path}: {error}", fix="be the user who started the run") from error
    return limits


def _read_limits(folder: Path) -> ScaleLimits:
    """Return what the run in a folder published; UsageError where none trains, since its lock is free."""
    no_run = UsageError(
        "E276",
        f"no run trains in {folder}: "
        + ("it has ended, or not started" if folder.is_dir() else "there is no such folder"),
        fix="name the --out folder of a run that is training",
    )
    try:
        with (folder / LOCK_FILE).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    except OSError as error:
        raise no_run from error
    else:
        raise no_run
    try:
        return msgspec.json.decode((folder / LIMITS_FILE).read_bytes(), type=ScaleLimits)
    except (OSError, msgspec.DecodeError) as error:
        raise no_run from error


def _read_request(path: Path) -> ScaleRequest:
    """Read a request that only this user can have written."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError("others may write there")
        return msgspec.json.decode(file.read(MAX_REQUEST_BYTES), type=ScaleRequest)


def _replace_file(path: Path, content: bytes) -> None:
    """Write a file that is either complete or not there, and that nobody else may write."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    new.replace(path)
