"""What training has come to is written once the disk has room."""

import errno
from collections.abc import Callable

import pytest

from cutset.errors import CheckpointError, UsageError
from cutset.ps.checkpoint.write_checkpoint import write_once_there_is_room

FULL = OSError(errno.ENOSPC, "No space left on device")


def caused_by(error: Exception, cause: OSError) -> Exception:
    error.__cause__ = cause
    return error


def write_failing(*errors: Exception) -> Callable[[], str]:
    """Fail with these errors, one after the other, then succeed."""
    left = list(errors)

    def write() -> str:
        if left:
            raise left.pop(0)
        return "written"

    return write


class Clock:
    """Time that passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.told = 0.0, list[str]()

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def write(self, write: Callable[[], str], wait_s: float = 60.0) -> str:
        return write_once_there_is_room(
            write, self.told.append, wait_s=wait_s, clock=lambda: self.now, sleep=self.sleep
        )


def test_a_full_disk_is_told_once_and_waited_for() -> None:
    clock = Clock()
    error = caused_by(CheckpointError("E805", "cannot write shard 0"), FULL)
    assert clock.write(write_failing(error, FULL, caused_by(UsageError("E222", "no"), FULL))) == "written"
    assert clock.told == ["[Errno 28] No space left on device"]
    assert clock.now > 0


def test_the_wait_ends() -> None:
    clock = Clock()
    with pytest.raises(OSError, match="No space left"):
        clock.write(write_failing(*[FULL] * 1000), wait_s=10.0)
    assert 10.0 <= clock.now < 12.0


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EACCES, "denied"), CheckpointError("E807", "no such dtype"), ValueError("a bug")],
)
def test_other_errors_are_not_waited_for(error: Exception) -> None:
    clock = Clock()
    with pytest.raises(type(error)):
        clock.write(write_failing(error))
    assert clock.told == []
