"""Roles are forks of a server that has torch imported: it starts them, sees how they end, and ends with its client."""

import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from busy import stretch
from launched import gone
from marking import with_slow

from cutset.runtime.hosts.host import Role
from cutset.runtime.hosts.role_process import ForkServers, RoleProcess, _ServerProcess, await_ends, role_environment
from cutset.runtime.launcher.launcher import Launcher

WAIT_S = 30.0


def new_log() -> IO[bytes]:
    return tempfile.TemporaryFile()


@pytest.fixture
def servers() -> Iterator[ForkServers]:
    servers = ForkServers()
    yield servers
    servers.close()


def start(servers: ForkServers, name: str = "role", threads: int = 1) -> RoleProcess:
    """A role that waits for its assignment."""
    process = servers.start(name, log=new_log(), threads=threads)
    deadline = time.monotonic() + stretch(WAIT_S)
    while process.pid is None and process.returncode() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return process


def parent(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.run
def test_roles_with_as_many_threads_have_one_server_of_one_thread(servers: ForkServers) -> None:
    first, second, other = start(servers, "a"), start(servers, "b"), start(servers, "c", threads=2)
    assert parent(first.pid) == parent(second.pid) != parent(other.pid)
    assert parent(parent(first.pid)) == os.getpid()
    assert len(list(Path(f"/proc/{parent(first.pid)}/task").iterdir())) == 1
    for process in (first, second, other):
        process.kill()


def test_the_end_of_a_role_is_reported_with_its_code(servers: ForkServers) -> None:
    hung_up, killed = start(servers, "hung up"), start(servers, "killed")
    hung_up.hang_up()
    killed.signal(signal.SIGTERM)
    await_ends([hung_up, killed], stretch(WAIT_S))
    assert (hung_up.returncode(), killed.returncode()) == (1, -signal.SIGTERM)
    assert "the launcher ended before it had sent" in hung_up.last_lines()
    hung_up.kill()
    killed.kill()


def test_a_killed_role_is_reaped(servers: ForkServers) -> None:
    process = start(servers)
    pid = process.pid
    process.kill()
    assert pid is not None
    assert gone(pid, timeout_s=stretch(WAIT_S))


@pytest.mark.slow
@pytest.mark.parametrize("stopped", with_slow([True], [False]))
def test_roles_end_with_the_server_and_the_server_with_its_client(servers: ForkServers, stopped: bool) -> None:
    process = start(servers)
    pid = process.pid
    assert pid is not None
    if stopped:
        process.signal(signal.SIGSTOP)
    servers.close()
    assert gone(pid, timeout_s=0)
    process.kill()


@pytest.mark.run
def test_where_the_server_is_killed_its_roles_are_lost_and_the_next_has_another(servers: ForkServers) -> None:
    process = start(servers)
    pid = process.pid
    assert pid is not None
    os.kill(parent(pid), signal.SIGKILL)
    await_ends([process], stretch(WAIT_S))
    assert process.returncode() == -signal.SIGKILL
    process.kill()
    assert gone(pid, timeout_s=stretch(WAIT_S))
    another = start(servers, "another")
    assert another.pid is not None
    another.kill()


@pytest.mark.run
def test_a_server_without_roles_ends_at_once_though_it_is_at_its_imports() -> None:
    server = _ServerProcess(role_environment(os.environ, threads=1), (), (), ())
    began = time.monotonic()
    server.close()
    assert server.await_end() == -signal.SIGKILL
    assert time.monotonic() - began < stretch(1.0)


@pytest.mark.run
def test_a_server_that_has_said_it_is_ready_ends_where_nobody_has_read_that() -> None:
    server = _ServerProcess(role_environment(os.environ, threads=1), (), (), ())
    server.await_imports()
    server._is_used = True
    server.close()
    assert server.await_end() == 0


@pytest.mark.run
def test_a_server_gives_way_where_the_environment_has_changed_before_the_first_role() -> None:
    environ = {**os.environ, "CUTSET_TEST": "before"}
    with tempfile.TemporaryFile() as held:  # so that the server is of this test alone
        servers = ForkServers(environ=environ, hold=held.fileno())
        early = servers.prepare(1)
        environ["TORCHINDUCTOR_CACHE_DIR"] = "as torch does where it traces"
        assert servers.prepare(1) is early
        environ["CUTSET_TEST"] = "after"
        process = start(servers)
        assert "CUTSET_TEST=after" in Path(f"/proc/{process.pid}/environ").read_text().split("\0")
        used = servers.prepare(1)
        environ["CUTSET_TEST"] = "later"
        assert servers.prepare(1) is used is not early
        process.kill()
        servers.close()


@pytest.mark.run
def test_a_role_may_open_as_many_files_as_the_launcher_when_it_starts(servers: ForkServers) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 2, hard))
        servers.prepare(1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        process = start(servers)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert process.pid is not None
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (soft - 1, hard)
    process.kill()


@pytest.mark.slow
def test_what_the_server_printed_is_shown_where_it_cannot_start(servers: ForkServers) -> None:
    process = servers.start("role", log=new_log(), threads=1, module="cutset.there_is_no_such_module")
    await_ends([process], stretch(WAIT_S))
    assert process.returncode() == 1
    assert "No module named 'cutset.there_is_no_such_module'" in process.last_lines()
    process.kill()


@pytest.mark.slow
def test_roles_draw_other_random_numbers() -> None:
    """Which a data set of the user's may, from numpy's own generator or Python's."""
    roles = [Role(f"role {n}", "role_examples:draws") for n in range(2)]
    with Launcher(roles, job="test") as launcher:
        first, second = launcher.run()
    assert first[0] != second[0]
    assert first[1] != second[1]
