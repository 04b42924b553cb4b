"""What roles write elsewhere is in the run folder before anybody hears of it, in the order in which a role says it."""

import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from cutset.errors import NetworkError
from cutset.runtime.channel.message import Message
from cutset.runtime.engines.agent_command import AgentCommand
from cutset.runtime.hosts.host import LocalHost
from cutset.runtime.hosts.remote_host import AGENT, RemoteHost
from cutset.tools.hosts.file_relay import FileRelay
from cutset.tools.hosts.run_hosts import RunHosts


@pytest.fixture
def there() -> Iterator[RemoteHost]:
    with RemoteHost("lab1", AgentCommand("lab1", (sys.executable, *AGENT)), launcher="127.0.0.1") as host:
        yield host


class Hosts:
    """Says that all roles are on one host."""

    def __init__(self, host: RemoteHost | LocalHost) -> None:
        self._host = host

    def host_of(self, name: str) -> RemoteHost | LocalHost:
        return self._host


def relay_to(folder: Path, host: RemoteHost | LocalHost) -> FileRelay:
    return FileRelay(cast(RunHosts, Hosts(host)), folder)


def said(kind: str, sender: str = "shard-0", *, written: Sequence[str] = (), **body: Any) -> Message:
    return Message(kind, sender=sender, body={**body, **({"written": list(written)} if written else {})})


def write(host: RemoteHost, path: str, text: str) -> Path:
    file = Path(host.folder) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_messages_wait_for_their_files_and_keep_their_order(there: RemoteHost, tmp_path: Path) -> None:
    files = [write(there, f"checkpoints/{number}/shard-0", f"version {number}") for number in (1, 2)]
    first, second = (said("checkpoint_saved", written=[f"checkpoints/{number}/shard-0"]) for number in (1, 2))
    last, other = said("progress"), said("progress", "worker-0.0")
    with relay_to(tmp_path, there) as relay:
        for message in (first, second, last, other):
            relay.add(message)
        heard = list(relay.take_ready())
        heard += relay.take_rest()
    assert [message for message in heard if message.sender == "shard-0"] == [first, second, last]
    assert other in heard
    assert (tmp_path / "checkpoints" / "2" / "shard-0").read_text() == "version 2"
    there.close()  # after which all that was asked of the agent is done
    assert not any(file.exists() for file in files)


def test_a_message_is_held_while_its_file_is_on_its_way(
    there: RemoteHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_come = threading.Event()
    fetch = there.fetch_file
    monkeypatch.setattr(there, "fetch_file", lambda *args, **options: may_come.wait(30) and fetch(*args, **options))
    write(there, "a", "x")
    with relay_to(tmp_path, there) as relay:
        relay.add(said("state_saved", written=["a"]))
        relay.add(said("progress"))
        relay.add(said("progress", "worker-1.0"))
        assert [message.sender for message in relay.take_ready()] == ["worker-1.0"]
        may_come.set()
        assert [message.kind for message in relay.take_rest()] == ["state_saved", "progress"]


def test_what_cannot_come_was_not_saved_and_at_the_end_it_is_an_error(there: RemoteHost, tmp_path: Path) -> None:
    with relay_to(tmp_path, there) as relay:
        relay.add(said("checkpoint_saved", written=["none"]))
        [failure] = relay.take_rest()
        assert (failure.kind, failure.sender) == ("write_failed", "shard-0")
        assert "none could not be copied" in failure.body["reason"]
        relay.add(said("journal_saved", replaced=["none"], confirm=True))
        failure, journal = relay.take_rest()
        assert (failure.kind, journal.kind) == ("write_failed", "journal_saved")
        assert journal.body["failure"] == failure.body["reason"]
        relay.add(said("final_file", written=["checkpoint/none"], confirm=True))
        with pytest.raises(NetworkError, match="checkpoint/none could not be copied"):
            list(relay.take_rest())


def test_what_is_replaced_stays_there_and_the_last_of_it_counts(there: RemoteHost, tmp_path: Path) -> None:
    with relay_to(tmp_path, there) as relay:
        for number in range(3):
            file = write(there, "journal/shard-0", f"version {number}")
            relay.add(said("journal_saved", replaced=["journal/shard-0"]))
        assert len(list(relay.take_rest())) == 3
    assert (tmp_path / "journal" / "shard-0").read_text() == "version 2"
    assert file.exists()


def test_what_a_lost_host_has_said_is_nobodys(there: RemoteHost, tmp_path: Path) -> None:
    write(there, "a", "x")
    there.close()
    with relay_to(tmp_path, there) as relay:
        relay.add(said("checkpoint_saved", written=["a"]))
        assert list(relay.take_rest()) == []


def test_here_nothing_has_to_travel(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with LocalHost() as here, relay_to(tmp_path, here) as relay:
        message = said("checkpoint_saved", written=["a"])
        relay.add(message)
        assert list(relay.take_ready()) == [message]
    assert (tmp_path / "a").exists()
