"""How many replicas a run shall have from now on: a wish that another process of the user leaves in its run folder.

The run holds a lock there for as long as it trains, says what is possible (`Standing`), and looks for a wish now and
then. All three files go when it ends; the lock goes even if it is killed.
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

LOCK, STANDING, WISH = "training.lock", "replicas.json", "replicas.wish.json"  # in the run folder
LOOK_S = 0.5  # between two looks for a wish
WISH_BYTES = 4096  # at most


class Standing(msgspec.Struct, frozen=True):
    """What a run says of itself. most: replicas it can have now; 0 where its method needs those that it began with."""

    method: str
    replicas: int
    most: int


class Wish(msgspec.Struct, frozen=True):
    """Replicas that there shall be."""

    replicas: int


class Wishes:
    """The run's part, while entered. clock: seconds; note: is told of a wish that is not heeded."""

    def __init__(
        self, folder: Path, *, note: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._note, self._clock = folder, note, clock
        self._look_at = clock()
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> "Wishes":
        path = self._folder / LOCK
        try:
            self._lock = path.open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self._folder / WISH).unlink(missing_ok=True)
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
        for name in (WISH, STANDING, LOCK):
            (self._folder / name).unlink(missing_ok=True)
        self._release()

    def stand(self, standing: Standing) -> None:
        """Say what there is and what is possible."""
        _replace(self._folder / STANDING, msgspec.json.encode(standing))

    def take(self) -> int | None:
        """The replicas that were wished for since the last look, if it is time for one."""
        if self._clock() < self._look_at:
            return None
        self._look_at = self._clock() + LOOK_S
        path = self._folder / WISH
        try:
            found = _read(path)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            self._note(f"{path} is not heeded: {error}")
            found = None
        path.unlink(missing_ok=True)
        return None if found is None else found.replicas

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def wish(folder: Path, replicas: int) -> Standing:
    """Ask the run in a folder for so many replicas; what it said of itself before.

    UsageError where no run trains there, where its method cannot, and where it can have no so many.
    """
    standing = _standing(folder)
    if standing.most == 0:
        facts = f"the run in {folder} trains by {standing.method}, which needs the replicas that it began with"
        raise UsageError("E273", facts, fix="a method whose replicas are independent: --method downpour, ssp or easgd")
    if not 1 <= replicas <= standing.most:
        facts = f"--replicas {replicas}; the run in {folder} can have 1 to {standing.most} of them now"
        raise UsageError("E274", facts, fix=f"--replicas {min(max(replicas, 1), standing.most)}")
    try:
        _replace(folder / WISH, msgspec.json.encode(Wish(replicas)))
    except OSError as error:
        raise UsageError("E275", f"cannot write {folder / WISH}: {error}", fix="be the user whose run it is") from error
    return standing


def _standing(folder: Path) -> Standing:
    over = UsageError(
        "E276",
        f"no run trains in {folder}: "
        + ("it is over, or has not begun" if folder.is_dir() else "there is no such folder"),
        fix="name the --out folder of a run that trains now",
    )
    try:
        with (folder / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    except OSError as error:
        raise over from error
    else:
        raise over
    try:
        return msgspec.json.decode((folder / STANDING).read_bytes(), type=Standing)
    except (OSError, msgspec.DecodeError) as error:
        raise over from error


def _read(path: Path) -> Wish:
    """A wish that only this user can have written."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError("others may write there")
        return msgspec.json.decode(file.read(WISH_BYTES), type=Wish)


def _replace(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all, and that nobody else may write."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    new.replace(path)
