"""Forks of a process as it was before there was a model: what they have, and what is said of their end."""

import os
import signal
import socket
from collections.abc import Iterator

import pytest
from launched import gone

from cutset.errors import ProcessLost
from cutset.tools.samples.reader_forks import ReaderForks

state = ["before"]


def tell_state(ours: socket.socket) -> None:
    """Send what the process has, and end when there is nothing more to read: with a code that was sent, if any."""
    ours.sendall(f"{state[0]} {os.getppid()}".encode())
    code = ours.recv(1)
    if code:
        os._exit(code[0])


@pytest.fixture
def forks() -> Iterator[ReaderForks]:
    state[0] = "before"
    made = ReaderForks(tell_state, "the numbers")
    yield made
    made.close()


def test_forks_have_nothing_that_came_later(forks: ReaderForks) -> None:
    state[0] = "after"
    for _ in range(2):
        pid, ours = forks.fork()
        with ours:
            said, parent = ours.recv(100).decode().split()
        assert said == "before"
        assert int(parent) not in (os.getpid(), pid)
        assert forks.reap(pid) == 0


def test_how_a_fork_ended_is_told(forks: ReaderForks) -> None:
    pid, ours = forks.fork()
    ours.sendall(bytes([7]))
    assert forks.reap(pid) == 7
    ours.close()
    pid, ours = forks.fork()
    os.kill(pid, signal.SIGKILL)
    assert forks.reap(pid) == -signal.SIGKILL
    ours.close()


def test_all_end_together(forks: ReaderForks) -> None:
    forked = [forks.fork() for _ in range(3)]
    forks.close()
    assert all(gone(pid, timeout_s=10.0) for pid, _ in forked)
    for _, ours in forked:
        ours.close()


def test_without_the_process_that_forks_there_is_no_more_to_read(forks: ReaderForks) -> None:
    _, ours = forks.fork()
    parent = int(ours.recv(100).split()[1])
    os.kill(parent, signal.SIGKILL)
    os.waitid(os.P_PID, parent, os.WEXITED | os.WNOWAIT)
    with ours, pytest.raises(ProcessLost, match="those that read the numbers is gone") as lost:
        forks.fork()
    assert lost.value.code == "E602"
