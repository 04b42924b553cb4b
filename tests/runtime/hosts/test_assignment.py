"""What is handed to a new process arrives whole, or it is known that it does not."""

import os
import threading
import time
from collections.abc import Iterator
from io import FileIO

import pytest
from busy import stretch

from cutset.runtime.channel.curve import make_keys
from cutset.runtime.hosts.assignment import Assignment, read_assignment, write_assignment

KEYS = make_keys(["launcher", "worker 0"])["worker 0"]


def assignment(size: int) -> Assignment:
    setup = {"much": "x" * size, "numbers": [1, 2.5, None]}
    return Assignment(
        "worker 0", "job", "module:entry", setup, KEYS, {}, "tcp://127.0.0.1:1", "127.0.0.1", ["/a"], 60.0, 0.5
    )


@pytest.fixture
def pipe() -> Iterator[tuple[FileIO, FileIO]]:
    reader, writer = os.pipe()
    with FileIO(reader) as reading, FileIO(writer, "w") as writing:
        yield reading, writing


def test_it_arrives_whole_even_if_larger_than_the_pipe(pipe: tuple[FileIO, FileIO]) -> None:
    given = assignment(1 << 20)
    deadline = time.monotonic() + 30
    writer = threading.Thread(target=write_assignment, args=(given, pipe[1].fileno()), kwargs={"deadline": deadline})
    writer.start()
    got = read_assignment(pipe[0].fileno())
    writer.join()
    assert got == given
    assert got.setup == given.setup


def test_one_that_does_not_read_holds_nobody_up_for_long(pipe: tuple[FileIO, FileIO]) -> None:
    began = time.monotonic()
    write_assignment(assignment(1 << 20), pipe[1].fileno(), deadline=began + 0.05)
    assert time.monotonic() - began < stretch(5)


def test_one_that_is_gone_is_no_error(pipe: tuple[FileIO, FileIO]) -> None:
    pipe[0].close()
    write_assignment(assignment(1), pipe[1].fileno(), deadline=time.monotonic() + 5)


def test_a_launcher_that_ends_halfway_is_told(pipe: tuple[FileIO, FileIO]) -> None:
    os.write(pipe[1].fileno(), b"\0\0\0\0\0\0\1\0half of it")
    pipe[1].close()
    with pytest.raises(EOFError, match="the launcher ended before"):
        read_assignment(pipe[0].fileno())


def test_the_secret_does_not_show() -> None:
    assert KEYS.secret not in repr(assignment(1))
