"""Roles on a host whose agent is at the other end of a stream: as here, but with another folder, and lost together."""

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from busy import stretch
from launched import gone, waiting
from marking import with_slow
from places import SUPPORT

from cutset.errors import NetworkError, ProcessLost, UsageError
from cutset.runtime.engines.agent_command import AgentCommand
from cutset.runtime.hosts import agent
from cutset.runtime.hosts.agent import Agent
from cutset.runtime.hosts.frames import PIECE_BYTES, FrameStream
from cutset.runtime.hosts.host import Role
from cutset.runtime.hosts.remote_host import AGENT, RemoteHost
from cutset.runtime.hosts.versions import read_versions
from cutset.runtime.launcher.launcher import Launcher
from cutset.runtime.launcher.membership import Limits

COMMAND = (sys.executable, *AGENT)
WAIT_S = 30.0


@pytest.fixture(autouse=True)
def _roles_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))  # agents have it from there


def open_host(name: str, command: Sequence[str] = COMMAND) -> RemoteHost:
    return RemoteHost(name, AgentCommand(name, command), launcher="127.0.0.1")


@pytest.fixture
def host() -> Iterator[RemoteHost]:
    with open_host("lab1") as host:
        yield host


def agent_of(host: RemoteHost) -> int:
    assert isinstance(host._agent, AgentCommand)
    return host._agent.pid


@pytest.mark.run
def test_roles_on_two_hosts_work_together(host: RemoteHost, tmp_path: Path) -> None:
    roles = [
        Role("server", "role_examples:serves", serves=True, host="lab1"),
        Role("client", "role_examples:asks", "server", host="lab2"),
        Role("talks", "role_examples:prints", "words of a role", host="lab2"),
    ]
    with (
        open_host("lab2") as other,
        Launcher(roles, job="test", hosts=[host, other], folder=tmp_path) as launcher,
    ):
        assert launcher.run() == [None, sum(range(20)), None]
    assert (tmp_path / "talks.log").read_text() == "words of a role\n"


@pytest.mark.run
def test_the_secret_key_never_travels(host: RemoteHost) -> None:
    role = Role("worker 0", "role_examples:environment")
    with Launcher([role], job="test", hosts=[host]) as launcher:
        assert launcher._hosts.keys("lab1").secret == ""
        assert launcher._hosts.keys("lab1").public == host.ready.public
        launcher.run()


@pytest.mark.parametrize("number", with_slow([signal.SIGKILL], [signal.SIGSTOP]))
@pytest.mark.run
def test_a_lost_agent_ends_its_roles_and_is_named(host: RemoteHost, number: signal.Signals) -> None:
    roles = [Role("here", "role_examples:waits"), Role("there", "role_examples:waits", host="lab1")]
    with Launcher(roles, job="test", hosts=[host], limits=Limits(heartbeat_s=20.0)) as launcher:
        waiting(launcher, "here", "there")
        pids, began = launcher.pids, time.monotonic()
        os.kill(agent_of(host), number)
        with pytest.raises(ProcessLost, match="host lab1 is lost: ") as caught:
            list(launcher.events())
        assert time.monotonic() - began < stretch(10.0)
    assert "E290" not in caught.value.facts
    os.kill(agent_of(host), signal.SIGCONT)
    assert all(gone(pid, timeout_s=stretch(WAIT_S)) for pid in pids.values())


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_there(host: RemoteHost, files: Mapping[str, Path], *, roles: int = 1) -> list[dict[str, str]]:
    """What roles find of their files: by path, the digest of each that is there."""
    setup = {"folder": host.folder, "paths": list(files)}
    reading = [Role(f"reader {number}", "role_examples:digests", setup, files=files) for number in range(roles)]
    with Launcher(reading, job="test", hosts=[host]) as launcher:
        return launcher.run()


@pytest.mark.slow
def test_an_agent_ends_with_its_stream_and_its_folder_goes_with_it(host: RemoteHost, tmp_path: Path) -> None:
    source, folder = tmp_path / "source", Path(host.ready.folder)
    source.write_bytes(os.urandom(1 << 20))
    assert read_there(host, {"a/b": source}) == [{"a/b": digest(source)}]
    assert folder.stat().st_mode & 0o777 == 0o700
    host.close()
    assert not folder.exists()


@pytest.mark.slow
def test_the_folder_goes_where_the_agent_and_its_roles_are_killed(host: RemoteHost) -> None:
    folder = Path(host.ready.folder)
    with Launcher([Role("there", "role_examples:waits")], job="test", hosts=[host]) as launcher:
        waiting(launcher, "there")
        pids = launcher.pids
        os.kill(agent_of(host), signal.SIGKILL)
    assert all(gone(pid, timeout_s=stretch(WAIT_S)) for pid in pids.values())
    deadline = time.monotonic() + stretch(WAIT_S)
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_a_file_that_roles_share_goes_once_and_again_when_it_is_another(host: RemoteHost, tmp_path: Path) -> None:
    source, other = tmp_path / "source", tmp_path / "other"
    source.write_bytes(os.urandom(3 * PIECE_BYTES + 17))
    other.write_bytes(b"x")
    files = {"initial": source, "journal/1": other, "none": tmp_path / "none"}
    expected = {"initial": digest(source), "journal/1": digest(other), "none": ""}
    assert read_there(host, files, roles=3) == [expected] * 3
    written = (Path(host.folder) / "initial").stat()
    other.write_bytes(b"another")
    assert read_there(host, files) == [expected | {"journal/1": digest(other)}]
    assert (Path(host.folder) / "initial").stat().st_ino == written.st_ino


def test_an_agent_ends_where_its_stream_is_silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(agent, "SILENCE_S", 0.1)
    monkeypatch.setattr(agent, "ALIVE_S", 0.02)
    (reading, silent), (mute, writing) = os.pipe(), os.pipe()
    serving = threading.Thread(target=Agent(FrameStream(reading, writing), tmp_path).serve)
    serving.start()
    serving.join(stretch(WAIT_S))
    assert not serving.is_alive()
    for file in (reading, silent, mute, writing):
        os.close(file)


@pytest.mark.parametrize("size", with_slow([0, 3 * PIECE_BYTES + 17], [1, PIECE_BYTES]))
def test_files_come_back(host: RemoteHost, tmp_path: Path, size: int) -> None:
    source, back = Path(host.folder) / "checkpoint" / "shard-0", tmp_path / "run" / "checkpoint" / "shard-0"
    source.parent.mkdir()
    source.write_bytes(os.urandom(size))
    host.fetch_file("checkpoint/shard-0", back, timeout_s=WAIT_S)
    assert back.read_bytes() == source.read_bytes()
    assert [path.name for path in back.parent.iterdir()] == ["shard-0"]


@pytest.mark.parametrize("path", ["there/is/none", "../outside", "/etc/hostname"])
def test_files_that_are_not_there_or_not_in_the_folder_are_refused(host: RemoteHost, tmp_path: Path, path: str) -> None:
    with pytest.raises(NetworkError, match=r"E517: host lab1: .* could not be copied"):
        host.fetch_file(path, tmp_path / "back", timeout_s=WAIT_S)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", with_slow(["../outside"], ["/etc/cutset"]))
@pytest.mark.run
def test_nothing_is_written_outside_the_folder(host: RemoteHost, tmp_path: Path, path: str) -> None:
    """A role that misses it says so, and its log why."""
    source = tmp_path / "source"
    source.write_bytes(b"x")
    outside = (Path(host.folder) / path).resolve()
    role = Role("reader", "role_examples:digests", {"folder": host.folder, "paths": ["a"]}, files={path: source})
    with Launcher([role], job="test", hosts=[host], folder=tmp_path / "logs") as launcher:
        launcher.run()
    assert not outside.exists()
    assert "is not in the folder of the run" in (tmp_path / "logs" / "reader.log").read_text()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("/there/is/no/such/program",), "'/there/is/no/such/program' cannot be run: No such file or directory"),
        ((sys.executable, "-c", "raise SystemExit('Permission denied (publickey)')"), "Permission denied (publickey)"),
        ((sys.executable, "-c", "print('Welcome to lab1!' * 100)"), "what comes is no frame: b'Welcome to lab1!"),
    ],
)
def test_a_host_without_an_agent_is_named(command: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_host("lab1", command)
    assert caught.value.code == "E290"
    assert "host lab1 cannot be used: " in caught.value.facts
    assert said in caught.value.facts


def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {**read_versions(), "python": "3.99", "cutset": "9"}
    monkeypatch.setattr("cutset.runtime.hosts.remote_host.read_versions", lambda: others)
    with pytest.raises(UsageError, match=r"E291: host lab1 has python 3\.\d+ instead of 3.99, cutset .* instead of 9"):
        open_host("lab1")


def test_a_lost_host_takes_nothing_and_holds_nobody_up(host: RemoteHost, tmp_path: Path) -> None:
    os.kill(agent_of(host), signal.SIGKILL)
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(NetworkError, match="host lab1 is lost"):
            host.fetch_file("a", tmp_path / "a", timeout_s=WAIT_S)
    with (tmp_path / "log").open("w+b") as log:
        process = host.start(Role("late", "role_examples:waits"), log)
        assert process.returncode() == -signal.SIGKILL
        for _ in range(100_000):
            process._host.signal(process, signal.SIGTERM)
        assert "host lab1 is lost" in process.host_lost
        process.kill()
    assert time.monotonic() - began < stretch(10.0)


@pytest.mark.slow
def test_a_role_that_prints_without_end_keeps_nobody_else_waiting(host: RemoteHost, tmp_path: Path) -> None:
    roles = [
        Role("endless", "role_examples:prints_endlessly", serves=True),
        Role("server", "role_examples:serves", serves=True),
        Role("client", "role_examples:asks", "server"),
    ]
    with Launcher(roles, job="test", hosts=[host], folder=tmp_path) as launcher:
        launcher.start()
        for message in launcher.events():
            if message.kind == "finished" and message.sender == "client":
                break
        assert launcher.results["client"] == sum(range(20))
    assert (tmp_path / "endless.log").stat().st_size > 0


@pytest.mark.run
def test_a_host_joins_while_roles_run_and_takes_the_place_of_a_lost_one(host: RemoteHost) -> None:
    """Its key is another one; roles that were there before know it before any role is started there."""
    joined: list[RemoteHost] = []

    def watch(launcher: Launcher) -> None:
        if not joined:
            joined.append(open_host("lab1"))
            launcher.join(joined[0])
            launcher.on_hold = True  # or the server would be stopped, since nobody else is left
        for ready in launcher.take_joined_hosts():
            assert ready is joined[0]
            assert launcher._hosts.keys("lab1").public == joined[0].ready.public != host.ready.public
            launcher.add([Role("client", "role_examples:asks", "server", host="lab1")])
            launcher.on_hold = False

    roles = [
        Role("server", "role_examples:serves", serves=True, host="lab2"),
        Role("doomed", "role_examples:waits", host="lab1", group="doomed"),
    ]
    with open_host("lab2") as other:
        try:
            with Launcher(roles, job="test", hosts=[host, other], watch=watch, restart=lambda loss: []) as launcher:
                launcher.start()
                os.kill(agent_of(host), signal.SIGKILL)
                list(launcher.events())
                assert launcher.results == {"server": None, "client": sum(range(20))}
        finally:
            for one in joined:
                one.close()
